//! What is fuzzed: every decoder of bytes from a disk or a network, each a target of its own.
//!
//! A target takes any bytes. It must not panic, overflow, hang or hold much memory, and what decodes must encode to
//! what decodes alike. Where a checksum would stop nearly every input at the door, the target puts the right one in,
//! so that what lies behind is reached. `fuzz/run` runs targets under libFuzzer; `tests/seeds.rs` runs each over its
//! seeds and a few thousand changes of them with every other test.

mod blocks;
mod catalogue;
mod client;
mod consumer;
mod files;
mod frame;
mod input;
mod peers;
mod requests;
mod sample;
mod stream;
mod text;
mod wal;

/// One decoder, or a few that read the same bytes.
pub struct Target {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it decodes.
    pub about: &'static str,
    /// Real values, encoded: where the search starts.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Decodes.
    ///
    /// Panics if the decoder does, or if it contradicts itself.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target {
        name: "client",
        about: "client operations, in one piece and in several",
        seeds: client::seeds,
        run: client::run,
    },
    Target { name: "headers", about: "header blocks", seeds: text::header_seeds, run: text::headers },
    Target {
        name: "subjects",
        about: "subjects, filter sets, interest, API routes, ack subjects",
        seeds: text::subject_seeds,
        run: text::subjects,
    },
    Target {
        name: "scalars",
        about: "durations, times, ack payloads, TTLs",
        seeds: text::scalar_seeds,
        run: text::scalars,
    },
    Target {
        name: "requests",
        about: "CONNECT, JetStream API bodies, pulls, direct gets, and their rules",
        seeds: requests::seeds,
        run: requests::run,
    },
    Target { name: "frame", about: "frames and the scan for them", seeds: frame::seeds, run: frame::run },
    Target {
        name: "stream-log",
        about: "frames of every kind, applied to a stream",
        seeds: stream::log_seeds,
        run: stream::log,
    },
    Target { name: "stream-image", about: "the image of a stream", seeds: stream::image_seeds, run: stream::image },
    Target {
        name: "consumer-ops",
        about: "consumer operations, applied",
        seeds: consumer::op_seeds,
        run: consumer::ops,
    },
    Target {
        name: "consumer-image",
        about: "the image of a stream's consumers",
        seeds: consumer::image_seeds,
        run: consumer::image,
    },
    Target {
        name: "catalogue",
        about: "catalogue entries, applied, and its image",
        seeds: catalogue::seeds,
        run: catalogue::run,
    },
    Target { name: "files", about: "checkpoints, hard state, replica files", seeds: files::seeds, run: files::run },
    Target { name: "wal", about: "log segments: scan, open, read, write", seeds: wal::seeds, run: wal::run },
    Target {
        name: "blocks",
        about: "block files and their checkpoint: open, read, write",
        seeds: blocks::seeds,
        run: blocks::run,
    },
    Target {
        name: "inspect",
        about: "a store with any files, as text",
        seeds: files::inspect_seeds,
        run: files::inspect,
    },
    Target {
        name: "transport",
        about: "frames of a link between nodes, and the handshake",
        seeds: peers::transport_seeds,
        run: peers::transport,
    },
    Target {
        name: "raft",
        about: "Raft messages, heartbeats, log entries, the header of a snapshot",
        seeds: peers::raft_seeds,
        run: peers::raft,
    },
    Target {
        name: "broker",
        about: "interest and routed messages between nodes",
        seeds: peers::broker_seeds,
        run: peers::broker,
    },
    Target {
        name: "calls",
        about: "forwarded publishes, acks, API calls, admin bodies; snapshot marks",
        seeds: peers::call_seeds,
        run: peers::calls,
    },
];
