//! Flips a bit in the memory of a running node for each SIGUSR1, so that `pangea torture --faults
//! flip` can show what finds it. Only in builds with the feature `planted`.

use std::sync::Arc;

use pangea_sql::engine::Engine;
use tokio::signal::unix::{SignalKind, signal};

/// The number of the newest tables among which a row is chosen. Those of a torture are created
/// last, after the tables of the catalog.
const TABLES: usize = 6;

/// Flips a bit of a row for each signal, forever.
pub async fn flip_on_signals(engine: Arc<dyn Engine>) {
    let mut signals = signal(SignalKind::user_defined1()).expect("the system has this signal");
    let mut rng = fastrand::Rng::new();
    while signals.recv().await.is_some() {
        let store = engine.store();
        let mut tables: Vec<_> = store.table_ids().into_iter().rev().take(TABLES).collect();
        rng.shuffle(&mut tables);
        let flip = |table| Some((table, store.flip_some(table, rng.u64(..))?));
        match tables.into_iter().find_map(flip) {
            Some((table, key)) => tracing::warn!("flipped a bit of {key:?} in {table:?}"),
            None => tracing::warn!("there is no row to flip"),
        }
    }
}
