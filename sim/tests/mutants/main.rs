//! Runs with planted bugs, which need the feature `planted`.

#[path = "../simulation/geogauss_drawn.rs"]
mod geogauss_drawn;
mod kinds;
#[path = "../simulation/mako_divided.rs"]
mod mako_divided;
#[path = "../simulation/mako_drawn.rs"]
mod mako_drawn;
#[path = "../simulation/mako_moving.rs"]
mod mako_moving;
mod planted;
mod shrink;
#[path = "../simulation/tiga_drawn.rs"]
mod tiga_drawn;
