//! Setup of the store and the evictor from a node's settings.

use std::sync::Arc;
use std::time::Duration;

use pangea_core::protocol::Protocol;
use pangea_core::store::Store;

use super::{ColdFile, ColdThreads, OnFetched, OnPanic};
use crate::data_dir::{DataDir, DataDirError};
use crate::disk::DiskError;
use crate::driver::Inbox;
use crate::log::remove_if_there;
use crate::node::{NodeOptions, StartError};

/// Creates the store, with a file of cold values if memory is limited. Deletes a file left by an
/// earlier run.
pub(crate) fn new_store<P: Protocol>(
    options: &NodeOptions<P>,
    data_dir: Option<&DataDir>,
    inbox: &Arc<Inbox<P>>,
) -> Result<Arc<Store>, StartError> {
    let Some(data_dir) = data_dir else { return Ok(Arc::new(Store::new())) };
    let path = data_dir.cold();
    let Some(bytes) = options.tuning.memory_bytes() else {
        remove_if_there(options.disk.as_ref(), &path).map_err(DataDirError::from)?;
        return Ok(Arc::new(Store::new()));
    };
    let inbox = inbox.clone();
    let on_error = move |reason: String| inbox.fail(reason);
    let latency = Duration::from_millis(options.tuning.cold_latency_ms);
    let file = ColdFile::create(&path, latency, Arc::new(on_error));
    let file = file.map_err(DiskError::new("make", &path)).map_err(DataDirError::from)?;
    Ok(Arc::new(Store::with_cold(Box::new(file), bytes)))
}

/// Starts the threads that keep memory below its limit, if there is a limit.
pub(crate) fn cold_threads_of<P: Protocol>(
    store: &Arc<Store>,
    inbox: &Arc<Inbox<P>>,
) -> Result<Option<ColdThreads>, StartError> {
    let (fetched, failed) = (inbox.clone(), inbox.clone());
    let on_fetched: OnFetched = Arc::new(move |token, took| fetched.on_fetched(token, took));
    let on_panic: OnPanic =
        Arc::new(move |reason| failed.fail(format!("the node stopped: {reason}")));
    let start = || ColdThreads::start(store, &on_fetched, &on_panic);
    let cold_threads = store.has_cold().then(start).transpose();
    cold_threads.map_err(|error| StartError::Threads(error.to_string()))
}
