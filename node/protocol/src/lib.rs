//! The language Headwater speaks: the NATS client protocol and the JetStream API.
//!
//! Pure: bytes in, values out, bytes out. There is no socket, clock or randomness here; times come in as
//! nanoseconds since the Unix epoch. What a stream or consumer *does* with a request lives in the core crate.
//!
//! | module | what it holds |
//! |---|---|
//! | [`decode`], [`encode`] | client protocol lines, both ways |
//! | [`subject`] | subject rules, wildcard matching |
//! | [`headers`] | `NATS/1.0` header blocks |
//! | [`info`], [`connect`] | the two JSON documents of a connection's start |
//! | [`wire_error`] | every `-ERR` text and whether it ends the connection |
//! | [`ack`], [`pub_ack`] | acknowledgements of deliveries and of publishes |
//! | [`pull`], [`direct`], [`status`] | pull requests, direct gets, status messages |
//! | [`duration`], [`rfc3339`] | Go durations and RFC 3339 times |
//! | [`api`] | `$JS.API`: routes, bodies, errors, validation |

// A panic here takes a node down, and the order of a hash map differs between replicas.
#![warn(clippy::unwrap_used, clippy::iter_over_hash_type)]

pub mod ack;
pub mod api;
pub mod connect;
pub mod decode;
pub mod direct;
pub mod duration;
pub mod encode;
pub mod headers;
pub mod info;
pub mod json;
pub mod pub_ack;
pub mod pull;
pub mod rfc3339;
pub mod status;
pub mod subject;
pub mod wire_error;
