//! Which row to take, and why: a function of the numbers alone.
//!
//! A row can be taken when it gives the guarantee that is asked for, loses nothing acknowledged
//! with a region, keeps up with the load where that is a rate, and, where it was run for real,
//! passed its checks. Of those, in this order, what is within [`ALIKE`] of the best counting as the
//! best:
//!
//! 1. the most transactions a second, unless the load is a rate, which all of them keep up with;
//! 2. the lowest median, as the mean over the regions;
//! 3. the strongest guarantee;
//! 4. the fewest settings that are not the default, and then the order of the table.

use pangea_core::choice::Guarantee;
use serde::Serialize;

/// Numbers that differ by less are alike: repeats of one benchmark differ by more.
const ALIKE: f64 = 0.03;
/// A rate is kept up with from this share of it on: calls come at random.
const KEPT_UP: f64 = 0.95;
/// Two rows whose order a real run turns around by more than this are said not to be certain.
const TURNED: f64 = 0.10;

/// What one protocol with some settings does.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    pub protocol: String,
    /// Settings that are not the default: `minerva.reads=strict`.
    pub set: Vec<String>,
    /// What they are for.
    pub what: String,
    pub guarantee: Guarantee,
    /// Whether the numbers are of real nodes on this machine, or of a simulation.
    pub is_measured: bool,
    #[serde(flatten)]
    pub does: Does,
    /// The region that coordinates, where there is one.
    pub coordinator: Option<String>,
    pub loss: Option<Loss>,
    /// What came of running it for real, where that was done.
    pub check: Option<Check>,
    /// Why there are no numbers, where it was to be measured and that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// How much, how soon, and what it takes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Does {
    pub throughput_per_sec: f64,
    pub regions: Vec<Region>,
    /// The share of all transactions that abort.
    pub aborted: f64,
    pub wan_bytes_per_txn: f64,
}

/// A region's part.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Region {
    pub name: String,
    pub p50_ms: f64,
    pub p99_ms: f64,
}

/// What the loss of a region does.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Loss {
    /// Which was lost.
    pub region: String,
    /// The longest time without a commit in each of the others.
    pub pauses_ms: Vec<(String, f64)>,
    /// How many transactions were acknowledged and are gone, as they were run before regions had
    /// agreed on them.
    pub lost_txns: u64,
    /// What else was acknowledged and is not there, or what else is wrong.
    pub wrong: Option<String>,
}

/// A row as predicted for this machine, and as it ran there.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    /// Clients in all regions, and calls a second where the load is a rate.
    pub clients: u32,
    pub rate_per_sec: Option<f64>,
    pub predicted: Does,
    pub predicted_pause_ms: f64,
    /// What was measured, or what went wrong.
    pub measured: Result<Does, String>,
    pub measured_pause_ms: Option<f64>,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Need {
    pub guarantee: Guarantee,
    /// Calls a second in all regions, where the load is a rate.
    pub rate_per_sec: Option<f64>,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// The row to take, and the one after it.
    pub take: Option<usize>,
    pub next: Option<usize>,
    /// Which to take, why, and what to expect of it.
    pub sentences: [String; 3],
}

impl Row {
    /// Its name in sentences.
    pub fn name(&self) -> String {
        match self.set.is_empty() {
            true => self.protocol.clone(),
            false => format!("{} with {}", self.protocol, self.set.join(" and ")),
        }
    }

    fn can_be_taken(&self, need: &Need) -> Result<(), String> {
        if self.guarantee < need.guarantee {
            return Err(format!("is {} only", self.guarantee));
        }
        if let Some(wrong) = self.failed_for_real() {
            return Err(format!("failed on real nodes ({wrong})"));
        }
        if let Some(wrong) = self.loss.as_ref().and_then(|loss| loss.wrong.as_ref()) {
            return Err(format!("loses with a region ({wrong})"));
        }
        if let Some(loss) = self.loss.as_ref().filter(|loss| loss.lost_txns > 0) {
            return Err(format!("loses {} with region {}", loss.lost(), loss.region));
        }
        let throughput = self.does.throughput_per_sec;
        if let Some(rate) = need.rate_per_sec.filter(|rate| throughput < rate * KEPT_UP) {
            return Err(format!("keeps up with {throughput:.0} of {rate:.0} calls a second"));
        }
        match throughput == 0.0 {
            true => Err("commits nothing".to_owned()),
            false => Ok(()),
        }
    }

    /// What went wrong on real nodes.
    fn failed_for_real(&self) -> Option<&String> {
        let check = || self.check.as_ref()?.measured.as_ref().err();
        self.failed.as_ref().or_else(check)
    }

    /// Whether it is known what it does on real nodes.
    fn was_run(&self) -> bool {
        self.is_measured || self.check.is_some()
    }

    /// The longest pause of a survivor.
    fn pause_ms(&self) -> Option<f64> {
        let loss = self.loss.as_ref()?;
        Some(loss.pauses_ms.iter().map(|(_, ms)| *ms).fold(0.0, f64::max))
    }
}

impl Loss {
    /// How much of what was acknowledged is lost, in words.
    pub fn lost(&self) -> String {
        match self.lost_txns {
            0 => "nothing".to_owned(),
            1 => "1 acknowledged transaction".to_owned(),
            count => format!("{count} acknowledged transactions"),
        }
    }
}

impl Does {
    /// The mean of the regions' medians: each region counts the same, however much it does.
    pub fn p50_ms(&self) -> f64 {
        let all: f64 = self.regions.iter().map(|region| region.p50_ms).sum();
        all / self.regions.len().max(1) as f64
    }
}

/// The best of some rows, by the order that stands above.
fn best(rows: &[Row], among: &[usize], need: &Need) -> Option<usize> {
    let mut left = among.to_vec();
    if need.rate_per_sec.is_none() {
        let throughput = |at: usize| rows[at].does.throughput_per_sec;
        let most = left.iter().map(|at| throughput(*at)).fold(0.0, f64::max);
        left.retain(|at| throughput(*at) >= most * (1.0 - ALIKE));
    }
    let p50 = |at: usize| rows[at].does.p50_ms();
    let least = left.iter().map(|at| p50(*at)).fold(f64::INFINITY, f64::min);
    left.retain(|at| p50(*at) <= least * (1.0 + ALIKE));
    left.into_iter().min_by_key(|at| (std::cmp::Reverse(rows[*at].guarantee), rows[*at].set.len()))
}

/// The rows that can be taken, the best first.
pub fn ranked(rows: &[Row], need: &Need) -> Vec<usize> {
    let can_be = |at: &usize| rows[*at].can_be_taken(need).is_ok();
    let mut left: Vec<usize> = (0..rows.len()).filter(can_be).collect();
    let mut order = Vec::with_capacity(left.len());
    while let Some(next) = best(rows, &left, need) {
        left.retain(|at| *at != next);
        order.push(next);
    }
    order
}

/// The row that is to be run for real next, if so many finalists are to be: the best that were not
/// tried yet, and beyond those whatever would be taken without having been run.
pub fn next_to_try(rows: &[Row], need: &Need, tried: &[usize], finalists: usize) -> Option<usize> {
    let order = ranked(rows, need);
    let is_new = |at: &usize| !tried.contains(at);
    match finalists {
        0 => None,
        _ if tried.len() < finalists => order.into_iter().find(is_new),
        _ => order.first().copied().filter(is_new),
    }
}

/// Which row to take, and why.
pub fn advise(rows: &[Row], need: &Need) -> Advice {
    let mut order = ranked(rows, need);
    // Where what was run has failed, nothing is taken that could not be run.
    if has_failed(rows) {
        order.retain(|at| rows[*at].was_run());
    }
    let (take, next) = (order.first().copied(), order.get(1).copied());
    let sentences = match take {
        None => none(rows, need),
        Some(take) => {
            let row = &rows[take];
            [which(row), why(row, next.map(|at| &rows[at]), need), expect(row, next, rows)]
        }
    };
    Advice { take, next, sentences }
}

/// Whether something failed on real nodes.
fn has_failed(rows: &[Row]) -> bool {
    rows.iter().any(|row| row.failed_for_real().is_some())
}

/// What is said where no row will do.
fn none(rows: &[Row], need: &Need) -> [String; 3] {
    let wanted = match need.rate_per_sec {
        Some(rate) => format!("{} at {rate:.0} calls a second", need.guarantee),
        None => need.guarantee.to_string(),
    };
    let reason = |row: &Row| {
        let why = row.can_be_taken(need).err();
        let why = why.unwrap_or_else(|| "could not be run here, and others failed".to_owned());
        format!("{} {why}", row.name())
    };
    let reasons: Vec<String> = rows.iter().take(3).map(reason).collect();
    let real = match has_failed(rows) {
        true => ", and passes its checks on real nodes",
        false => "",
    };
    [
        format!(
            "Take none of these: none is {wanted} without losing anything with a region{real}."
        ),
        format!("The reasons: {}.", reasons.join("; ")),
        "Ask for less in the file of the workload, or give the nodes more cores or closer regions."
            .to_owned(),
    ]
}

fn which(row: &Row) -> String {
    let mut regions: Vec<&Region> = row.does.regions.iter().collect();
    regions.sort_by(|a, b| a.p50_ms.total_cmp(&b.p50_ms));
    let medians = match &regions[..] {
        [] => String::new(),
        [one] => format!(", with a median of {:.0} ms in {}", one.p50_ms, one.name),
        [first, .., last] => format!(
            ", with medians from {:.0} ms in {} to {:.0} ms in {}",
            first.p50_ms, first.name, last.p50_ms, last.name
        ),
    };
    let (name, rate) = (row.name(), row.does.throughput_per_sec);
    format!(
        "Take {name}: it is {} and commits {rate:.0} transactions a second{medians}.",
        row.guarantee
    )
}

/// How much more one number is than another, in words.
fn compared(a: f64, b: f64, more: &str, less: &str) -> Option<String> {
    let by = a / b - 1.0;
    if !by.is_finite() || by.abs() < ALIKE {
        return None;
    }
    let percent = (by.abs() * 100.0).round();
    Some(format!("{percent:.0} % {}", if by > 0.0 { more } else { less }))
}

/// What both did on real nodes under one load: how full batches are depends on it.
fn ran_alike<'a>(one: &'a Row, other: &'a Row) -> Option<(&'a Does, &'a Does)> {
    let (one, other) = (one.check.as_ref()?, other.check.as_ref()?);
    let is_alike = (one.clients, one.rate_per_sec) == (other.clients, other.rate_per_sec);
    let both = (one.measured.as_ref().ok()?, other.measured.as_ref().ok()?);
    is_alike.then_some(both)
}

fn why(row: &Row, next: Option<&Row>, need: &Need) -> String {
    let Some(next) = next else {
        return format!("No other choice gives {} and can be taken.", need.guarantee);
    };
    let throughput = compared(
        next.does.throughput_per_sec,
        row.does.throughput_per_sec,
        "more transactions",
        "fewer transactions",
    );
    let median =
        compared(next.does.p50_ms(), row.does.p50_ms(), "longer medians", "shorter medians");
    // As real nodes sent them, where both were run: a prediction is furthest off here.
    let (next_does, row_does) = ran_alike(next, row).unwrap_or((&next.does, &row.does));
    let bytes = compared(
        next_does.wan_bytes_per_txn,
        row_does.wan_bytes_per_txn,
        "more bytes between regions",
        "fewer bytes between regions",
    );
    let differences: Vec<String> = [throughput, median, bytes].into_iter().flatten().collect();
    let does = match differences.is_empty() {
        true => format!("does the same within {:.0} %", ALIKE * 100.0),
        false => format!("has {}", differences.join(", ")),
    };
    let guarantee = match next.guarantee == row.guarantee {
        true => String::new(),
        false => format!(" and is {}", next.guarantee),
    };
    format!("The next best, {}, {does}{guarantee}.", next.name())
}

fn expect(row: &Row, next: Option<usize>, rows: &[Row]) -> String {
    let loss = match (&row.loss, row.pause_ms()) {
        (Some(loss), Some(ms)) => format!(
            "When {} is lost the other regions commit nothing for {:.1} s at most and nothing \
             acknowledged is lost",
            loss.region,
            ms / 1e3
        ),
        _ => "What the loss of a region does was not looked at".to_owned(),
    };
    let Some(check) = &row.check else {
        return match row.is_measured {
            true => format!("{loss}; all of this was measured, on this machine."),
            false => format!("{loss}; this is predicted, and was not run for real."),
        };
    };
    let Ok(measured) = &check.measured else { return format!("{loss}.") };
    let predicted = check.predicted.throughput_per_sec;
    let error = (predicted / measured.throughput_per_sec - 1.0) * 100.0;
    let load = match check.rate_per_sec {
        Some(rate) => format!("at {rate:.0} calls a second"),
        None => format!("with {} clients", check.clients),
    };
    let mut text = format!(
        "{loss}; {load} on this machine {predicted:.0} a second were predicted and {:.0} measured \
         ({error:+.0} %)",
        measured.throughput_per_sec
    );
    let other = next.and_then(|next| rows[next].check.as_ref()?.measured.as_ref().ok());
    let by = other.map_or(1.0, |it| it.throughput_per_sec / measured.throughput_per_sec);
    if by > 1.0 + TURNED {
        text.push_str(", where the next best was faster, so that their order is not certain");
    }
    text.push('.');
    text
}

#[cfg(test)]
#[path = "advice_tests.rs"]
mod tests;
