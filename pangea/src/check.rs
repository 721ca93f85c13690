//! `pangea check`: checks a recorded history of any database against a consistency model.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use pangea_sim::check::Violation;
use pangea_sim::check::model::Model;
use pangea_sim::check::recorded::{Verdict, check};
use pangea_sim::record::read::{ReadError, read};
use pangea_sim::record::{Outcome, Recorded};

use crate::failure::Failure;
use crate::say;
use crate::sim::unless_interrupted;

/// The progress bar while a file of known size is read.
const READING_BAR: &str = "reading {wide_bar} {bytes}/{total_bytes}, {eta} left";
/// The progress display for input of unknown size and for the search for cycles.
const SPINNER: &str = "{spinner} {msg}, {elapsed}";
/// The refresh interval of the progress display.
const PROGRESS_TICK: Duration = Duration::from_millis(250);

/// Check a recorded history of any database against a consistency model.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  pangea check history.jsonl
  pangea check history.jsonl --model snapshot-isolation
  pangea check history-of-several-levels.jsonl --model mixed
  record-something | pangea check - --model serializable
  pangea sim --seed 7 --history run.jsonl && pangea check run.jsonl

A history has one JSON object per line, one line per transaction (wrapped here to fit):

  {\"client\": 1, \"begin\": 10, \"end\": 25, \"outcome\": \"committed\",
   \"ops\": [{\"append\": {\"key\": \"x\", \"value\": 5}},
           {\"read\": {\"key\": \"x\", \"value\": [5]}}]}

docs/HISTORY.md describes the format and the models. The exit code is 0 if the history satisfies the
model, 1 if it does not or if the search was inconclusive, and 2 if the file is not a history.")]
pub struct Arguments {
    /// History file, or - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Consistency model to check the history against
    #[arg(long, value_name = "M")]
    #[arg(help = format!(
        "Model to check the history against: {} [default: mixed if a transaction names its level, \
         otherwise {}]",
        Model::names(),
        Model::StrictSerializable
    ))]
    model: Option<Model>,
}

/// Checks a history.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let name = arguments.file.display().to_string();
    check_file(name, arguments.file.clone(), arguments.model)
}

/// Checks the history in a file and prints the verdict. Without a model, each transaction is held
/// to the level that it names. Messages refer to the history as `name`.
///
/// # Errors
/// If the history violates the model, if neither a violation nor a proof was found, or if the file
/// cannot be read.
pub fn check_file(name: String, file: PathBuf, model: Option<Model>) -> Result<(), Failure> {
    let work = move || {
        let begin = Instant::now();
        let recorded = open_and_read(&file)?;
        if recorded.txns.is_empty() {
            let name = file.display();
            return Err(Failure::Usage(format!("{name}: the history has no transactions")));
        }
        let has_levels = recorded.txns.iter().any(|txn| txn.level.is_some());
        let usual = if has_levels { Model::Mixed } else { Model::StrictSerializable };
        let model = model.unwrap_or(usual);
        let checking = spinner("checking");
        let verdict = check(&recorded, model, model.name());
        let weaker = match &verdict {
            Verdict::Broken(_) => still_holds(&recorded, model),
            _ => None,
        };
        checking.finish_and_clear();
        Ok((counts(&recorded), model, verdict, weaker, begin.elapsed()))
    };
    let Some(done) = unless_interrupted(work)? else {
        return Err(Failure::Interrupted(format!("interrupted before {name} was checked")));
    };
    let (counts, model, verdict, weaker, elapsed) = done?;
    say(&format!("{name}: {counts}\n  checked     {model}, in {:.1} s", elapsed.as_secs_f64()))?;
    match verdict {
        Verdict::Holds => say("  verdict     the model holds"),
        Verdict::Open => {
            say(
                "  verdict     OPEN: no anomaly was found, but no valid order of all writes either",
            )?;
            Err(Failure::Failed(format!("{name}: it is undetermined whether {model} holds")))
        }
        Verdict::Broken(Violation { anomaly, story, .. }) => {
            say(&format!("  verdict     FAILED: {anomaly}: {story}"))?;
            let weaker = weaker
                .map_or("no weaker model holds".to_owned(), |weaker| format!("{weaker} holds"));
            say(&format!("  weaker      {weaker}"))?;
            Err(Failure::Failed(format!("{name} is not {model}: {anomaly}")))
        }
    }
}

/// Returns the strongest weaker model that the history satisfies.
fn still_holds(recorded: &Recorded, model: Model) -> Option<Model> {
    let weaker = Model::ALL.into_iter().filter(|weaker| *weaker < model);
    // A history that violates the weakest model violates all of them.
    let weaker: Vec<Model> = weaker.collect();
    let holds = |model: &Model| check(recorded, *model, "") == Verdict::Holds;
    weaker.last().filter(|weakest| holds(weakest))?;
    weaker.into_iter().find(holds)
}

fn open_and_read(file: &PathBuf) -> Result<Recorded, Failure> {
    let name = file.display().to_string();
    let cant = |error| Failure::Usage(format!("can't read {name}: {error}"));
    let (input, bar): (Box<dyn BufRead>, _) = if name == "-" {
        (Box::new(BufReader::new(std::io::stdin())), spinner("reading"))
    } else {
        let file = File::open(file).map_err(cant)?;
        let len = file.metadata().map_err(cant)?.len();
        let style = ProgressStyle::with_template(READING_BAR);
        let bar = ProgressBar::new(len).with_style(style.expect("the template is a constant"));
        bar.enable_steady_tick(PROGRESS_TICK);
        (Box::new(BufReader::new(file)), bar)
    };
    let mut input = input;
    let recorded = read(&mut *input, &mut |bytes| bar.set_position(bytes));
    bar.finish_and_clear();
    recorded.map_err(|error| match error {
        ReadError::Io(error) => cant(error),
        ReadError::Malformed(malformed) => Failure::Usage(format!("{name}: {malformed}")),
    })
}

fn spinner(what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template(SPINNER).expect("the template is a constant");
    let bar = ProgressBar::new_spinner().with_style(style).with_message(what);
    bar.enable_steady_tick(PROGRESS_TICK);
    bar
}

/// Returns the numbers of transactions and operations, as text.
fn counts(recorded: &Recorded) -> String {
    let of = |outcome| recorded.txns.iter().filter(|txn| txn.outcome == outcome).count();
    let ops: usize = recorded.txns.iter().map(|txn| txn.ops.len()).sum();
    let (committed, aborted) = (of(Outcome::Committed), of(Outcome::Aborted));
    let unknown = of(Outcome::Unknown);
    let all = recorded.txns.len();
    format!(
        "{all} transactions ({committed} committed, {aborted} aborted, {unknown} unknown), {ops} \
         operations"
    )
}
