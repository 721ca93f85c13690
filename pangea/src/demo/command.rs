//! The demo's own commands at its prompt, besides SQL.

use std::str::FromStr;

/// A command of the demo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Send SQL to this region from now on.
    Connect(String),
    /// Kill a region's node, as a power failure would.
    Kill(String),
    /// Restart a region's node.
    Start(String),
    /// Cut the link between two regions.
    Cut(String, String),
    /// Restore all links.
    Heal,
    /// Show every node.
    Status,
    /// Show the round trips.
    RoundTrips,
    /// Show the rates of the load.
    Load,
    /// Show the commands.
    Help,
    /// Stop the demo.
    Quit,
}

/// The help text of the commands.
pub const HELP: &str = "  \\c REGION        send SQL to this region's node
  \\kill REGION     SIGKILL this region's node, or all of its nodes
  \\start REGION    start this region's nodes that are down
  \\cut A B         cut the link between two regions
  \\heal            restore all links
  \\status          every node and cache: process, version, coordinator or leader, counters;
                   members: the nodes that take part, also those down for a short time
  \\rtt             round trips, emulated and measured
  \\load            rates of the load of --load
  \\help            show this text
  \\q               stop everything
  Ctrl-C           cancel the running statement, or else stop everything
  With --partitions, REGION can be the name of a node, such as us-east.0.
  With --caches, \\kill, \\start and \\cut also take the name of a cache, such as us-east.cache.
  A region's name means its node alone, but a cut is of its cache, too.
  Anything else is SQL and ends with a semicolon.";

impl FromStr for Command {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        // A comment may follow, as in SQL.
        let is_word = |word: &&str| !word.starts_with("--");
        let words: Vec<&str> = line.split_whitespace().take_while(is_word).collect();
        let owned = |word: &str| word.to_owned();
        match words[..] {
            ["\\c" | "\\connect", region] => Ok(Self::Connect(owned(region))),
            ["\\kill", region] => Ok(Self::Kill(owned(region))),
            ["\\start", region] => Ok(Self::Start(owned(region))),
            ["\\cut", a, b] => Ok(Self::Cut(owned(a), owned(b))),
            ["\\heal"] => Ok(Self::Heal),
            ["\\status"] => Ok(Self::Status),
            ["\\rtt"] => Ok(Self::RoundTrips),
            ["\\load"] => Ok(Self::Load),
            ["\\help" | "\\h" | "\\?"] => Ok(Self::Help),
            ["\\q" | "\\quit"] => Ok(Self::Quit),
            [command @ ("\\c" | "\\connect" | "\\kill" | "\\start")] => {
                Err(format!("{command} takes a region"))
            }
            [command @ ("\\c" | "\\connect" | "\\kill" | "\\start"), _, extra, ..] => {
                Err(format!("{command} takes one region; {extra:?} is too much"))
            }
            ["\\cut", ..] => Err("\\cut takes two regions".to_owned()),
            [command @ ("\\d" | "\\dt" | "\\l" | "\\du" | "\\df" | "\\dn"), ..] => {
                Err(format!("{command} is a command of psql, which connects to the URLs above"))
            }
            _ => Err(format!("{} is not a command; \\help lists the commands", line.trim())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_that_is_helped_with_is_understood() {
        for line in HELP.lines().filter(|line| line.trim_start().starts_with('\\')) {
            let command = line.trim_start().split("  ").next().unwrap();
            assert!(command.parse::<Command>().is_ok(), "{command}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        assert_eq!("\\cut a b".parse(), Ok(Command::Cut("a".to_owned(), "b".to_owned())));
        assert_eq!("\\kill a  -- dies".parse(), Ok(Command::Kill("a".to_owned())));
        for (line, word) in [
            ("\\kill", "a region"),
            ("\\cut a", "two regions"),
            ("\\c a b", "\"b\" is too much"),
            ("\\d", "psql"),
            ("\\explode", "explode"),
        ] {
            let error = line.parse::<Command>().unwrap_err();
            assert!(error.contains(word), "{line}: {error}");
        }
    }
}
