//! Runs with planted bugs, which need the feature `planted`.

mod kinds;
mod planted;
mod shrink;
