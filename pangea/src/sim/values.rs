//! Values of the options of `pangea sim`.

use std::ops::Range;

use pangea_sim::FaultKind;

/// A list of faults, as one argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Faults(pub Vec<FaultKind>);

pub(super) fn faults(text: &str) -> Result<Faults, String> {
    match text {
        "none" => Ok(Faults(Vec::new())),
        _ if text.split(',').any(|name| name == "none") => {
            Err("none can't be combined with faults: it means that no fault happens".to_owned())
        }
        _ => text.split(',').map(str::parse).collect::<Result<_, _>>().map(Faults),
    }
}

/// Without clients, there is no operation that could be wrong.
pub(super) fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(count) => Ok(count),
        Err(_) => Err("expected a number".to_owned()),
    }
}

pub(super) fn fault_names() -> String {
    FaultKind::ALL.map(FaultKind::name).join(", ")
}

/// The longest run of `--minutes`: a year.
const MINUTES_MAX: f64 = 60.0 * 24.0 * 365.0;

pub(super) fn minutes(text: &str) -> Result<f64, String> {
    let minutes: f64 = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    match minutes > 0.0 && minutes <= MINUTES_MAX {
        true => Ok(minutes),
        false => Err(format!("must be above 0 and at most {MINUTES_MAX}")),
    }
}

pub(super) fn seeds(text: &str) -> Result<Range<u64>, String> {
    let wrong = || format!("{text:?} is not of the form 0..1000");
    let (start, end) = text.split_once("..").ok_or_else(wrong)?;
    let start: u64 = start.parse().map_err(|_| wrong())?;
    let end: u64 = end.parse().map_err(|_| wrong())?;
    if start < end { Ok(start..end) } else { Err(format!("the range {text} is empty")) }
}
