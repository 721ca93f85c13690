//! Golden transcripts: for each phase, the steps of a small group of replicas, as text.
//!
//! Each test is a script of a few actions. Its name is the rule of a phase, and its doc comment
//! cites the section of the paper. The text of everything that the replicas did is beside the
//! module, in a file with the name of the test; [`super::support::transcript`] explains the lines,
//! and how to accept a new text. A node has its number in the cluster. A batch, a cut and a
//! transaction in a batch have numbers of the replication group.

mod calvin;
mod checkpoints;
mod geogauss;
mod input_log;
mod mako;
mod minerva;
mod shards;
mod tiga;

use super::support::transcript::{folder, name_of_test};
use super::support::words::Transcribed;
use super::support::{ClusterOf, Fate};

/// Compares the transcript of a cluster with the golden text of the test.
macro_rules! assert_golden {
    ($cluster:expr) => {
        $cluster.transcript.assert_golden(super::name_of_test!())
    };
}

use assert_golden;

/// A cluster of `n` nodes that have elected a coordinator. All effects are recorded.
fn recorded<P: Transcribed>(n: usize, options: P::Options) -> ClusterOf<P> {
    let mut cluster = ClusterOf::new(n, options);
    cluster.transcript.start();
    cluster
}

/// Commits a script whose keys are its footprint, in a batch and a cut of its own.
fn commit<P: Transcribed>(cluster: &mut ClusterOf<P>, id: usize, script: &str) {
    cluster.call_declared(id, script);
    cluster.batch(id);
    cluster.cut();
}

/// Holds back messages that begin with `name` to one node.
fn hold<P: Transcribed>(cluster: &mut ClusterOf<P>, name: &'static str, to: usize) {
    cluster.on_words(move |_, receiver, message| {
        match receiver == to && message.starts_with(name) {
            true => Fate::HoldBack,
            false => Fate::Deliver,
        }
    });
}

/// Loses all messages from and to one node.
fn isolate<P: Transcribed>(cluster: &mut ClusterOf<P>, node: usize) {
    cluster.transcript.act(|| format!("n{node} is cut off"));
    cluster.on_words(move |from, to, _| match [from, to].contains(&node) {
        true => Fate::Lose,
        false => Fate::Deliver,
    });
}

/// A text without its test would be compared with nothing.
#[test]
fn every_golden_text_has_its_test() {
    let mut texts = 0;
    for entry in std::fs::read_dir(folder()).expect("the folder is there").flatten() {
        let path = entry.path();
        if !path.is_dir() {
            continue;
        }
        let source = std::fs::read_to_string(path.with_extension("rs")).expect("a module");
        for text in std::fs::read_dir(&path).expect("the folder is there").flatten() {
            let name = text.path().file_stem().expect("a name").to_string_lossy().into_owned();
            assert!(source.contains(&format!("fn {name}()")), "{name} is no test of {path:?}");
            texts += 1;
        }
    }
    assert!(texts > 0, "there are golden texts");
}
