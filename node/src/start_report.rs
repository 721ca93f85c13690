//! The report on the state that a node found on disk when it started.

use pangea_core::ids::LogPosition;
use pangea_core::protocol::Protocol;

use crate::checkpoint::Loaded;
use crate::log::Recovered;
use crate::node::NodeOptions;

/// A protocol's settings, formatted as its table of the configuration file, for display.
pub(crate) fn settings_of(options: &impl serde::Serialize) -> String {
    let settings = toml::to_string(options);
    settings.map_or_else(|error| error.to_string(), |settings| settings.trim_end().to_owned())
}

/// A report on the state that a node found on disk when it started.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StartReport {
    /// Descriptions of the checkpoint, the records and truncation.
    pub lines: Vec<String>,
    /// Descriptions of damage, and of what to do.
    pub warnings: Vec<String>,
}

impl StartReport {
    pub(crate) fn of(recovered: &Recovered, loaded: &Loaded) -> Self {
        let (mut lines, mut warnings) = (Vec::new(), Vec::new());
        for (path, error) in &loaded.damaged {
            warnings.push(format!(
                "checkpoint {} can't be read: {error}; an earlier one is used",
                path.display()
            ));
        }
        match &loaded.checkpoint {
            Some(checkpoint) => {
                lines.push(format!("checkpoint {} with {} rows", checkpoint.version, loaded.rows));
            }
            None => lines.push("no checkpoint".to_owned()),
        }
        let count = recovered.records.len();
        lines.push(format!("log up to record {}, {count} of them to replay", recovered.head.0));
        if let Some(cut) = &recovered.cut {
            lines.push(format!(
                "log {}: a torn tail at offset {} was cut off: the last record was incomplete or \
                 damaged. After a crash or a power failure this is normal, and no client had an \
                 answer that depends on it. Whether the file was damaged otherwise can't be known",
                cut.path.display(),
                cut.offset
            ));
        }
        Self { lines, warnings }
    }

    /// Adds a warning if the log is shorter than it is `known` to have been. `is_alone` tells
    /// whether no other node has the same rows.
    pub(crate) fn compared(
        mut self,
        recovered: &Recovered,
        known: Option<LogPosition>,
        is_alone: bool,
    ) -> Self {
        let head = recovered.head;
        if let Some(known) = known.filter(|known| *known > head) {
            let remedy = match is_alone {
                true => {
                    "No other node has them, and this one continues without them: to get them \
                     back, stop it and restore a copy of its data directory"
                }
                false => {
                    "Other nodes have them: if this node does not continue, stop it and start it \
                     with pangea start --replace"
                }
            };
            self.warnings.push(format!(
                "the log ends at record {}, but record {} was durable before: the records between \
                 are lost on this node, with acknowledged transactions. {remedy}",
                head.0, known.0
            ));
        }
        self
    }

    /// Adds a line about the replacement of a node, and the warnings about its settings, which it
    /// writes to the log of the node.
    pub(crate) fn add<P: Protocol>(&mut self, line: Option<String>, options: &NodeOptions<P>) {
        self.lines.extend(line);
        let warnings = P::warnings(&options.protocol, &options.topology, options.me);
        warnings.iter().for_each(|line| tracing::warn!("{line}"));
        self.warnings.extend(warnings);
        if let Some(emulation) = options.clock.emulate {
            let line = format!("the clock of this node is emulated, with errors: {emulation:?}");
            tracing::warn!("{line}");
            self.warnings.push(line);
        }
    }

    /// Writes the report to the log of the node.
    pub(crate) fn log(&self) {
        self.lines.iter().for_each(|line| tracing::info!("{line}"));
        self.warnings.iter().for_each(|line| tracing::warn!("{line}"));
    }
}
