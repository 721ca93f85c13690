//! Runs with planted bugs, which need the feature `planted`.

#[path = "../simulation/geogauss_drawn.rs"]
mod geogauss_drawn;
mod kinds;
mod planted;
mod shrink;
#[path = "../simulation/tiga_drawn.rs"]
mod tiga_drawn;
