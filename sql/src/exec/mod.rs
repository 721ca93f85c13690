//! Plans run over a context.

pub(crate) mod aggregate;
