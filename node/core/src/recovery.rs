//! What to do with what was found on disk: one pure decision, and the phases that follow from it.

use serde::{Deserialize, Serialize};

use crate::ids::LogIndex;

/// What the hard state of the node says about the last run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastRun {
    /// The clean-stop marker was there.
    pub clean_stop: bool,
    /// The operating system has not booted since and the mount is the same: its page cache survived.
    pub same_boot_and_mount: bool,
    /// A write or sync had failed.
    pub io_error: bool,
    /// Something was confirmed with less than `always` since the last full sync (`weakSince`).
    pub weak_since: bool,
    /// Something was confirmed from memory alone (`noWait`) and not all of it was written.
    pub unwritten_confirmed: bool,
}

/// How the log of the group ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogEnd {
    /// At a record boundary.
    Clean,
    /// In the middle of a record, in the newest segment.
    TornTail {
        /// Last complete entry before the tear.
        last_complete: LogIndex,
        /// Whether the tear lies at or below something known to have been synced: then it is no tear.
        within_synced: bool,
    },
    /// A bad record where none may be.
    Corrupt {
        /// Last good entry before it.
        last_good: LogIndex,
    },
}

/// The checkpoint of the replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointFound {
    /// There is none, and the hard state knows of none.
    None,
    /// There is none, although there was one.
    Lost,
    /// It does not check out.
    Corrupt,
    /// It is sound, and the blocks it lists are there with their lengths and digest.
    Sound {
        /// Index it covers.
        persisted: LogIndex,
    },
    /// It is sound, but the blocks are not what it says.
    BlocksDiffer {
        /// Index it covers.
        persisted: LogIndex,
    },
}

/// Everything that opening a replica found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFacts {
    /// What the hard state says; `None` if the directory has none although the catalogue lists this replica.
    pub last_run: Option<LastRun>,
    /// The checkpoint.
    pub checkpoint: CheckpointFound,
    /// How the log ends.
    pub log_end: LogEnd,
    /// The log starts after this index.
    pub log_purged: LogIndex,
    /// Last entry in the log, or `log_purged` if there is none.
    pub log_last: LogIndex,
    /// Peers or the catalogue remember a later boot epoch or log index of this replica than is on disk.
    pub rolled_back: bool,
    /// Replicas of the stream.
    pub replica_count: u32,
    /// Whether the stream lives in memory only.
    pub in_memory: bool,
}

/// Why a replica may not count as a voter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RejoinReason {
    /// The directory was wiped.
    Wiped,
    /// Memory streams start empty.
    InMemory,
    /// Confirmed entries may be lost: the page cache did not survive.
    UnsyncedConfirmed,
    /// Confirmed entries may be lost: they were in memory only.
    UnwrittenConfirmed,
    /// A write or sync failed in the last run.
    IoError,
}

/// Why a replica needs its peers' data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RepairReason {
    /// The log has a bad record where none may be.
    LogCorrupt,
    /// The checkpoint is lost or does not check out.
    CheckpointCorrupt,
    /// The blocks are not what the checkpoint says.
    BlocksDiffer,
    /// The log starts after what the checkpoint covers.
    LogGap,
    /// The log ends before what the checkpoint covers.
    LogShort,
}

impl std::fmt::Display for RepairReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::LogCorrupt => "its log has a bad record",
            Self::CheckpointCorrupt => "its checkpoint is lost or damaged",
            Self::BlocksDiffer => "its blocks are not what its checkpoint says",
            Self::LogGap => "its checkpoint, or its whole folder, is older than what is left of its log, or gone",
            Self::LogShort => "its log ends before what its checkpoint covers",
        })
    }
}

/// Why a replica must not start at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RefuseReason {
    /// Peers or the catalogue remember more than the disk does.
    RolledBack,
    /// The only copy is damaged: there is no peer to repair from, and nothing may be skipped.
    OnlyCopyDamaged(RepairReason),
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryPlan {
    /// Cut the store to the checkpoint and replay the log after `from`.
    Replay {
        /// The checkpoint's index.
        from: LogIndex,
    },
    /// Cut the log after `keep`, then as [`RecoveryPlan::Replay`].
    TruncateTail {
        /// Last complete entry.
        keep: LogIndex,
        /// The checkpoint's index.
        from: LogIndex,
    },
    /// Join under a new incarnation, without a vote until caught up (I-9).
    RejoinAsLearner {
        /// Why.
        why: RejoinReason,
    },
    /// Fetch the state from peers; do not lead meanwhile.
    Repair {
        /// Why.
        why: RepairReason,
    },
    /// Do not start.
    Refuse {
        /// Why.
        why: RefuseReason,
    },
}

/// The decision table. The first row that fits decides.
///
/// | found | plan |
/// |---|---|
/// | peers remember more than the disk | refuse (quarantine) |
/// | in memory, more than one replica | rejoin |
/// | no hard state, or nothing at all | rejoin if there are peers |
/// | a failed write or sync | rejoin |
/// | confirmed from memory and not written, whatever the stop | rejoin |
/// | weak confirmations, unclean stop, page cache gone | rejoin |
/// | bad record in the log | repair (only copy: refuse) |
/// | checkpoint lost, corrupt, or blocks differ | repair (only copy: refuse) |
/// | log starts after the checkpoint, or ends before it | repair (only copy: refuse) |
/// | torn tail | truncate, replay |
/// | otherwise | replay |
///
/// With one replica there is nobody to rejoin: what is on disk is the stream, and a possible loss is a
/// suffix that status reports.
pub fn decide(facts: &OpenFacts) -> RecoveryPlan {
    if facts.rolled_back {
        return RecoveryPlan::Refuse { why: RefuseReason::RolledBack };
    }
    if facts.replica_count > 1
        && let Some(why) = must_rejoin(facts)
    {
        return RecoveryPlan::RejoinAsLearner { why };
    }
    match sound_start(facts) {
        Ok(plan) => plan,
        Err(why) if facts.replica_count > 1 => RecoveryPlan::Repair { why },
        Err(why) => RecoveryPlan::Refuse { why: RefuseReason::OnlyCopyDamaged(why) },
    }
}

/// Whether this replica may have lost what it confirmed.
fn must_rejoin(facts: &OpenFacts) -> Option<RejoinReason> {
    if facts.in_memory {
        return Some(RejoinReason::InMemory);
    }
    let Some(last_run) = facts.last_run else {
        return Some(RejoinReason::Wiped);
    };
    if last_run.io_error {
        return Some(RejoinReason::IoError);
    }
    if last_run.unwritten_confirmed {
        return Some(RejoinReason::UnwrittenConfirmed);
    }
    let cache_lost = !last_run.clean_stop && !last_run.same_boot_and_mount;
    (last_run.weak_since && cache_lost).then_some(RejoinReason::UnsyncedConfirmed)
}

fn sound_start(facts: &OpenFacts) -> Result<RecoveryPlan, RepairReason> {
    let keep = match facts.log_end {
        LogEnd::Clean => None,
        LogEnd::TornTail { within_synced: true, .. } | LogEnd::Corrupt { .. } => {
            return Err(RepairReason::LogCorrupt);
        }
        LogEnd::TornTail { last_complete, within_synced: false } => Some(last_complete),
    };
    let from = match facts.checkpoint {
        CheckpointFound::None => LogIndex::default(),
        CheckpointFound::Sound { persisted } => persisted,
        CheckpointFound::Lost | CheckpointFound::Corrupt => {
            return Err(RepairReason::CheckpointCorrupt);
        }
        CheckpointFound::BlocksDiffer { .. } => return Err(RepairReason::BlocksDiffer),
    };
    if facts.log_purged > from {
        return Err(RepairReason::LogGap);
    }
    let log_last = keep.unwrap_or(facts.log_last).max(facts.log_purged);
    // R1 has no log behind its store: its files are its log.
    if facts.replica_count > 1 && log_last < from {
        return Err(RepairReason::LogShort);
    }
    Ok(match keep {
        Some(keep) => RecoveryPlan::TruncateTail { keep, from },
        None => RecoveryPlan::Replay { from },
    })
}

/// Where a replica is on its way back, the same word everywhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "phase")]
pub enum Phase {
    /// Reading the checkpoint.
    LoadingSnapshot,
    /// Applying its own log.
    ReplayingLog,
    /// Receiving what it missed.
    CatchingUp,
    /// Writing down what it caught up with.
    Persisting,
    /// Caught up to the commit index seen at start, and persisted past the barrier taken then.
    Recovered,
    /// Fetching state from peers.
    Repairing,
    /// Kept out: others remember more than the disk holds.
    Quarantined {
        /// What they remember, for a person.
        why: String,
    },
    /// Given up.
    Failed {
        /// Why, for a person.
        why: String,
    },
}

impl Phase {
    /// The phase's name.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::LoadingSnapshot => "LoadingSnapshot",
            Self::ReplayingLog => "ReplayingLog",
            Self::CatchingUp => "CatchingUp",
            Self::Persisting => "Persisting",
            Self::Recovered => "Recovered",
            Self::Repairing => "Repairing",
            Self::Quarantined { .. } => "Quarantined",
            Self::Failed { .. } => "Failed",
        }
    }

    const fn rank(&self) -> u8 {
        match self {
            Self::LoadingSnapshot => 0,
            Self::ReplayingLog => 1,
            Self::CatchingUp => 2,
            Self::Persisting => 3,
            Self::Recovered => 4,
            Self::Repairing | Self::Quarantined { .. } | Self::Failed { .. } => u8::MAX,
        }
    }
}

/// What a phase is derived from, observed at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Applied index.
    pub applied: LogIndex,
    /// Persisted index.
    pub persisted: LogIndex,
    /// Commit index, as far as known.
    pub committed: LogIndex,
    /// Whether a leader of the current term has told the commit index.
    pub leader_known: bool,
    /// Whether the replica counts in its group. One that is still a learner on its way to a vote does not, so nobody
    /// may take another replica away yet.
    pub counts: bool,
}

/// A replica's phase, latched per boot: a replica that was once recovered does not fall back because new
/// writes come in, and one that failed stays failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhaseLatch {
    phase: Phase,
    log_last: LogIndex,
    /// Commit index first heard from a leader after this boot.
    target: Option<LogIndex>,
    /// Index that must be persisted: taken when the target was reached.
    barrier: Option<LogIndex>,
}

impl PhaseLatch {
    /// Starts with the plan. `log_last` is the end of the replica's own log.
    pub fn new(plan: &RecoveryPlan, log_last: LogIndex) -> Self {
        let phase = match plan {
            RecoveryPlan::Replay { .. } | RecoveryPlan::TruncateTail { .. } => Phase::LoadingSnapshot,
            RecoveryPlan::RejoinAsLearner { .. } => Phase::CatchingUp,
            RecoveryPlan::Repair { .. } => Phase::Repairing,
            RecoveryPlan::Refuse { why: RefuseReason::RolledBack } => {
                Phase::Quarantined { why: "its disk is older than what others remember".to_owned() }
            }
            RecoveryPlan::Refuse { why: RefuseReason::OnlyCopyDamaged(why) } => {
                Phase::Failed { why: format!("the only copy is damaged: {why:?}") }
            }
        };
        Self { phase, log_last, target: None, barrier: None }
    }

    /// The phase.
    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    /// Whether the replica is recovered.
    pub fn is_recovered(&self) -> bool {
        self.phase == Phase::Recovered
    }

    /// What persisted index is awaited, once known: the flusher's barrier.
    pub fn barrier(&self) -> Option<LogIndex> {
        self.barrier
    }

    /// The checkpoint is loaded; replay begins.
    pub fn loaded(&mut self) {
        self.advance(Phase::ReplayingLog);
    }

    /// The state was fetched anew from peers: the replica catches up from there.
    pub fn repaired(&mut self) {
        if self.phase == Phase::Repairing {
            self.phase = Phase::CatchingUp;
            self.target = None;
            self.barrier = None;
        }
    }

    /// Damage was found while running.
    pub fn repairing(&mut self) {
        if !matches!(self.phase, Phase::Quarantined { .. } | Phase::Failed { .. }) {
            self.phase = Phase::Repairing;
        }
    }

    /// Kept out, for good in this boot: others remember more than this disk holds.
    pub fn quarantined(&mut self, why: impl Into<String>) {
        self.phase = Phase::Quarantined { why: why.into() };
    }

    /// Given up, for good in this boot.
    pub fn failed(&mut self, why: impl Into<String>) {
        if !matches!(self.phase, Phase::Quarantined { .. } | Phase::Failed { .. }) {
            self.phase = Phase::Failed { why: why.into() };
        }
    }

    fn advance(&mut self, next: Phase) {
        if self.phase.rank() < next.rank() {
            self.phase = next;
        }
    }

    /// Takes in the watermarks of this moment; whether the phase changed.
    pub fn observe(&mut self, now: Progress) -> bool {
        let before = self.phase.clone();
        if matches!(self.phase, Phase::LoadingSnapshot) || self.phase.rank() == u8::MAX {
            return false;
        }
        if self.target.is_none() && now.leader_known {
            self.target = Some(now.committed);
        }
        if now.applied >= self.log_last || self.target.is_some_and(|target| now.applied >= target) {
            self.advance(Phase::CatchingUp);
        }
        if let Some(target) = self.target
            && now.applied >= target
        {
            let barrier = *self.barrier.get_or_insert(target);
            self.advance(Phase::Persisting);
            if now.persisted >= barrier && now.counts {
                self.advance(Phase::Recovered);
            }
        }
        self.phase != before
    }
}

#[cfg(test)]
mod tests;
