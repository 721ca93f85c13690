//! Runs with planted bugs. They need the feature `planted`.

mod planted;
mod shrink;
