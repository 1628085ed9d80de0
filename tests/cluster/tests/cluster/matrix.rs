//! Every kind of stream under every fault: {always, interval, noWait} × {async on, off} × {R1, R3, R5}, all of them at
//! once on five nodes, against what `promise` says, which is the table of `docs/operations/durability.md`.

use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use async_nats::jetstream;
use headwater_audit::{Ledger, Verifier, Way};
use headwater_cluster_tests::{Cause, Cluster, Durable, Load, LoadOptions, Loss, Mode, Moment, promise};

use crate::{can_cut_power, run_on, sleep};

const NODES: usize = 5;
const DISK_BYTES: u64 = 1 << 30;
/// Eighteen streams on five nodes that share two cores come back, some as new members.
const RECOVERED: Duration = Duration::from_secs(45);
/// More than an interval and the slack of the check before the fault, so that there is something that must not be lost.
const UNDER_LOAD_MS: u64 = 4000;
/// Publishers of a stream that may lose something end before its nodes come back: whoever is not answered by then.
const GIVE_UP: Duration = Duration::from_millis(1500);

/// One column of the matrix.
#[derive(Debug, Clone, Copy)]
struct Fault {
    name: &'static str,
    cause: Cause,
    victims: &'static [usize],
    /// Paused from half of the load on, and the first to come back.
    laggard: Option<usize>,
}

const FAULTS: [Fault; 6] = [
    Fault { name: "kill one", cause: Cause::Kill, victims: &[0], laggard: None },
    Fault { name: "kill all", cause: Cause::Kill, victims: &[0, 1, 2, 3, 4], laggard: None },
    Fault { name: "power of one", cause: Cause::Power, victims: &[1], laggard: None },
    Fault { name: "power of a majority", cause: Cause::Power, victims: &[1, 2, 3], laggard: None },
    Fault { name: "power of all", cause: Cause::Power, victims: &[0, 1, 2, 3, 4], laggard: None },
    Fault { name: "power of all, one behind", cause: Cause::Power, victims: &[0, 1, 2, 3, 4], laggard: Some(4) },
];

/// How many replicas of a stream of so many a fault of so many of all nodes hits at least, to be the same fault to it.
fn hits(replicas: usize, victims: usize) -> usize {
    if 2 * victims > NODES { replicas / 2 + 1 } else { 1 }
}

struct Cell {
    name: String,
    durable: Durable,
    promised: Loss,
    ledger: Ledger,
    load: Option<Load>,
}

fn cells() -> impl Iterator<Item = Durable> {
    Mode::ALL.into_iter().flat_map(|mode| {
        [true, false]
            .into_iter()
            .flat_map(move |async_flush| [1, 3, 5].map(|replicas| Durable { mode, async_flush, replicas }))
    })
}

/// Creates the stream so that the fault hits it as it should, and says how many of its replicas are hit. Who gets a
/// replica is the server's choice, which evens out: what lies elsewhere stays in `elsewhere` until all are placed.
async fn create(
    cluster: &mut Cluster,
    name: &str,
    durable: Durable,
    fault: Fault,
    elsewhere: &mut Vec<String>,
) -> anyhow::Result<(String, usize)> {
    let wanted = hits(durable.replicas, fault.victims.len());
    for attempt in 0..4 * NODES {
        let name = format!("{name}-{attempt}");
        cluster.create_stream(Cluster::durable_config(&name, durable)).await?;
        let info = cluster.stream_info(&name).await?;
        let members = cluster.members(&info);
        ensure!(members.len() == durable.replicas, "{name} lies on {members:?}");
        let hit = members.iter().filter(|node| fault.victims.contains(node)).count();
        // Nobody confirms anything on a node that is paused but those it is a minority of.
        let asleep = durable.replicas == 1 && fault.laggard.is_some_and(|laggard| members.contains(&laggard));
        let behind = fault.laggard.is_none_or(|laggard| members.contains(&laggard)) || durable.replicas == 1;
        if hit >= wanted && !asleep && behind {
            return Ok((name, hit));
        }
        elsewhere.push(name);
    }
    anyhow::bail!("{name}: never placed on {wanted} of {:?}", fault.victims)
}

/// One fault under all streams: each may lose what it is promised to lose at most, and goes on.
async fn strike(cluster: &mut Cluster, nth: usize, fault: Fault) -> anyhow::Result<String> {
    let began = Instant::now();
    let (mut all, mut elsewhere) = (Vec::new(), Vec::new());
    for durable in cells() {
        let flush = if durable.async_flush { "async" } else { "sync" };
        let name = format!("M{nth}-{}-{flush}-R{}", durable.mode.name(), durable.replicas);
        let (name, hit) = create(cluster, &name, durable, fault, &mut elsewhere).await?;
        let promised = promise(durable, fault.cause, hit);
        all.push(Cell { ledger: Ledger::named(&name), name, durable, promised, load: None });
    }
    let context = cluster.jetstream().await?;
    for name in elsewhere {
        context.delete_stream(name).await?;
    }
    for cell in &mut all {
        let mut options = LoadOptions::on(&cell.name).publishers(1).rate(40.0);
        if cell.promised != Loss::Nothing {
            options = options.give_up(GIVE_UP);
        }
        cell.load = Some(Load::start(cluster, &cell.name, &cell.ledger, options).await?);
    }
    let created = began.elapsed();
    sleep(UNDER_LOAD_MS / 2).await;
    if let Some(laggard) = fault.laggard {
        cluster.pause(laggard)?;
    }
    sleep(UNDER_LOAD_MS / 2).await;
    let (cut, struck) = (Moment::now(), Instant::now());
    match fault.cause {
        Cause::Kill => fault.victims.iter().try_for_each(|node| cluster.kill9(*node))?,
        Cause::Power => cluster.cut_power(fault.victims)?,
    }
    for cell in all.iter_mut().filter(|cell| cell.promised != Loss::Nothing) {
        finish(cell).await?;
    }
    // Whoever was behind is there first.
    if let Some(laggard) = fault.laggard {
        cluster.restart(laggard)?;
        sleep(500).await;
    }
    cluster.start_all().await?;
    cluster.wait_all_recovered(RECOVERED).await?;
    let recovered = struck.elapsed();
    for cell in &mut all {
        finish(cell).await?;
    }
    let (mut confirmed, mut lost) = (0, 0);
    let (judged, ways) = (Instant::now(), [Way::DirectBatch]);
    for cell in &all {
        let Cell { name, durable, promised, ledger, .. } = cell;
        // A leader that is paused, or elected anew, takes a part of the load.
        ensure!(ledger.confirmed() > UNDER_LOAD_MS / 200, "{name}: only {} confirmed", ledger.confirmed());
        confirmed += ledger.confirmed();
        let verdict = cluster.judge(Verifier::new().ways(&ways), name, ledger, *promised, cut).await;
        lost += verdict.with_context(|| format!("{}, {durable:?}", fault.name))?;
        goes_on(cluster, &context, name).await?;
        context.delete_stream(name).await?;
    }
    Ok(format!(
        "{}: 18 streams, {confirmed} confirmed, {lost} lost as promised; created in {:.1} s, recovered {:.1} s after the fault, read in {:.1} s",
        fault.name,
        created.as_secs_f64(),
        recovered.as_secs_f64(),
        judged.elapsed().as_secs_f64()
    ))
}

async fn finish(cell: &mut Cell) -> anyhow::Result<()> {
    if let Some(load) = cell.load.take() {
        load.finish().await?;
    }
    Ok(())
}

/// A message more gets the next sequence.
async fn goes_on(cluster: &mut Cluster, context: &jetstream::Context, name: &str) -> anyhow::Result<()> {
    let last = cluster.stream_info(name).await?.state.last_sequence;
    let ack = context.publish(format!("{name}.again"), "x".into()).await?.await?;
    ensure!(ack.sequence == last + 1, "{name}: sequence {} after {last}", ack.sequence);
    Ok(())
}

/// B01, B08, B12, B20: the whole matrix.
#[test]
fn b08_every_mode_under_every_fault() {
    if !can_cut_power() {
        return;
    }
    run_on(Cluster::on_power_disks(NODES, DISK_BYTES), async |cluster| {
        for (nth, fault) in FAULTS.into_iter().enumerate() {
            let said = strike(cluster, nth, fault).await?;
            let _shown_or_not = writeln!(std::io::stderr(), "{said}");
        }
        Ok(())
    });
}
