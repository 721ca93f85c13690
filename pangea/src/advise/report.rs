//! The report, as a table with three sentences or as JSON.

use std::collections::BTreeMap;
use std::fmt;

use pangea_sim::predict::Calibration;
use serde::Serialize;

use super::Question;
use super::advice::{Advice, Check, Need, Performance, Row, advise};
use crate::table::{aligned, numbers};

/// Above this number of regions, only the regions with the lowest and the highest median have
/// columns.
const REGIONS_SHOWN: usize = 5;

/// The full report.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    workload: String,
    options: Vec<String>,
    clients_per_region: u32,
    regions: Vec<String>,
    cores_per_node: u16,
    need: Need,
    /// The source of the costs used in predictions, by protocol.
    costs: BTreeMap<&'static str, Calibration>,
    rows: Vec<Row>,
    advice: Advice,
}

impl Report {
    /// Creates the report from its rows.
    pub fn new(
        question: &Question<'_>,
        rows: Vec<Row>,
        costs: BTreeMap<&'static str, Calibration>,
    ) -> Self {
        let advice = advise(&rows, &question.need);
        Self {
            workload: question.work.workload.clone(),
            options: question.work.options.clone(),
            clients_per_region: question.work.clients,
            regions: question.places.regions.clone(),
            cores_per_node: question.places.cores,
            need: question.need,
            costs,
            rows,
            advice,
        }
    }

    /// Returns the full report as JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a report is numbers and names")
    }

    /// Returns the name of a row in tables: its settings are shown without the prefix of the
    /// protocol.
    fn name(row: &Row) -> String {
        let set = row.set.iter().map(|set| set.split_once('.').map_or(set.as_str(), |it| it.1));
        let words: Vec<&str> = std::iter::once(row.protocol.as_str()).chain(set).collect();
        words.join(" ")
    }

    fn table(&self) -> comfy_table::Table {
        let is_wide = self.regions.len() <= REGIONS_SHOWN;
        let mut columns = vec![("".to_owned(), false), ("guarantee".to_owned(), false)];
        columns.push(("txn/s".to_owned(), true));
        match is_wide {
            true => columns.extend(self.regions.iter().map(|it| (format!("{it} ms"), true))),
            false => columns.extend(["nearest ms", "farthest ms"].map(|it| (it.to_owned(), true))),
        }
        let more = [("aborts", true), ("WAN bytes", true), ("a region lost", false)];
        columns.extend(more.map(|(name, is_number)| (name.to_owned(), is_number)));
        let mut table =
            aligned(columns.iter().map(|(name, is_number)| (name.as_str(), *is_number)));
        for (at, row) in self.rows.iter().enumerate() {
            let mark = if self.advice.take == Some(at) { "* " } else { "  " };
            let mut cells = vec![format!("{mark}{}", Self::name(row)), row.guarantee.to_string()];
            if row.failed.is_some() {
                cells.resize(columns.len() - 1, "-".to_owned());
                cells.push(lost(row));
                table.add_row(cells);
                continue;
            }
            cells.push(format!("{:.0}", row.performance.throughput_per_sec));
            let mut regions: Vec<_> = row.performance.regions.iter().collect();
            if !is_wide {
                regions.sort_by(|a, b| a.p50_ms.total_cmp(&b.p50_ms));
                regions = vec![regions[0], regions[regions.len() - 1]];
            }
            cells.extend(regions.iter().map(|it| format!("{:.0} / {:.0}", it.p50_ms, it.p99_ms)));
            cells.push(format!("{:.2} %", row.performance.aborted * 100.0));
            cells.push(format!("{:.0}", row.performance.wan_bytes_per_txn));
            cells.push(lost(row));
            table.add_row(cells);
        }
        table
    }

    fn fmt_checks(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in &self.rows {
            let Some(check) = &row.check else { continue };
            let load = match check.rate_per_sec {
                Some(rate) => format!("{rate:.1} calls a second"),
                None => format!("{} clients", check.clients),
            };
            let name = Self::name(row);
            match &check.measured {
                Ok(measured) => {
                    writeln!(f, "On this machine, {load} in total: {name}\n")?;
                    writeln!(f, "{}\n", compared(check, measured))?;
                }
                Err(wrong) => writeln!(f, "On this machine, {load} in total: {name}: {wrong}\n")?,
            }
        }
        Ok(())
    }
}

/// Returns the table cell for the effect of the loss of a region.
fn lost(row: &Row) -> String {
    if let Some(wrong) = &row.failed {
        return format!("failed: {wrong}");
    }
    let Some(loss) = &row.loss else { return "not examined".to_owned() };
    if let Some(wrong) = &loss.wrong {
        return format!("{}: {wrong}", loss.region);
    }
    let all: Vec<f64> = loss.pauses_ms.iter().map(|(_, ms)| ms / 1e3).collect();
    let least = format!("{:.1}", all.iter().copied().fold(f64::INFINITY, f64::min));
    let most = format!("{:.1}", all.iter().copied().fold(0.0, f64::max));
    let pause = match least == most {
        true => format!("{most} s"),
        false => format!("{least} to {most} s"),
    };
    let lost = match row.may_lose && loss.lost_txns == 0 {
        true => "nothing lost in this run, but transactions may be".to_owned(),
        false => format!("{} lost", loss.lost()),
    };
    format!("{}: {pause} without a commit, {lost}", loss.region)
}

/// Predicted and measured values in adjacent columns.
fn compared(check: &Check, measured: &Performance) -> comfy_table::Table {
    let mut table = numbers(&["", "predicted", "measured", "predicted is"]);
    let mut add = |name: &str, predicted: f64, measured: f64, digits: usize| {
        let by = match measured > 0.0 {
            true => format!("{:+.0} %", (predicted / measured - 1.0) * 100.0),
            false => "-".to_owned(),
        };
        table.add_row([
            name.to_owned(),
            format!("{predicted:.digits$}"),
            format!("{measured:.digits$}"),
            by,
        ]);
    };
    let predicted = &check.predicted;
    add("txn/s", predicted.throughput_per_sec, measured.throughput_per_sec, 0);
    for (a, b) in predicted.regions.iter().zip(&measured.regions) {
        add(&format!("{} p50 ms", a.name), a.p50_ms, b.p50_ms, 1);
        add(&format!("{} p99 ms", a.name), a.p99_ms, b.p99_ms, 1);
    }
    add("aborts %", predicted.aborted * 100.0, measured.aborted * 100.0, 2);
    add("WAN bytes", predicted.wan_bytes_per_txn, measured.wan_bytes_per_txn, 0);
    if let Some(pause) = check.measured_pause_ms {
        add("pause ms", check.predicted_pause_ms, pause, 0);
    }
    table
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.table())?;
        let load = match self.need.rate_per_sec {
            Some(rate) => format!("{rate:.0} calls a second in all regions"),
            None => format!("{} clients in each region", self.clients_per_region),
        };
        let options = self.options.join(" ");
        let what = format!("{} {options}", self.workload);
        let how = match self.costs.is_empty() {
            true => "measured on this machine".to_owned(),
            false => format!("predicted, {} cores per node", self.cores_per_node),
        };
        writeln!(f, "{}: {load}; {how}; p50 / p99; * is recommended", what.trim_end())?;
        for Calibration { protocol, machine, date, workload, .. } in self.costs.values() {
            writeln!(f, "costs of {protocol} under {workload}: {machine}, {date}")?;
        }
        writeln!(f)?;
        self.fmt_checks(f)?;
        let [which, why, expect] = &self.advice.sentences;
        writeln!(f, "{which}\n{why}\n{expect}")
    }
}
