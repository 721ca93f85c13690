//! The isolation levels of the clients' sessions.

use fastrand::Rng;
use pangea_core::guarantee::Isolation;
use pangea_sim::Levels;

use super::work::Work;
use crate::failure::Failure;
use crate::protocol::{OfferedLevels, with_protocol};

/// The levels that SQL has names for.
const IN_SQL: [Isolation; 3] =
    [Isolation::ReadCommitted, Isolation::Snapshot, Isolation::Serializable];

/// Returns the levels of sessions: those of `--isolation`, or else one that the protocol offers or
/// all of them, drawn from the seed. Each session draws one of several.
///
/// # Errors
/// If SQL has no name for a level, or the protocol does not offer it.
pub fn of_sessions(
    given: Option<Levels>,
    (protocol, options): (&str, &toml::Table),
    seed: u64,
) -> Result<Levels, Failure> {
    let offered = with_protocol(protocol, OfferedLevels(options))??;
    let named = Levels::of(IN_SQL.into_iter()).expect("SQL has names for levels");
    let wanted = match given {
        None | Some(Levels::MIXED) => named,
        Some(levels) if levels.all().all(|level| IN_SQL.contains(&level)) => levels,
        Some(levels) => {
            let message = format!(
                "--isolation {levels}: SQL has no name for repeatable-read: its REPEATABLE READ is \
                 snapshot-isolation"
            );
            return Err(Failure::Usage(message));
        }
    };
    let granted = wanted.granted(offered).ok_or_else(|| {
        Failure::Usage(format!(
            "--isolation {wanted}: protocol {protocol} does not offer it with these settings"
        ))
    })?;
    if given.is_some() {
        return Ok(granted);
    }
    let all: Vec<Isolation> = granted.all().collect();
    let drawn = all.get(Rng::with_seed(seed).usize(..=all.len())).copied();
    Ok(drawn.map_or(granted, Levels::from))
}

/// The statement that sets the level of a session.
pub fn statement(level: Isolation) -> String {
    let name = match level {
        Isolation::ReadCommitted => "read committed",
        Isolation::RepeatableRead | Isolation::Snapshot => "repeatable read",
        Isolation::Serializable => "serializable",
    };
    format!("set default_transaction_isolation = '{name}'")
}

/// The level that a transaction is held to, if it is not the strictest. What reads one snapshot and
/// writes nothing is serializable at every level.
pub fn held_to(level: Isolation, work: &Work) -> Option<Isolation> {
    let has_one_snapshot = match work {
        Work::Autocommit(_) => true,
        Work::Block(_) => level >= Isolation::Snapshot,
    };
    let is_strictest = level == Isolation::Serializable || (has_one_snapshot && !work.is_write());
    (!is_strictest).then_some(level)
}

#[cfg(test)]
mod tests {
    use super::super::work::Step;
    use super::*;
    use Isolation::{ReadCommitted, RepeatableRead, Serializable, Snapshot};

    #[test]
    fn a_protocol_with_one_level_has_no_other_and_the_seed_draws_among_several() {
        let of = |protocol: &str, given, seed| {
            of_sessions(given, (protocol, &toml::Table::new()), seed)
                .map_err(|failure| failure.to_string())
        };
        for seed in 0..5 {
            assert_eq!(of("minerva", None, seed), Ok(Serializable.into()));
        }
        assert_eq!(of("minerva", Some(ReadCommitted.into()), 1), Ok(Serializable.into()));
        let drawn: Vec<Levels> = (0..50).map(|seed| of("geogauss", None, seed).unwrap()).collect();
        let several = Levels::of(IN_SQL.into_iter()).unwrap();
        for levels in [ReadCommitted.into(), Snapshot.into(), Serializable.into(), several] {
            assert!(drawn.contains(&levels), "{levels}");
        }
        assert_eq!(of("geogauss", Some(Levels::MIXED), 1), Ok(several));
        let unnamed = of("geogauss", Some(RepeatableRead.into()), 1).unwrap_err();
        assert!(unnamed.contains("snapshot-isolation"), "{unnamed}");
    }

    #[test]
    fn what_reads_one_snapshot_is_held_to_the_strictest_level() {
        let (read, write) = (Step::ReadEvery, Step::AppendEvery);
        let block = |step| Work::Block(vec![read, step]);
        for level in [ReadCommitted, Snapshot] {
            assert_eq!(held_to(level, &Work::Autocommit(read)), None);
            assert_eq!(held_to(level, &Work::Autocommit(write)), Some(level));
            assert_eq!(held_to(level, &block(write)), Some(level));
        }
        assert_eq!(held_to(ReadCommitted, &block(read)), Some(ReadCommitted));
        assert_eq!(held_to(Snapshot, &block(read)), None);
        assert_eq!(held_to(Serializable, &block(write)), None);
    }
}
