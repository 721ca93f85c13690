//! How programs run.
