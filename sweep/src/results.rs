//! The results of runs: a file for each, and the median of several.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::measure;
use crate::options::Engine;

/// The result of one run, as stored in its file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// [`Point::key`](crate::points::Point::key).
    pub key: String,
    /// The number of the repeat, from 0.
    pub repeat: u32,
    /// The engine that produced the numbers.
    pub engine: Engine,
    /// The command line.
    pub command: String,
    /// The time at which the run ended, in UTC.
    pub ended: String,
    /// The duration, including starting, loading and checking.
    pub took_secs: f64,
    /// The reason why there are no results.
    pub failure: Option<String>,
    /// The results, as the run wrote them.
    pub results: Option<Value>,
}

/// The median of several values, and their range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The middle value, or the mean of the two middle values.
    pub median: f64,
    /// The minimum.
    pub min: f64,
    /// The maximum.
    pub max: f64,
    /// The number of values.
    pub count: usize,
}

impl Spread {
    /// Returns the spread of these values, if there are any.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let (low, high) = ((values.len() - 1) / 2, values.len() / 2);
        let median = f64::midpoint(values[low], values[high]);
        Some(Self { median, min, max, count: values.len() })
    }

    /// Returns the spread divided by a number.
    pub fn over(self, by: f64) -> Self {
        let Self { median, min, max, count } = self;
        Self { median: median / by, min: min / by, max: max / by, count }
    }

    /// Returns the spread of the ratios of `most` to the values.
    pub fn slowdown_from(self, most: f64) -> Self {
        let Self { median, min, max, count } = self;
        Self { median: most / median, min: most / max, max: most / min, count }
    }
}

impl Entry {
    /// Returns the number at a path of the results.
    pub fn number(&self, path: &str) -> Option<f64> {
        measure::find(self.results.as_ref()?, path)
    }
}

/// The runs of a sweep, in a directory.
#[derive(Debug)]
pub struct Results {
    directory: PathBuf,
    entries: BTreeMap<(String, u32), Entry>,
    tuned: BTreeSet<String>,
}

impl Results {
    /// Reads the runs in a directory, which is created if necessary.
    ///
    /// # Errors
    /// If the directory cannot be used or contains other files.
    pub fn open(directory: &Path) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        let mut entries = BTreeMap::new();
        for file in fs::read_dir(directory)? {
            let path = file?.path();
            if path.extension().is_some_and(|ending| ending == "json") {
                let entry: Entry = serde_json::from_slice(&fs::read(&path)?).map_err(|error| {
                    io::Error::other(format!("{} is not a result: {error}", path.display()))
                })?;
                entries.insert((entry.key.clone(), entry.repeat), entry);
            }
        }
        Ok(Self { directory: directory.to_owned(), entries, tuned: BTreeSet::new() })
    }

    /// Returns whether there are no runs.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the result of a run.
    pub fn find(&self, key: &str, repeat: u32) -> Option<&Entry> {
        self.entries.get(&(key.to_owned(), repeat))
    }

    /// Returns the results of all repeats of a run, including failed ones.
    pub fn repeats(&self, key: &str) -> Vec<&Entry> {
        let of = (key.to_owned(), 0)..=(key.to_owned(), u32::MAX);
        self.entries.range(of).map(|(_, entry)| entry).collect()
    }

    /// Sets the points that have rivals: the first run of each only serves to choose among them.
    #[must_use]
    pub fn with_tuned(self, tuned: BTreeSet<String>) -> Self {
        Self { tuned, ..self }
    }

    /// Returns whether a point has rivals, which differ only in tuned options.
    pub fn is_tuned(&self, key: &str) -> bool {
        self.tuned.contains(key)
    }

    /// Returns whether a point was run again, successfully or not.
    pub fn is_repeated(&self, key: &str) -> bool {
        self.repeats(key).iter().any(|entry| entry.repeat > 0)
    }

    /// Returns the runs that count. The run by which a point was chosen does not count once there
    /// are others, even if all of those failed. The luckiest of many runs is not representative,
    /// and a point with more values to try has more luck.
    fn counted(&self, key: &str) -> Vec<&Entry> {
        let mut all = self.repeats(key);
        all.retain(|entry| entry.results.is_some());
        if self.is_tuned(key) && self.is_repeated(key) {
            all.retain(|entry| entry.repeat > 0);
        }
        all
    }

    /// Returns the name of a run among the runs of its point.
    pub fn name(&self, entry: &Entry) -> String {
        match (self.is_tuned(&entry.key), entry.repeat) {
            (true, 0) => "tuning run".to_owned(),
            (true, repeat) => format!("run {repeat}"),
            (false, repeat) => format!("run {}", repeat + 1),
        }
    }

    /// Returns the spread of the number at a path, over all repeats that count and did not fail.
    pub fn spread(&self, key: &str, path: &str) -> Option<Spread> {
        Spread::of(self.counted(key).into_iter().filter_map(|entry| entry.number(path)))
    }

    /// Returns the median repeat, by throughput.
    pub fn median(&self, key: &str) -> Option<&Entry> {
        let throughput = |entry: &Entry| entry.number("throughput_per_sec").unwrap_or(0.0);
        let mut done = self.counted(key);
        done.sort_by(|a, b| throughput(b).total_cmp(&throughput(a)));
        done.get(done.len() / 2).copied()
    }

    /// Stores a result atomically. Its file has the first free number. Existing files may belong to
    /// another plan or program and are not overwritten.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn keep(&mut self, entry: Entry) -> io::Result<()> {
        let path_of = |number: usize| self.directory.join(format!("{number:03}.json"));
        let path =
            (1..).map(path_of).find(|path| !path.exists()).expect("there is always a free number");
        let text = serde_json::to_string_pretty(&entry).expect("names and numbers") + "\n";
        let half = path.with_extension("half");
        let mut file = fs::File::create(&half)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&half, &path)?;
        self.entries.insert((entry.key.clone(), entry.repeat), entry);
        Ok(())
    }
}

/// Converts the output of `pangea sim --predict --json` to the format of a benchmark's results.
pub fn from_prediction(mut json: Value) -> Option<Value> {
    let mut prediction = json.get_mut("predictions")?.get_mut(0)?.take();
    prediction["costs"] = json.get_mut("costs")?.take();
    Some(prediction)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_median_is_in_the_middle_whatever_the_order() {
        let spread = |values: &[f64]| Spread::of(values.iter().copied());
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[3.0, 9.0, 1.0]).unwrap().median, 3.0);
        let even = spread(&[4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!((even.median, even.min, even.max, even.count), (2.5, 1.0, 4.0, 4));
        assert_eq!(spread(&[f64::NAN, 7.0]).unwrap().count, 1);
    }

    #[test]
    fn a_prediction_reads_as_a_measurement_does() {
        let json = json!({
            "note": "predicted, not measured",
            "costs": {"commit": "abc"},
            "predictions": [{"throughput_per_sec": 5.0, "latency_ms": {"p50": 2.0}}],
        });
        let results = from_prediction(json).unwrap();
        assert_eq!(measure::find(&results, "latency_ms.p50"), Some(2.0));
        assert_eq!(results["costs"]["commit"], "abc");
        assert_eq!(from_prediction(json!({"predictions": []})), None);
    }
}
