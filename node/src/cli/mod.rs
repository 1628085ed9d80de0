//! The commands of the binary. Printing to the terminal is their purpose.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "commands talk to the person who typed them")]

pub(crate) mod demo;
pub(crate) mod dev;
pub(crate) mod inspect;
pub(crate) mod local;
pub(crate) mod recover;
pub(crate) mod recovery;
mod table;

use std::future::Future;
use std::io::IsTerminal;
use std::process::ExitCode;

use crate::config::{self, NodeArgs};

/// Exit code for bad flags or settings, as clap has it.
const USAGE: u8 = 2;

pub(crate) fn node(args: NodeArgs) -> ExitCode {
    let config = match config::load(args) {
        Ok(config) => config,
        Err(problems) => {
            for problem in problems {
                eprintln!("headwater: {problem}");
            }
            return ExitCode::from(USAGE);
        }
    };
    telemetry("info");
    run(crate::node::run(config))
}

/// Runs a command on one thread: the node's data thread, or a small client's only one.
pub(crate) fn run(command: impl Future<Output = anyhow::Result<ExitCode>>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // A turn serves many ready sockets before it looks for new ones: larger batches under load.
        .event_interval(61)
        .build();
    let outcome = match runtime {
        Ok(runtime) => runtime.block_on(command),
        Err(e) => Err(e.into()),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("headwater: {error:#}");
        ExitCode::FAILURE
    })
}

/// Logs to stderr; `HEADWATER_LOG` takes a filter, `HEADWATER_LOG_FORMAT=json` one object a line.
pub(crate) fn telemetry(default: &str) {
    let fallback = format!("{default},{}", crate::raft::LOG_FILTER);
    let filter = tracing_subscriber::EnvFilter::try_from_env("HEADWATER_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(fallback));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false);
    if std::env::var("HEADWATER_LOG_FORMAT").is_ok_and(|v| v == "json") {
        builder.json().init();
    } else {
        builder.init();
    }
}
