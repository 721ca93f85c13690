//! Tiga: transactions are ordered by timestamps in the near future.
//!
//! From "Tiga: Accelerating Geo-Distributed Transactions with Synchronized Clocks". A coordinator
//! gives each transaction a timestamp, here called its [`Stamp`](stamp::Stamp), at which the
//! transaction should have arrived everywhere. Replicas keep it until their clocks have passed the
//! stamp, and take transactions in the order of their stamps. If it arrives in time everywhere, it
//! commits after one round trip. If it is late at a shard, the leader of the shard raises its
//! stamp, and all leaders must move it.
//!
//! ```text
//!                stamped 10                     clock passes 10
//!   coordinator  --+--------------------------------:-----------
//!   leader a       `--> [.. 7][10 T]   (waits)      :  at the head: ready --+--> released
//!   leader b       `-------> [10 T][12 ..]          :  at the head: ready --+--> released
//!                            by stamp               :         they tell each other
//! ```
//!
//! This is the order of transactions alone: one leader for each shard, no replication and no
//! messages on a wire. No node runs it yet.
//!
//! | phase | paper | file | messages | known after |
//! |---|---|---|---|---|
//! | stamps | §3.1 | `stamp.rs` | | a place in the serial order |
//! | arrival, expiry and release | §3.2, §3.3, Algorithm 1 | `order.rs` | | the stamp on this shard |
//! | timestamp agreement | §3.5, §3.6 | `timestamp_agreement.rs` | Stamped, Ready | one stamp on all shards |
//! | watermarks | §6 | `watermarks.rs` | Stamped, Watermark | that nothing will come before a stamp |
//!
//! The queue and its floors are in [`pangea_core::exec::timed`], because they know no messages.
//!
//! # The rules
//!
//! 1. *Accepted.* A leader accepts a transaction above the floors of its footprint. If the stamp is
//!    too small, the leader raises it to just above the floor.
//! 2. *Ready.* A transaction is ready when the clock has passed its stamp and no pending one with a
//!    smaller stamp conflicts with it. Its floors are raised at this moment, before it runs, so
//!    that nothing that conflicts can come before it any more.
//! 3. *Moved.* A leader that hears a larger stamp of a pending transaction moves it there. Stamps
//!    only grow. If the transaction was ready, its run is void.
//! 4. *Released.* With `heads`, when all of its leaders have it ready at one stamp. With
//!    `watermarks`, when all have told their stamps, and nobody accepts anything below the largest.
//!
//! # Invariants
//!
//! - No transaction is pending at or below a floor of its footprint, unless it is ready itself.
//! - A ready transaction is at the head until it is released or moves.
//! - A transaction is released at one stamp on all shards.
//! - Transactions that conflict are released in the order of their stamps, on each shard.
//!
//! # Differences from the paper
//!
//! Published forms of the protocol tell stamps at different moments. `exhaustive.rs` visits every
//! order of events in small cases, and finds the following errors.
//!
//! - **A stamp that was raised is told at once.** In Algorithm 1, leaders tell stamps after the
//!   execution only. Then two leaders can wait for each other forever: T1 is late at one shard and
//!   is raised behind T2 there, and is before T2 at the other shard. Each leader waits for the word
//!   of the other on the transaction that the other has second.
//! - **Readiness is told at the head only, and not on arrival or expiry.** §3.8 says that leaders
//!   agree before the execution. If they do so while other transactions are before, a transaction
//!   can be released although one before it on another shard has not begun to be agreed on. A chain
//!   of such transactions contradicts real time. The agreement before the execution is right if
//!   *ready* takes the place of *executed*.
//! - **With bounded clocks, stamps are exchanged.** §6 omits all coordination between leaders. A
//!   transaction that is late on one shard then has different stamps, and two transactions run in
//!   opposite orders on two shards.
//! - **A stamp is raised to just above the floor**, and not to the clock. A clock that is ahead
//!   would keep rows unusable until the other clocks reach it.
//! - **Equal stamps do not exist**, because each issuer has its own.
//! - **Floors are kept for a time only**, and for ranges, too.
//! - **`watermarks` is new**: it needs no second round, and its stamps agree with real time.

#[cfg(test)]
mod exhaustive;
pub mod order;
pub mod stamp;
pub mod timestamp_agreement;
pub mod watermarks;
