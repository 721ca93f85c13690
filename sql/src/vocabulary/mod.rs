//! Words that the modules above share: names, columns, kinds of functions, and constants. Nothing
//! here is evaluated, and nothing here knows an expression.

pub(crate) mod aggregate;
pub(crate) mod column;
pub(crate) mod cursor;
pub(crate) mod deferred;
pub(crate) mod name;
pub(crate) mod quoting;
pub(crate) mod reserved;
pub(crate) mod set_function;
pub(crate) mod system;
pub(crate) mod variables;
pub(crate) mod window;
