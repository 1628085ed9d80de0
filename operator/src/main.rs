//! `headwater-operator`: watches `Stream` and `StreamCluster` objects and brings clusters to what they say.
//!
//! A shell: it reads Kubernetes and the nodes, asks the planner (`headwater-plan`) for the next safe step, performs it and
//! reports. Decisions are the planner's.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

mod backoff;
mod cli;
mod cluster_controller;
mod cluster_status;
mod context;
mod events;
mod finalizer;
mod http;
mod lease;
mod metrics;
mod news;
mod objects;
mod observatory;
mod reconcile;
mod run;
mod stop;
mod stream_controller;
mod stream_pass;

use cli::{Cli, Command, LogFormat, Settings};

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Crds => print(&crds()),
        Command::Run(args) => match args.validate() {
            Ok(settings) => run_until_stopped(&settings),
            Err(problems) => {
                for problem in problems {
                    complain(&problem);
                }
                ExitCode::from(2)
            }
        },
    }
}

/// Both CRDs as one YAML text.
fn crds() -> String {
    let documents: Vec<String> = headwater_crds::crd::all().iter().map(headwater_crds::crd::yaml).collect();
    documents.join("---\n")
}

fn run_until_stopped(settings: &Settings) -> ExitCode {
    start_log(settings.log_format);
    // Both HTTP clients take the process-wide provider; a second installation would fail, and there is none before.
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        complain("a TLS provider was installed already");
        return ExitCode::FAILURE;
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            complain(&format!("cannot start: {error}"));
            return ExitCode::FAILURE;
        }
    };
    // Dropping the runtime afterwards ends every task, which is what losing the lease demands.
    match runtime.block_on(run::run(settings)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "stopped");
            ExitCode::FAILURE
        }
    }
}

fn start_log(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().init(),
    }
}

fn print(text: &str) -> ExitCode {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("cannot write: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// One line on standard error; if even that fails there is nobody left to tell.
fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "headwater-operator: {text}");
}
