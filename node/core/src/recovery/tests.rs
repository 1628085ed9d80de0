use super::*;

fn at(index: u64) -> LogIndex {
    LogIndex::new(index)
}

const CLEAN: LastRun = LastRun {
    clean_stop: true,
    same_boot_and_mount: true,
    io_error: false,
    weak_since: false,
    unwritten_confirmed: false,
};

fn sound() -> OpenFacts {
    OpenFacts {
        last_run: Some(CLEAN),
        checkpoint: CheckpointFound::Sound { persisted: at(10) },
        log_end: LogEnd::Clean,
        log_purged: at(5),
        log_last: at(20),
        rolled_back: false,
        replica_count: 3,
        in_memory: false,
    }
}

fn last_run(change: impl Fn(&mut LastRun)) -> Option<LastRun> {
    let mut run = CLEAN;
    change(&mut run);
    Some(run)
}

#[test]
fn decision_table() {
    let replay = RecoveryPlan::Replay { from: at(10) };
    let rejoin = |why| RecoveryPlan::RejoinAsLearner { why };
    let repair = |why| RecoveryPlan::Repair { why };
    let refuse = |why| RecoveryPlan::Refuse { why };
    let torn = LogEnd::TornTail { last_complete: at(18), within_synced: false };
    let power_cut = |weak| {
        last_run(|run| {
            run.clean_stop = false;
            run.same_boot_and_mount = false;
            run.weak_since = weak;
        })
    };
    let kill_nine = last_run(|run| {
        run.clean_stop = false;
        run.weak_since = true;
    });
    let no_wait = last_run(|run| {
        run.weak_since = true;
        run.unwritten_confirmed = true;
    });
    let s = sound();
    let cases = [
        ("clean stop", s, replay),
        ("power cut, all confirmed synced", OpenFacts { last_run: power_cut(false), ..s }, replay),
        (
            "power cut, torn tail, all confirmed synced",
            OpenFacts { last_run: power_cut(false), log_end: torn, ..s },
            RecoveryPlan::TruncateTail { keep: at(18), from: at(10) },
        ),
        ("kill -9 with weak confirmations: the page cache survived", OpenFacts { last_run: kill_nine, ..s }, replay),
        (
            "power cut with weak confirmations",
            OpenFacts { last_run: power_cut(true), ..s },
            rejoin(RejoinReason::UnsyncedConfirmed),
        ),
        (
            "noWait lost its queue, even at a clean stop",
            OpenFacts { last_run: no_wait, ..s },
            rejoin(RejoinReason::UnwrittenConfirmed),
        ),
        (
            "a sync failed",
            OpenFacts { last_run: last_run(|run| run.io_error = true), ..s },
            rejoin(RejoinReason::IoError),
        ),
        (
            "wiped disk",
            OpenFacts { last_run: None, checkpoint: CheckpointFound::None, ..s },
            rejoin(RejoinReason::Wiped),
        ),
        ("memory stream", OpenFacts { in_memory: true, ..s }, rejoin(RejoinReason::InMemory)),
        ("rolled back", OpenFacts { rolled_back: true, ..s }, refuse(RefuseReason::RolledBack)),
        (
            "bad record",
            OpenFacts { log_end: LogEnd::Corrupt { last_good: at(7) }, ..s },
            repair(RepairReason::LogCorrupt),
        ),
        (
            "a tear below what was synced",
            OpenFacts { log_end: LogEnd::TornTail { last_complete: at(18), within_synced: true }, ..s },
            repair(RepairReason::LogCorrupt),
        ),
        (
            "checkpoint lost",
            OpenFacts { checkpoint: CheckpointFound::Lost, ..s },
            repair(RepairReason::CheckpointCorrupt),
        ),
        (
            "checkpoint corrupt",
            OpenFacts { checkpoint: CheckpointFound::Corrupt, ..s },
            repair(RepairReason::CheckpointCorrupt),
        ),
        (
            "blocks differ",
            OpenFacts { checkpoint: CheckpointFound::BlocksDiffer { persisted: at(10) }, ..s },
            repair(RepairReason::BlocksDiffer),
        ),
        ("log starts after the checkpoint", OpenFacts { log_purged: at(11), ..s }, repair(RepairReason::LogGap)),
        ("log ends before the checkpoint", OpenFacts { log_last: at(9), ..s }, repair(RepairReason::LogShort)),
        (
            "fresh replica",
            OpenFacts { checkpoint: CheckpointFound::None, log_purged: at(0), ..s },
            RecoveryPlan::Replay { from: at(0) },
        ),
        (
            "the only copy, corrupt",
            OpenFacts { replica_count: 1, checkpoint: CheckpointFound::Corrupt, ..s },
            refuse(RefuseReason::OnlyCopyDamaged(RepairReason::CheckpointCorrupt)),
        ),
        (
            "the only copy after a power cut",
            OpenFacts { replica_count: 1, last_run: power_cut(true), log_last: at(0), ..s },
            replay,
        ),
    ];
    for (name, facts, plan) in cases {
        assert_eq!(decide(&facts), plan, "{name}");
    }
}

fn progress(applied: u64, persisted: u64, committed: u64, leader_known: bool) -> Progress {
    Progress { applied: at(applied), persisted: at(persisted), committed: at(committed), leader_known, counts: true }
}

#[test]
fn recovered_means_caught_up_and_persisted_and_stays() {
    let mut latch = PhaseLatch::new(&RecoveryPlan::Replay { from: at(10) }, at(20));
    assert_eq!(latch.phase(), &Phase::LoadingSnapshot);
    assert!(!latch.observe(progress(20, 20, 20, true)), "nothing counts before the checkpoint is loaded");
    latch.loaded();
    assert_eq!(latch.phase(), &Phase::ReplayingLog);
    assert!(!latch.observe(progress(15, 10, 15, false)));
    assert!(latch.observe(progress(20, 10, 20, false)));
    assert_eq!(latch.phase(), &Phase::CatchingUp);
    assert!(!latch.observe(progress(25, 20, 40, true)));
    assert!(latch.observe(progress(40, 20, 90, true)), "the target is the commit index heard first");
    assert_eq!(latch.phase(), &Phase::Persisting);
    assert_eq!(latch.barrier(), Some(at(40)));
    assert!(!latch.observe(progress(80, 39, 90, true)));
    assert!(latch.observe(progress(80, 40, 90, true)));
    assert!(latch.is_recovered());
    assert!(!latch.observe(progress(80, 40, 5_000, true)));
    assert!(latch.is_recovered(), "new writes do not undo it");
}

#[test]
fn a_learner_on_its_way_to_a_vote_is_not_recovered() {
    let mut latch = PhaseLatch::new(&RecoveryPlan::Replay { from: at(0) }, at(0));
    latch.loaded();
    latch.observe(Progress { counts: false, ..progress(40, 40, 40, true) });
    assert_eq!(latch.phase(), &Phase::Persisting);
    latch.observe(progress(41, 41, 41, true));
    assert!(latch.is_recovered());
}

#[test]
fn failures_latch_and_a_repair_starts_over() {
    let mut latch = PhaseLatch::new(&RecoveryPlan::Repair { why: RepairReason::LogCorrupt }, at(20));
    assert_eq!(latch.phase(), &Phase::Repairing);
    assert!(!latch.observe(progress(30, 30, 30, true)));
    latch.repaired();
    assert_eq!(latch.phase(), &Phase::CatchingUp);
    latch.observe(progress(30, 30, 30, true));
    assert!(latch.is_recovered());
    latch.repairing();
    assert_eq!(latch.phase().as_str(), "Repairing");
    latch.failed("no peers");
    latch.failed("later");
    latch.repairing();
    assert_eq!(latch.phase(), &Phase::Failed { why: "no peers".into() });
    let why = RefuseReason::RolledBack;
    let mut latch = PhaseLatch::new(&RecoveryPlan::Refuse { why }, at(0));
    assert_eq!(latch.phase().as_str(), "Quarantined");
    latch.failed("and stays so");
    assert_eq!(latch.phase().as_str(), "Quarantined");
}
