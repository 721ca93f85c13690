//! Runs with planted bugs, which need the feature `planted`.

mod planted;
mod shrink;
