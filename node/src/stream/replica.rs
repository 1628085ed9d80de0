//! One replica of one stream on this node: its state, its store, and, while it leads, its sequencer.
//!
//! Replicated streams apply what their Raft group commits; a stream with one replica applies what its own sequencer
//! seals, in the same order and through the same code ([`super::local`]).

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use headwater_core::consumer::{EndReason, PumpAction};
use headwater_core::durability::{Durability, SyncMode};
use headwater_core::frame::{Frame, FrameKind};
use headwater_core::ids::{GroupId, LogIndex, LogPosition, Ordinal, RaftNodeId, StreamId};
use headwater_core::recovery::{Phase, PhaseLatch};
use headwater_core::stream::{Applied, Outcome, StreamEvent, StreamState};
use headwater_storage::FileError;
use headwater_storage::replica_file::ReplicaFile;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use super::acks::AckWriter;
use super::flush::{Flushing, StateSample};
use super::forward::Fate;
use super::gate::{Answers, Gate, Need};
use super::leading::{CommandFate, Leading};
use crate::broker::Inbound;
use crate::log_check;
use crate::node::Context;
use crate::raft::transfer::Staged;
use crate::raft::{Committed, EffectiveSync, LEADER_LEASE_MS, LogPos, Members, RaftGroup, Replica, Role, SnapshotHead};

/// What a replica is opened from; the catalogue's record and this node's place in it.
#[derive(Clone, Debug)]
pub(crate) struct ReplicaSpec {
    pub(crate) stream: StreamId,
    pub(crate) group: GroupId,
    pub(crate) raft_id: RaftNodeId,
    pub(crate) name: String,
    pub(crate) replicas: u32,
}

/// Everything that changes, under one lock that is never held across an await.
pub(crate) struct Inner {
    pub(crate) state: StreamState,
    pub(crate) store: headwater_storage::blocks::StreamStore,
    pub(crate) members: Members,
    pub(crate) leading: Option<Leading>,
    pub(crate) gate: Gate,
    pub(crate) flushing: Flushing,
    pub(crate) phase: PhaseLatch,
    /// The configuration allows direct gets.
    pub(crate) allow_direct: bool,
    /// Why this replica stopped; it serves nothing until it is opened anew from its files.
    pub(crate) failed: Option<Failure>,
    /// What could not be read, while this replica goes on without it.
    pub(crate) hole: Option<String>,
    /// Position and membership that the files stood at when they were opened.
    recovered: (Option<LogPos>, Members),
}

/// Why a replica stopped.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) why: String,
    /// Opening it anew may help, once what failed works again: a full disk, for one.
    pub(crate) passes: bool,
}

impl Inner {
    pub(crate) fn stored(&self) -> LogIndex {
        self.store.stored().unwrap_or(LogIndex::new(0))
    }

    pub(crate) fn store_synced(&self) -> LogIndex {
        self.store.synced().unwrap_or(LogIndex::new(0))
    }
}

pub(crate) struct StreamReplica {
    pub(crate) spec: ReplicaSpec,
    pub(crate) context: Arc<Context>,
    pub(crate) inner: Mutex<Inner>,
    /// Frames wait to be proposed, leadership may have changed, or a checkpoint was published.
    pub(crate) wake: Notify,
    /// Consumers may have something to do.
    pub(crate) pump_wake: Notify,
    /// Publishers that wait for room in flight.
    pub(crate) room: Notify,
    pub(crate) sync: Arc<EffectiveSync>,
    /// The Raft member; replaced when its task died and was reopened.
    raft: Mutex<Option<RaftGroup>>,
    /// Mirrors `inner.leading`, for readers that must not wait.
    leads: AtomicBool,
    /// Until then, in milliseconds of this process, nobody else can lead.
    leads_until_ms: AtomicU64,
    /// Mirrors `inner.failed`.
    stopped: AtomicBool,
    closing: AtomicBool,
    intake_closed: AtomicBool,
    pumps_stopped: AtomicBool,
    adopting: AtomicBool,
    /// The group's task is to end and start again.
    starting_over: AtomicBool,
    /// This member asks for no votes until there is a leader.
    sits_out: AtomicBool,
    /// Waits until its peers can do without it.
    stepping_aside: AtomicBool,
    /// The disks of too many voters have too little room for more messages.
    short_of_room: AtomicBool,
    /// The log's queue on this node is full twice over.
    log_is_stuck: AtomicBool,
    /// What the disk remembers of this member.
    file: Mutex<ReplicaFile>,
    /// Node of the leader that this member follows; 0 is none.
    leader: AtomicU64,
    pub(crate) acks: AckWriter,
    pub(crate) dir: PathBuf,
}

/// Applying waits while the store has this many bytes in memory that are not in its files (I-14).
pub(super) const DIRTY_BYTES_MAX: u64 = 64 << 20;
/// Publishers are refused while so many bytes wait for the node's log (I-14): twice the bound at which they are asked to
/// wait. Looked at ten times a second, so it may be exceeded by what comes in that time.
const LOG_QUEUE_BYTES_MAX: usize = 128 << 20;
/// How often it is looked whether the flusher is done.
const LOOK_EVERY: Duration = Duration::from_millis(2);

impl StreamReplica {
    pub(crate) fn new(
        context: Arc<Context>,
        spec: ReplicaSpec,
        dir: PathBuf,
        file: ReplicaFile,
        opened: super::open::Opened,
        snapshot: Option<super::snapshot::SnapshotMark>,
        phase: PhaseLatch,
    ) -> Arc<Self> {
        let sync = EffectiveSync::new(SyncMode::Always);
        let acks = AckWriter::new(context.broker.clone(), context.transport.clone(), &spec.name);
        let super::open::Opened { state, store, head: recovered } = opened;
        let members = recovered.1.clone();
        let replica = Arc::new(Self {
            spec,
            context,
            inner: Mutex::new(Inner {
                state,
                store,
                members,
                leading: None,
                gate: Gate::default(),
                flushing: Flushing::new(recovered.clone(), snapshot),
                phase,
                allow_direct: false,
                failed: None,
                hole: None,
                recovered,
            }),
            wake: Notify::new(),
            pump_wake: Notify::new(),
            room: Notify::new(),
            sync,
            raft: Mutex::new(None),
            leads: AtomicBool::new(false),
            leads_until_ms: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            intake_closed: AtomicBool::new(false),
            pumps_stopped: AtomicBool::new(false),
            adopting: AtomicBool::new(false),
            starting_over: AtomicBool::new(false),
            sits_out: AtomicBool::new(false),
            stepping_aside: AtomicBool::new(false),
            short_of_room: AtomicBool::new(false),
            log_is_stuck: AtomicBool::new(false),
            file: Mutex::new(file),
            leader: AtomicU64::new(0),
            acks,
            dir,
        });
        replica.adopt_durability(&mut replica.inner.lock());
        replica
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// The Raft member; `None` for a stream with one replica, and before the group runs.
    pub(crate) fn raft(&self) -> Option<RaftGroup> {
        self.raft.lock().clone()
    }

    pub(crate) fn set_raft(&self, raft: RaftGroup) {
        *self.raft.lock() = Some(raft);
    }

    pub(crate) fn raft_state(&self) -> Option<crate::raft::GroupState> {
        self.raft().map(|raft| raft.state())
    }

    /// The group is reopened on its storage while this process lives: what is applied stays applied.
    pub(crate) fn reopen(&self) {
        let mut inner = self.lock();
        let applied = inner.state.applied();
        if applied.index.get() > 0 {
            inner.recovered = (Some(applied), inner.members.clone());
        }
    }

    /// Looks whether there is room for more messages: on the disks of enough of the voters, and in the log's queue here.
    pub(super) fn look_for_room(&self) {
        self.log_is_stuck.store(self.context.wal.queued_bytes() >= LOG_QUEUE_BYTES_MAX, Ordering::Release);
        let voters = self.raft_state().map(|raft| raft.members.voters());
        let voters = voters.unwrap_or_else(|| [self.spec.raft_id.get()].into());
        self.short_of_room.store(!crate::space::has_room(&self.context, &voters), Ordering::Release);
    }

    /// Whether messages are refused for lack of room, here or at too many of the others.
    pub(super) fn lacks_room(&self) -> bool {
        self.context.space.is_low() || self.short_of_room.load(Ordering::Acquire)
    }

    /// Whether so much waits for this node's log that it cannot be getting to the disk, whatever the other voters confirm.
    pub(super) fn log_is_stuck(&self) -> bool {
        self.log_is_stuck.load(Ordering::Acquire)
    }

    /// Whether this replica leads and takes publishes.
    pub(crate) fn leads(&self) -> bool {
        self.leads.load(Ordering::Acquire)
    }

    /// Whether nobody else can lead by now, as this one does: it may answer for the stream. One that was stopped for a
    /// while, or cut off, has to hear from the others first.
    pub(crate) fn leads_alone(&self) -> bool {
        if !self.is_replicated() {
            return true;
        }
        let now = u64::try_from(self.context.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        if now < self.leads_until_ms.load(Ordering::Acquire) {
            return true;
        }
        let Some(state) = self.raft_state() else { return false };
        let left = match state.quorum_ack_ms {
            _ if state.members.voters().len() == 1 => LEADER_LEASE_MS,
            Some(ms) => LEADER_LEASE_MS.saturating_sub(ms),
            None => 0,
        };
        let leads = state.role == Role::Leader && left > 0;
        if leads {
            self.leads_until_ms.store(now.saturating_add(left), Ordering::Release);
        }
        leads
    }

    pub(crate) fn set_leads(&self, leads: bool) {
        self.leads.store(leads, Ordering::Release);
    }

    pub(crate) fn followed_leader(&self) -> Option<u64> {
        Some(self.leader.load(Ordering::Acquire)).filter(|id| *id != 0)
    }

    pub(crate) fn follow(&self, leader: Option<u64>) {
        self.leader.store(leader.unwrap_or(0), Ordering::Release);
    }

    /// The group's task ends and starts again on the same log. Without `stands`, this member asks for no votes until
    /// there is a leader.
    pub(crate) fn start_over(&self, stands: bool) {
        self.sits_out.store(!stands, Ordering::Release);
        self.starting_over.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    pub(crate) fn is_starting_over(&self) -> bool {
        self.starting_over.load(Ordering::Acquire)
    }

    /// True if the group's task ended because it was told to, which it now was.
    pub(super) fn has_started_over(&self) -> bool {
        self.starting_over.swap(false, Ordering::AcqRel)
    }

    /// True for the one caller that is to wait until this replica can step aside.
    pub(super) fn starts_to_step_aside(&self) -> bool {
        !self.stepping_aside.swap(true, Ordering::AcqRel)
    }

    pub(super) fn sit_out(&self, sits_out: bool) {
        self.sits_out.store(sits_out, Ordering::Release);
    }

    pub(super) fn sits_out(&self) -> bool {
        self.sits_out.load(Ordering::Acquire)
    }

    /// The stream is no longer served here.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        let mut inner = self.lock();
        self.stop_leading_for(&mut inner, EndReason::ConsumerDeleted);
        let closed = || Failure { why: "the stream is closed here".to_owned(), passes: false };
        inner.failed.get_or_insert_with(closed);
        self.stopped.store(true, Ordering::Release);
        drop(inner);
        self.wake.notify_one();
        self.pump_wake.notify_one();
    }

    /// Resolves when no flush job of this replica is under way: jobs work by path, so the files must not be replaced or
    /// opened anew before.
    pub(crate) async fn flushed_out(&self) {
        while self.lock().flushing.is_running() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// No more messages or commands are taken here, whoever leads, and what is applied stays.
    pub(crate) fn close_intake(&self) {
        self.intake_closed.store(true, Ordering::Release);
        self.stop_leading(&mut self.lock());
    }

    pub(crate) fn is_intake_closed(&self) -> bool {
        self.intake_closed.load(Ordering::Acquire)
    }

    /// The task that runs consumers ends.
    pub(crate) fn stop_pumps(&self) {
        self.pumps_stopped.store(true, Ordering::Release);
        self.pump_wake.notify_one();
    }

    /// Whether this replica has failed, or is closed.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    pub(crate) fn pumps_stopped(&self) -> bool {
        self.pumps_stopped.load(Ordering::Acquire)
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// True for the one caller that may bring the configuration into the log now.
    pub(crate) fn start_adopting(&self) -> bool {
        !self.adopting.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn adopting_done(&self) {
        self.adopting.store(false, Ordering::Release);
    }

    /// Whether direct gets may be answered from here: caught up since this start, and not stopped.
    pub(crate) fn serves_reads(&self) -> bool {
        self.leads() || {
            let inner = self.lock();
            let serves = matches!(inner.phase.phase(), Phase::Recovered | Phase::Persisting);
            serves && inner.failed.is_none() && !inner.flushing.is_held()
        }
    }

    /// Something is about to be confirmed by this mode: the replica's file must say so before.
    fn weak_promise(&self, mode: SyncMode) {
        let mut file = self.file.lock();
        if file.weakest >= mode {
            return;
        }
        file.weakest = mode;
        if let Err(error) = file.save(&*self.context.disk, &self.context.config.store_dir, self.spec.stream) {
            // Without it a loss could go unnoticed, so nothing weaker may be promised.
            tracing::error!(stream = self.spec.name, %error, "the replica's file is not saved; this node stops");
            std::process::exit(74);
        }
    }

    /// There is a leader over what is left: this replica is as good as any other.
    pub(super) fn is_let_in(&self) {
        let mut file = self.file.lock();
        if !std::mem::take(&mut file.may_have_lost) {
            return;
        }
        if let Err(error) = file.save(&*self.context.disk, &self.context.config.store_dir, self.spec.stream) {
            // The next start keeps it out once more, which costs time and no data.
            tracing::warn!(stream = self.spec.name, %error, "the replica's file is not saved");
        }
    }

    pub(crate) fn allows_direct(&self) -> bool {
        self.lock().allow_direct
    }

    pub(crate) fn is_replicated(&self) -> bool {
        self.spec.replicas > 1
    }

    /// The settings as they act at this replica now.
    pub(crate) fn effective(&self, inner: &Inner) -> Durability {
        inner
            .state
            .durability()
            .effective(self.spec.raft_id)
            .effective(self.spec.replicas, inner.state.settings().storage)
            .durability
    }

    /// The effective mode is a function of the log: called after everything that may change it.
    pub(crate) fn adopt_durability(&self, inner: &mut Inner) {
        let effective = self.effective(inner);
        self.sync.set(effective.sync);
        if self.is_replicated() {
            let interval =
                (effective.sync == SyncMode::Interval).then(|| Duration::from_millis(u64::from(effective.interval_ms)));
            self.context.wal.set_interval(self.spec.group, interval);
        }
        if effective.sync != SyncMode::Always {
            self.context.weak_promise();
            self.weak_promise(effective.sync);
        }
        inner.flushing.set_mode(effective);
        let config: serde_json::Value = serde_json::from_str(inner.state.config_json()).unwrap_or_default();
        inner.allow_direct = config.get("allow_direct").and_then(serde_json::Value::as_bool).unwrap_or(false);
    }

    /// How safe an entry must be in this store before its answers go out.
    pub(super) fn answer_need(&self, inner: &Inner, kind: FrameKind) -> Need {
        Need::of(self.is_replicated(), inner.state.settings().storage, self.effective(inner), kind)
    }

    /// Applies one entry and settles what waited for it.
    pub(crate) fn apply_frame(&self, inner: &mut Inner, at: LogPosition, bytes: &Bytes) {
        if inner.failed.is_some() {
            return;
        }
        let frame = match Frame::parse_trusted(bytes.clone()) {
            Ok(frame) => frame,
            Err(error) => return self.fail(inner, format!("entry {} does not parse: {error}", at.index)),
        };
        let header = frame.header();
        // Met by a read, which is no reason to stop at once.
        let _known = self.met_damage(inner);
        let applied = inner.state.apply(at, &frame, &inner.store);
        let met = self.met_damage(inner);
        let applied = match (applied, met) {
            // Without a message's time a replica may not come to what the others come to.
            (Ok(_), Some(met)) if self.is_replicated() => {
                return self.stop_with(inner, Failure { why: met.why, passes: met.passes });
            }
            (Ok(applied), _) => applied,
            (Err(damaged), met) => {
                let passes = met.as_ref().is_some_and(|met| met.passes);
                let why = met.map_or_else(|| damaged.to_string(), |met| met.why);
                return self.stop_with(inner, Failure { why, passes });
            }
        };
        if applied.is_void() && self.is_replicated() {
            inner.store.advance(at.index);
        } else {
            inner.store.push(at.index, frame);
            inner.flushing.pushed(bytes.len());
        }
        for event in &applied.events {
            match event {
                StreamEvent::Durability | StreamEvent::Configured(_) => self.adopt_durability(inner),
                StreamEvent::Began | StreamEvent::Erase(_) | StreamEvent::Consumers(_) | StreamEvent::Removed => {}
            }
        }
        if let Some(first) = applied.removed.first()
            && first.first <= inner.state.first_seq()
        {
            inner.store.drop_before(inner.state.first_seq());
        }
        inner.flushing.applied(StateSample { at, digest: inner.state.digest() });
        self.consumers_changed(inner, &applied.events);
        self.settle(inner, at.index, header.term, header.ordinal, header.kind, applied);
    }

    /// Answers those who waited for this entry at this leader.
    fn settle(
        &self,
        inner: &mut Inner,
        index: LogIndex,
        term: headwater_core::ids::Term,
        ordinal: Ordinal,
        kind: FrameKind,
        applied: Applied,
    ) {
        let need = self.answer_need(inner, kind);
        let now = crate::clock::now();
        let Inner { state, leading: Some(leading), gate, .. } = inner else { return };
        if leading.term != term {
            return;
        }
        leading.admission.sync(state);
        if kind == FrameKind::Expire {
            leading.expiring = false;
        }
        let void = applied.is_void();
        let mut actions = Vec::new();
        for pump in leading.pumps.values_mut() {
            for range in &applied.removed {
                pump.messages_removed(range.first, range.last);
            }
        }
        let mut applied = Some(applied);
        for (waited, flight) in leading.take_through(ordinal) {
            let lost = void || waited != ordinal;
            let mut confirmed_acks = Vec::new();
            for (consumer, token) in flight.tokens {
                let Some(pump) = leading.pumps.get_mut(&consumer) else { continue };
                match state.consumers().get(consumer) {
                    Some(consumer_state) if !lost => {
                        let mut decided = Vec::new();
                        pump.applied(token, consumer_state, now, &mut decided);
                        for action in decided {
                            match action {
                                // A promise like any other: it waits until the entry is as safe as the stream promises.
                                PumpAction::AckReply { to } => confirmed_acks.push(to),
                                action => actions.push((consumer, action)),
                            }
                        }
                    }
                    _ => pump.refused(token),
                }
            }
            let fate = match (&applied, lost) {
                (_, true) => CommandFate::Lost,
                (Some(a), false) => match &a.outcome {
                    Outcome::Rejected(why) => CommandFate::Rejected(*why),
                    _ => CommandFate::Applied(Box::new(applied.take().expect("matched above"))),
                },
                (None, false) => CommandFate::Lost,
            };
            if lost {
                self.acks.release_as(flight.acks, &Fate::Unknown);
                if let Some(waiter) = flight.command {
                    // The proposer may have given up.
                    let _gone = waiter.send(fate);
                }
                continue;
            }
            let command = flight.command.map(|w| (w, fate));
            gate.push(index, need, Answers { acks: flight.acks, command, confirmed_acks });
        }
        if void && leading.outstanding == 0 && leading.admission.is_halted() {
            self.wake.notify_one();
        }
        if !actions.is_empty() {
            self.perform(inner, actions);
        }
        self.open_gate(inner);
    }

    /// Sends what may go out now.
    pub(crate) fn open_gate(&self, inner: &mut Inner) {
        let (stored, synced) = (inner.stored(), inner.store_synced());
        for Answers { acks, command, confirmed_acks } in inner.gate.open(stored, synced) {
            self.acks.release(acks);
            for to in confirmed_acks {
                self.context.broker.publish(&Inbound { subject: &to, reply: None, headers: &[], payload: &[] });
            }
            if let Some((waiter, fate)) = command {
                // The proposer may have given up.
                let _gone = waiter.send(fate);
            }
        }
        if inner.leading.as_ref().is_some_and(|l| l.admission.has_room()) {
            self.room.notify_waiters();
        }
    }

    /// Stops this replica for this boot; its files stay as they are (I-6). Its Raft member stops too, so that it
    /// neither leads nor votes, and its peers go on.
    pub(crate) fn fail(&self, inner: &mut Inner, why: String) {
        self.stop_with(inner, Failure { why, passes: false });
    }

    /// As [`StreamReplica::fail`]: the cluster remembers more than this disk holds.
    pub(crate) fn quarantine(&self, inner: &mut Inner, why: &str) {
        inner.phase.quarantined(why);
        self.fail(inner, why.to_owned());
    }

    pub(crate) fn stop_with(&self, inner: &mut Inner, failure: Failure) {
        if let Some(known) = &mut inner.failed {
            known.passes &= failure.passes;
            return;
        }
        let why = &failure.why;
        tracing::error!(stream = self.spec.name, group = %self.spec.group, why, "replica stopped");
        inner.phase.failed(why.clone());
        inner.failed = Some(failure);
        self.stopped.store(true, Ordering::Release);
        self.stop_leading(inner);
        for Answers { acks, command, .. } in inner.gate.drain() {
            self.acks.release_as(acks, &Fate::Unknown);
            if let Some((waiter, _)) = command {
                // The proposer may have given up.
                let _gone = waiter.send(CommandFate::Lost);
            }
        }
        self.wake.notify_one();
    }

    /// Leadership is over: publishers and proposers hear that nobody knows, pulls end.
    pub(crate) fn stop_leading(&self, inner: &mut Inner) {
        self.stop_leading_for(inner, EndReason::LeadershipChange);
    }

    fn stop_leading_for(&self, inner: &mut Inner, why: EndReason) {
        let Some(mut leading) = inner.leading.take() else { return };
        self.set_leads(false);
        for (_, flight) in leading.take_all() {
            self.acks.release_as(flight.acks, &Fate::Unknown);
            if let Some(waiter) = flight.command {
                // The proposer may have given up.
                let _gone = waiter.send(CommandFate::Lost);
            }
        }
        let mut actions = Vec::new();
        for (id, pump) in &mut leading.pumps {
            let mut ended = Vec::new();
            pump.end(why, &mut ended);
            actions.extend(ended.into_iter().map(|action| (*id, action)));
        }
        self.perform(inner, actions);
        self.room.notify_waiters();
    }
}

impl Replica for Arc<StreamReplica> {
    fn recovered(&self) -> (Option<LogPos>, Members) {
        self.lock().recovered.clone()
    }

    fn apply(&self, at: LogPos, what: Committed<'_>) -> Bytes {
        let mut inner = self.lock();
        match what {
            Committed::Blank => {
                inner.state.skip(at);
                inner.store.advance(at.index);
                // If this is our own first entry of a term, leading starts now.
                self.wake.notify_one();
            }
            Committed::Members(members) => {
                inner.members = members.clone();
                inner.state.members_changed(at, |replica| members.nodes.contains(&replica.get()));
                inner.store.advance(at.index);
            }
            Committed::Command(frame) => self.apply_frame(&mut inner, at, frame),
        }
        Bytes::new()
    }

    fn applied_run(&self) {
        let mut inner = self.lock();
        self.prove_snapshot(&mut inner);
        self.flush_if_due(&mut inner);
        let leads = inner.leading.is_some();
        drop(inner);
        if leads {
            self.pump_wake.notify_one();
        }
    }

    fn snapshot(&self) -> Option<SnapshotHead> {
        self.lock().flushing.persisted_head()
    }

    fn pin(&self) -> io::Result<Option<(SnapshotHead, Box<dyn crate::raft::transfer::Outgoing>)>> {
        let inner = self.lock();
        if inner.flushing.persisted_head().is_none() {
            return Ok(None);
        }
        // The checkpoint may be newer than what this replica has been told of: its own head belongs to it.
        let this = Arc::downgrade(self);
        let on_damage = Box::new(move |error: &FileError| {
            if let Some(this) = this.upgrade() {
                this.is_damaged(&mut this.lock(), &error.to_string());
            }
        });
        let (head, pinned) = super::outgoing::PinnedFiles::pin(&self.context.disk, &self.dir, on_damage)?;
        Ok(Some((head, Box::new(pinned))))
    }

    fn install(&self, head: SnapshotHead, staged: Staged) -> BoxFuture<'_, io::Result<()>> {
        Box::pin(async move {
            {
                let mut inner = self.lock();
                self.stop_leading(&mut inner);
                inner.flushing.hold();
            }
            self.flushed_out().await;
            if let Some(failure) = &self.lock().failed {
                return Err(io::Error::other(failure.why.clone()));
            }
            let (this, running) = (Arc::clone(self), self.lock().flushing.running());
            let opened = tokio::task::spawn_blocking(move || {
                // Whoever closes or reopens this replica waits for this.
                let _running = running;
                log_check::mark_installed(&*this.context.disk, &staged.dir)?;
                let last_stop = this.context.last_run.last_stop();
                super::open::swap_in(&this.context.disk, last_stop, &this.spec, &this.dir, &staged.dir)
            });
            let opened = opened.await.map_err(io::Error::other).flatten();
            let mut inner = self.lock();
            match opened {
                Ok(opened) => {
                    inner.state = opened.state;
                    inner.store = opened.store;
                    inner.members = head.members.clone();
                    inner.flushing.installed(&head);
                    self.adopt_durability(&mut inner);
                    tracing::info!(stream = self.spec.name, index = %head.at.index, "snapshot installed");
                    Ok(())
                }
                Err(error) => {
                    // The files may not be what the state in memory was built from any more.
                    let why = format!("a snapshot could not be installed: {error}");
                    self.stop_with(&mut inner, Failure { why, passes: true });
                    Err(error)
                }
            }
        })
    }

    fn cannot_stage(&self, error: &io::Error) {
        let why = format!("a snapshot cannot be written: {error}");
        self.stop_with(&mut self.lock(), Failure { why, passes: true });
    }

    fn room(&self) -> Option<BoxFuture<'_, ()>> {
        let crowded = || {
            let inner = self.lock();
            inner.failed.is_none() && inner.store.dirty_bytes() > DIRTY_BYTES_MAX
        };
        if !crowded() {
            return None;
        }
        Some(Box::pin(async move {
            while crowded() {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }))
    }
}
