//! Tests of the simulator, its checkers and the protocols. They are one binary, so that code that
//! is generic over the protocol is compiled once.

mod asynchronous_runs;
mod calvin_checkpoints;
mod calvin_runs;
mod calvin_stragglers;
mod catalog_runs;
mod clock_faults;
mod drawn;
mod geogauss_acks;
mod geogauss_drawn;
mod geogauss_runs;
mod kept_seeds;
mod mako_drawn;
mod mako_runs;
mod marked_faults;
mod marks;
mod minerva_runs;
mod predictions;
mod proof;
mod register_runs;
mod rejoin_runs;
mod runs;
mod scenarios;
mod steps;
mod tiga_clocks;
mod tiga_drawn;
mod tiga_fast;
mod tiga_links;
mod tiga_partial;
mod tiga_partial_drawn;
mod tiga_placed;
mod tiga_runs;
mod tiga_shards;
mod toy;
mod toy_runs;
mod upgrades;
