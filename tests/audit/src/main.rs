//! `headwater-audit publish` writes a ledger, `headwater-audit verify` reads everything back.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Parser, Subcommand};
use headwater_audit::{Ledger, Publisher, Until, Verifier, Way};

#[derive(Parser)]
#[command(version, about = "Publishes with a ledger of every confirmation, and audits a stream against it")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Publish messages and write the ledger
    Publish(PublishArgs),
    /// Read the stream back from every server and compare
    Verify(VerifyArgs),
}

#[derive(Args)]
struct Target {
    /// Servers, comma-separated
    #[arg(long, default_value = "nats://127.0.0.1:4222", value_delimiter = ',')]
    servers: Vec<String>,
    /// The stream
    #[arg(long)]
    stream: String,
    /// The ledger file
    #[arg(long, default_value = "ledger.jsonl")]
    ledger: PathBuf,
}

#[derive(Args)]
struct PublishArgs {
    #[command(flatten)]
    target: Target,
    /// Subject to publish to; `{n}` becomes the message's number modulo --subjects
    #[arg(long)]
    subject: String,
    /// How many different numbers `{n}` takes
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..))]
    subjects: u64,
    /// Messages per publisher
    #[arg(long, default_value_t = 10_000)]
    msgs: u64,
    /// Publishers, each on its own connection
    #[arg(long, default_value_t = 1)]
    publishers: u32,
    /// Messages under way at once, per publisher
    #[arg(long, default_value_t = 256)]
    concurrency: usize,
    /// Payload size in bytes
    #[arg(long, default_value_t = 128)]
    size: usize,
    /// Seconds before a message without an answer is given up
    #[arg(long, default_value_t = 60)]
    give_up: u64,
}

#[derive(Args)]
struct VerifyArgs {
    #[command(flatten)]
    target: Target,
    /// Only batched direct gets and consumers, not one get per message
    #[arg(long)]
    batched: bool,
    /// The stream's limits may have removed its oldest messages
    #[arg(long)]
    limits: bool,
}

fn main() -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.into()),
    };
    let result = match Cli::parse().command {
        Command::Publish(args) => runtime.block_on(publish(&args)),
        Command::Verify(args) => runtime.block_on(verify(&args)),
    };
    match result {
        Ok(code) => code,
        Err(error) => failed(&error),
    }
}

fn failed(error: &anyhow::Error) -> ExitCode {
    // Nothing is left to be told of an error on standard error.
    let _ = writeln!(io::stderr(), "headwater-audit: {error:#}");
    ExitCode::from(2)
}

async fn publish(args: &PublishArgs) -> anyhow::Result<ExitCode> {
    let ledger = Ledger::new();
    let servers = &args.target.servers;
    let runs = (1..=args.publishers).map(|id| {
        let publisher = Publisher::new(id)
            .payload(args.size)
            .concurrency(args.concurrency)
            .give_up(Duration::from_secs(args.give_up));
        let ledger = ledger.clone();
        async move {
            let client =
                async_nats::connect(servers).await.with_context(|| format!("connecting to {}", servers.join(", ")))?;
            let subject = |n: u64| args.subject.replace("{n}", &(n % args.subjects).to_string());
            let done = publisher.run(&client, &args.target.stream, &ledger, subject, &Until::count(args.msgs)).await?;
            anyhow::Ok(done)
        }
    });
    let done = futures::future::try_join_all(runs).await?;
    ledger.write_to(BufWriter::new(File::create(&args.target.ledger)?))?;
    let (refused, unknown) =
        done.iter().fold((0, 0), |(refused, unknown), run| (refused + run.refused, unknown + run.unknown));
    writeln!(
        io::stdout(),
        "sent {}, confirmed {}, refused {refused}, unknown {unknown}",
        ledger.sent(),
        ledger.confirmed()
    )?;
    Ok(if refused + unknown == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn verify(args: &VerifyArgs) -> anyhow::Result<ExitCode> {
    let path = &args.target.ledger;
    let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let ledger = Ledger::read_from(BufReader::new(file))?;
    let mut nodes = Vec::new();
    for server in &args.target.servers {
        let client = async_nats::ConnectOptions::new()
            .ignore_discovered_servers()
            .connect(server)
            .await
            .with_context(|| format!("connecting to {server}"))?;
        nodes.push((server.clone(), client));
    }
    if nodes.is_empty() {
        bail!("--servers names no server");
    }
    let mut verifier = Verifier::new();
    if args.batched {
        verifier = verifier.ways(&[Way::DirectBatch, Way::Consumer]);
    }
    if args.limits {
        verifier = verifier.limits_may_remove();
    }
    let report = verifier.verify(&nodes, &args.target.stream, &ledger).await?;
    // The next audit of this ledger must know what this one saw.
    ledger.write_to(BufWriter::new(File::create(path)?))?;
    write!(io::stdout(), "{report}")?;
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
