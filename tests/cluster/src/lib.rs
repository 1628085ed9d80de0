//! Three real `headwater node` processes on loopback, killed, paused and wiped from outside, and
//! judged through NATS clients and the admin API only.
//!
//! The binary is `HEADWATER_BIN`, or `target/{debug,release}/headwater` beside the test. Pointed
//! at a `nats-server`, the same tests run against that one instead: what it promises too must
//! hold there, which keeps the tests honest. Checks that need Headwater's admin API are skipped
//! there ([`Cluster::is_headwater`]).
//!
//! Every process is killed when its [`Cluster`] is dropped. If the test failed, its directory with
//! logs and stores is kept, and its path printed.

mod admin;
mod cluster;
mod judge;
mod load;
mod node;
mod ports;
mod power_disk;
mod promise;
mod sampler;
mod server;
mod small_disk;

pub use admin::{Durability, Group, Recovery, Snapshot, Watermarks};
pub use cluster::{Cluster, DIRECT_VIEWS, Stopwatch, api};
pub use judge::Moment;
pub use load::{Load, LoadOptions, longest_gap};
pub use node::Node;
pub use power_disk::PowerDisk;
pub use promise::{Cause, Durable, Loss, Mode, SYNC_INTERVAL, promise};
pub use sampler::{Sampler, Samples};
pub use server::Server;
pub use small_disk::SmallDisk;
