//! `headwater`: a durable, replicated stream store that speaks NATS and JetStream.
//!
//! All of it is in this library, `main.rs` only starts it; the fuzz targets reach the decoders here ([`decoders`]).
#![cfg_attr(not(test), warn(clippy::print_stdout))]

mod admin;
mod broker;
mod cli;
mod client;
mod clock;
mod config;
#[doc(hidden)]
pub mod decoders;
mod handover;
mod identity;
mod jetstream;
mod join;
mod log_check;
mod meta;
mod node;
mod planner;
mod raft;
mod regroup;
mod space;
mod stream;
mod transport;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Durable, replicated streams under the NATS protocol and the JetStream API.
#[derive(Parser)]
#[command(name = "headwater", version, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run one node
    Node(Box<config::NodeArgs>),
    /// Run a cluster on this machine and keep its streams as the given manifests say
    Dev(cli::dev::DevArgs),
    /// Show every replica: its phase, what is applied and what is safe on disk
    Recovery(cli::recovery::RecoveryArgs),
    /// Go on from the replicas that are left, when the others never come back
    Recover(cli::recover::RecoverArgs),
    /// Three nodes, 100 000 messages, two kill -9, one durability change, and a count of what was lost
    Demo(cli::demo::DemoArgs),
    /// Print a store folder as text
    Inspect(cli::inspect::InspectArgs),
}

/// Does what the command line says.
pub fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Node(args) => cli::node(*args),
        Command::Dev(args) => cli::run(cli::dev::run(args)),
        Command::Recovery(args) => cli::run(cli::recovery::run(args)),
        Command::Recover(args) => cli::run(cli::recover::run(args)),
        Command::Demo(args) => cli::run(cli::demo::run(args)),
        Command::Inspect(args) => cli::inspect::run(&args),
    }
}
