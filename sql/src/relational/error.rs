//! Conversion of errors to and from DataFusion's.

use datafusion::error::DataFusionError;

use crate::error::{SqlError, code};
use crate::exec::ROWS_BYTES_MAX;

/// Wraps an SQL error as a DataFusion error.
pub(super) fn wrapped(error: SqlError) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

/// Returns the SQL error within a DataFusion error, or an SQL error that describes it.
pub(super) fn unwrapped(error: &DataFusionError) -> SqlError {
    match error {
        DataFusionError::External(inner) => match inner.downcast_ref::<SqlError>() {
            Some(own) => own.clone(),
            None => match inner.downcast_ref::<DataFusionError>() {
                Some(deeper) => unwrapped(deeper),
                None => internal(error),
            },
        },
        DataFusionError::Context(_, inner) | DataFusionError::Diagnostic(_, inner) => {
            unwrapped(inner)
        }
        DataFusionError::Shared(inner) => unwrapped(inner),
        DataFusionError::Collection(all) => all.first().map_or_else(|| internal(error), unwrapped),
        DataFusionError::ResourcesExhausted(_) => {
            let message =
                format!("the query needs more than {} MB of memory", ROWS_BYTES_MAX >> 20);
            let hint = "Join, sort or group fewer rows at a time.";
            SqlError::new(code::OUT_OF_MEMORY, message).with_hint(hint)
        }
        DataFusionError::NotImplemented(what) => SqlError::unsupported(what),
        DataFusionError::Execution(what) if what.contains("more than one row") => {
            more_than_one_row()
        }
        _ => internal(error),
    }
}

/// The error for a scalar subquery that returns several rows.
pub(super) fn more_than_one_row() -> SqlError {
    let message = "more than one row returned by a subquery used as an expression";
    SqlError::new(code::CARDINALITY, message)
}

fn internal(error: &DataFusionError) -> SqlError {
    SqlError::new(code::INTERNAL, format!("the query could not be run: {error}"))
}
