//! The choice of a row, and the reasons: a pure function of the numbers.
//!
//! A row qualifies if it gives the requested guarantee, can lose no acknowledged transaction with a
//! region, and sustains the load if the load is a rate. If it was run on real nodes, it must also
//! have passed its checks. Qualifying rows are compared by these criteria, in this order. A value
//! within [`ALIKE`] of the best counts as equal to it:
//!
//! 1. the most transactions a second, unless the load is a rate, which all of them sustain;
//! 2. the lowest median latency, as the mean over the regions;
//! 3. the strongest guarantee;
//! 4. the fewest settings that are not the default, and then the order of the table.

use pangea_core::guarantee::Guarantee;
use serde::Serialize;

/// Values that differ by a smaller fraction are treated as equal: repeats of one benchmark differ
/// by more.
const ALIKE: f64 = 0.03;
/// The minimum fraction of a requested rate that counts as sustained. It is below 1 because calls
/// arrive at random.
const KEPT_UP: f64 = 0.95;
/// If a real run reverses the predicted order of two rows by more than this fraction, the advice
/// says that their order is not certain.
const TURNED: f64 = 0.10;

/// The performance of one protocol with one choice of settings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    pub protocol: String,
    /// Settings that are not the default, as `minerva.reads=strict`.
    pub set: Vec<String>,
    /// The purpose of these settings.
    pub what: String,
    pub guarantee: Guarantee,
    /// Whether acknowledged transactions may be lost with a region, by the protocol's rules.
    pub may_lose: bool,
    /// Whether the numbers come from real nodes on this machine, rather than from a simulation.
    pub is_measured: bool,
    #[serde(flatten)]
    pub performance: Performance,
    /// The region that coordinates, if there is a coordinator.
    pub coordinator: Option<String>,
    pub loss: Option<Loss>,
    /// The comparison with real nodes, if the row was run on them.
    pub check: Option<Check>,
    /// The error, if the row was to be measured and the run failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// Throughput, latency and cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Performance {
    pub throughput_per_sec: f64,
    pub regions: Vec<Region>,
    /// The fraction of transactions that abort.
    pub aborted: f64,
    pub wan_bytes_per_txn: f64,
}

/// The latency in one region.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Region {
    pub name: String,
    pub p50_ms: f64,
    pub p99_ms: f64,
}

/// The effect of the loss of a region.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Loss {
    /// The region that was lost.
    pub region: String,
    /// The longest time without a commit, for each of the remaining regions.
    pub pauses_ms: Vec<(String, f64)>,
    /// The number of acknowledged transactions that were lost because they ran before the regions
    /// had agreed on them.
    pub lost_txns: u64,
    /// Any other acknowledged effect that is missing, or any other violation.
    pub wrong: Option<String>,
}

/// A row as predicted for this machine and as measured on it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    /// Clients in all regions; calls a second if the load is a rate.
    pub clients: u32,
    pub rate_per_sec: Option<f64>,
    pub predicted: Performance,
    pub predicted_pause_ms: f64,
    /// The measured numbers, or the error.
    pub measured: Result<Performance, String>,
    pub measured_pause_ms: Option<f64>,
}

/// The requirements that a row must meet.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Need {
    pub guarantee: Guarantee,
    /// Calls a second in all regions, if the load is a rate.
    pub rate_per_sec: Option<f64>,
}

/// The recommendation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// The row to use, and the second best.
    pub take: Option<usize>,
    pub next: Option<usize>,
    /// The choice, its reasons, and the performance to expect.
    pub sentences: [String; 3],
}

impl Row {
    /// Returns the name of the row, for use in sentences.
    pub fn name(&self) -> String {
        match self.set.is_empty() {
            true => self.protocol.clone(),
            false => format!("{} with {}", self.protocol, self.set.join(" and ")),
        }
    }

    fn can_be_taken(&self, need: &Need) -> Result<(), String> {
        if self.guarantee < need.guarantee {
            return Err(format!("is only {}", self.guarantee));
        }
        if let Some(wrong) = self.failed_for_real() {
            return Err(format!("failed on real nodes ({wrong})"));
        }
        if let Some(wrong) = self.loss.as_ref().and_then(|loss| loss.wrong.as_ref()) {
            return Err(format!("fails when a region is lost ({wrong})"));
        }
        if let Some(loss) = self.loss.as_ref().filter(|loss| loss.lost_txns > 0) {
            return Err(format!("loses {} when region {} is lost", loss.lost(), loss.region));
        }
        if self.may_lose {
            return Err("may lose acknowledged transactions when a region is lost".to_owned());
        }
        let throughput = self.performance.throughput_per_sec;
        if let Some(rate) = need.rate_per_sec.filter(|rate| throughput < rate * KEPT_UP) {
            return Err(format!("completes only {throughput:.0} of {rate:.0} calls a second"));
        }
        match throughput == 0.0 {
            true => Err("commits nothing".to_owned()),
            false => Ok(()),
        }
    }

    /// Returns the error of a run on real nodes, if it failed.
    fn failed_for_real(&self) -> Option<&String> {
        let check = || self.check.as_ref()?.measured.as_ref().err();
        self.failed.as_ref().or_else(check)
    }

    /// Returns whether the row was run on real nodes.
    fn was_run(&self) -> bool {
        self.is_measured || self.check.is_some()
    }

    /// Returns the longest pause of a remaining region.
    fn pause_ms(&self) -> Option<f64> {
        let loss = self.loss.as_ref()?;
        Some(loss.pauses_ms.iter().map(|(_, ms)| *ms).fold(0.0, f64::max))
    }
}

impl Loss {
    /// Description of the acknowledged transactions that were lost, for humans.
    pub fn lost(&self) -> String {
        match self.lost_txns {
            0 => "nothing".to_owned(),
            1 => "1 acknowledged transaction".to_owned(),
            count => format!("{count} acknowledged transactions"),
        }
    }
}

impl Performance {
    /// Returns the mean of the regions' medians. Every region has the same weight, whatever its
    /// load.
    pub fn p50_ms(&self) -> f64 {
        let all: f64 = self.regions.iter().map(|region| region.p50_ms).sum();
        all / self.regions.len().max(1) as f64
    }
}

/// Returns the best of the given rows, by the criteria in the module's documentation.
fn best(rows: &[Row], among: &[usize], need: &Need) -> Option<usize> {
    let mut left = among.to_vec();
    if need.rate_per_sec.is_none() {
        let throughput = |at: usize| rows[at].performance.throughput_per_sec;
        let most = left.iter().map(|at| throughput(*at)).fold(0.0, f64::max);
        left.retain(|at| throughput(*at) >= most * (1.0 - ALIKE));
    }
    let p50 = |at: usize| rows[at].performance.p50_ms();
    let least = left.iter().map(|at| p50(*at)).fold(f64::INFINITY, f64::min);
    left.retain(|at| p50(*at) <= least * (1.0 + ALIKE));
    left.into_iter().min_by_key(|at| (std::cmp::Reverse(rows[*at].guarantee), rows[*at].set.len()))
}

/// Returns the rows that qualify, best first.
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

/// Returns the row to run on real nodes next. Until `finalists` rows have been tried, that is the
/// best untried row. After that, it is the row that would be recommended, if it has not been run.
pub fn next_to_try(rows: &[Row], need: &Need, tried: &[usize], finalists: usize) -> Option<usize> {
    let order = ranked(rows, need);
    let is_new = |at: &usize| !tried.contains(at);
    match finalists {
        0 => None,
        _ if tried.len() < finalists => order.into_iter().find(is_new),
        _ => order.first().copied().filter(is_new),
    }
}

/// Recommends a row and explains why.
pub fn advise(rows: &[Row], need: &Need) -> Advice {
    let mut order = ranked(rows, need);
    // Once any real run has failed, only rows that ran on real nodes are recommended.
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

/// Returns whether any run on real nodes failed.
fn has_failed(rows: &[Row]) -> bool {
    rows.iter().any(|row| row.failed_for_real().is_some())
}

/// Returns the text for the case that no row qualifies.
fn none(rows: &[Row], need: &Need) -> [String; 3] {
    let wanted = match need.rate_per_sec {
        Some(rate) => format!("{} at {rate:.0} calls a second", need.guarantee),
        None => need.guarantee.to_string(),
    };
    let reason = |row: &Row| {
        let why = row.can_be_taken(need).err();
        let why =
            why.unwrap_or_else(|| "could not be run here, and other choices failed".to_owned());
        format!("{} {why}", row.name())
    };
    let reasons: Vec<String> = rows.iter().take(3).map(reason).collect();
    let real = match has_failed(rows) {
        true => ", and passes its checks on real nodes",
        false => "",
    };
    [
        format!(
            "Take none of these: none is {wanted} without data loss when a region is lost{real}."
        ),
        format!("Reasons: {}.", reasons.join("; ")),
        "Reduce the requirements in the workload file, or use more cores per node or closer \
         regions."
            .to_owned(),
    ]
}

fn which(row: &Row) -> String {
    let mut regions: Vec<&Region> = row.performance.regions.iter().collect();
    regions.sort_by(|a, b| a.p50_ms.total_cmp(&b.p50_ms));
    let medians = match &regions[..] {
        [] => String::new(),
        [one] => format!(", with a median of {:.0} ms in {}", one.p50_ms, one.name),
        [first, .., last] => format!(
            ", with medians from {:.0} ms in {} to {:.0} ms in {}",
            first.p50_ms, first.name, last.p50_ms, last.name
        ),
    };
    let (name, rate) = (row.name(), row.performance.throughput_per_sec);
    format!(
        "Take {name}: it is {} and commits {rate:.0} transactions a second{medians}.",
        row.guarantee
    )
}

/// Returns the relative difference of two numbers as text; `None` if they count as equal.
fn compared(a: f64, b: f64, more: &str, less: &str) -> Option<String> {
    let by = a / b - 1.0;
    if !by.is_finite() || by.abs() < ALIKE {
        return None;
    }
    let percent = (by.abs() * 100.0).round();
    Some(format!("{percent:.0} % {}", if by > 0.0 { more } else { less }))
}

/// Returns the measurements of both rows on real nodes, if both ran under the same load: the size
/// of batches depends on the load.
fn ran_alike<'a>(one: &'a Row, other: &'a Row) -> Option<(&'a Performance, &'a Performance)> {
    let (one, other) = (one.check.as_ref()?, other.check.as_ref()?);
    let is_alike = (one.clients, one.rate_per_sec) == (other.clients, other.rate_per_sec);
    let both = (one.measured.as_ref().ok()?, other.measured.as_ref().ok()?);
    is_alike.then_some(both)
}

fn why(row: &Row, next: Option<&Row>, need: &Need) -> String {
    let Some(next) = next else {
        return format!("No other eligible choice is {}.", need.guarantee);
    };
    let throughput = compared(
        next.performance.throughput_per_sec,
        row.performance.throughput_per_sec,
        "more transactions",
        "fewer transactions",
    );
    let median = compared(
        next.performance.p50_ms(),
        row.performance.p50_ms(),
        "longer medians",
        "shorter medians",
    );
    // Measured bytes if both rows were run, because predictions are least accurate here.
    let bytes = match ran_alike(next, row) {
        Some((next, row)) => compared(
            next.wan_bytes_per_txn,
            row.wan_bytes_per_txn,
            "more bytes between regions (measured)",
            "fewer bytes between regions (measured)",
        ),
        None => compared(
            next.performance.wan_bytes_per_txn,
            row.performance.wan_bytes_per_txn,
            "more bytes between regions",
            "fewer bytes between regions",
        ),
    };
    let differences: Vec<String> = [throughput, median, bytes].into_iter().flatten().collect();
    let does = match differences.is_empty() {
        true => format!("performs the same within {:.0} %", ALIKE * 100.0),
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
        (Some(loss), Some(ms)) => {
            let measured = row.check.as_ref().and_then(|check| check.measured_pause_ms);
            let measured = measured.map(|ms| format!(" ({:.1} s when measured)", ms / 1e3));
            format!(
                "When {} is lost, the other regions commit nothing for {:.1} s{}, and no \
                 acknowledged transaction is lost",
                loss.region,
                ms / 1e3,
                measured.unwrap_or_default()
            )
        }
        _ => "The effect of the loss of a region was not examined".to_owned(),
    };
    let Some(check) = &row.check else {
        return match row.is_measured {
            true => format!("{loss}; all numbers were measured on this machine."),
            false => format!("{loss}; this is predicted and was not run on real nodes."),
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
        "{loss}; {load} on this machine, {predicted:.0} transactions a second were predicted and \
         {:.0} were measured ({error:+.0} %)",
        measured.throughput_per_sec
    );
    let other = next.and_then(|next| rows[next].check.as_ref()?.measured.as_ref().ok());
    let by = other.map_or(1.0, |it| it.throughput_per_sec / measured.throughput_per_sec);
    if by > 1.0 + TURNED {
        text.push_str("; the next best was faster there, so their order is uncertain");
    }
    text.push('.');
    text
}

#[cfg(test)]
#[path = "advice_tests.rs"]
mod tests;
