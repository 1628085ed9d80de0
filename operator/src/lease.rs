//! Leader election on a `coordination.k8s.io` Lease.
//!
//! Time is measured on the monotonic clock, from the moment this process *saw* the Lease change: other machines' wall
//! clocks play no part. The holder gives up after [`Timing::renew_deadline`], which is shorter than the
//! [`Timing::duration`] that everybody else waits, so two processes never both believe that they lead. A lost Lease
//! ends the process; nothing tries to stop "leading" in place.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube_client::api::{Api, PostParams};
use thiserror::Error;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};

/// The three intervals of an election.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// How long others wait after the last renewal that they saw.
    pub(crate) duration: Duration,
    /// How long the holder goes on without a successful renewal.
    pub(crate) renew_deadline: Duration,
    /// Pause between attempts.
    pub(crate) retry: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry: Duration::from_secs(2),
        }
    }
}

/// Why the holder stopped holding.
#[derive(Debug, Error)]
pub(crate) enum Lost {
    #[error("lease taken by {holder}")]
    Taken { holder: String },
    #[error("lease not renewed for {waited_ms} ms (limit {limit_ms} ms)")]
    NotRenewed { waited_ms: u128, limit_ms: u128 },
}

/// What of a Lease changes when its holder is alive.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sighting {
    holder: String,
    renewed: Option<MicroTime>,
    transitions: i32,
    duration: Duration,
}

impl Sighting {
    fn of(lease: &Lease, default_duration: Duration) -> Self {
        let spec = lease.spec.as_ref();
        let seconds = spec.and_then(|s| s.lease_duration_seconds).and_then(|s| u64::try_from(s).ok());
        Self {
            holder: spec.and_then(|s| s.holder_identity.clone()).unwrap_or_default(),
            renewed: spec.and_then(|s| s.renew_time.clone()),
            transitions: spec.and_then(|s| s.lease_transitions).unwrap_or(0),
            duration: seconds.filter(|s| *s > 0).map_or(default_duration, Duration::from_secs),
        }
    }
}

/// One process' view of the Lease: the last sighting, and when (monotonic) it first looked like that.
#[derive(Debug, Default)]
struct View {
    last: Option<(Sighting, Instant)>,
}

impl View {
    /// Records what was read at `now` and says whether the Lease may be taken.
    fn may_take(&mut self, seen: &Sighting, me: &str, now: Instant) -> bool {
        let since = match &self.last {
            Some((last, since)) if last == seen => *since,
            _ => {
                self.last = Some((seen.clone(), now));
                now
            }
        };
        seen.holder.is_empty() || seen.holder == me || now.duration_since(since) >= seen.duration
    }
}

/// Shared answer to "do we still lead?", cheap enough to ask before every mutating call.
///
/// Guards against a paused process: after SIGSTOP and SIGCONT a reconcile could run before the renewal task notices.
#[derive(Clone, Debug)]
pub(crate) struct Tenure {
    started: Instant,
    /// Milliseconds after `started` until which the Lease is certainly ours.
    valid_until_ms: Arc<AtomicU64>,
}

impl Tenure {
    fn new(renewed: Instant, timing: Timing) -> Self {
        let tenure = Self { started: renewed, valid_until_ms: Arc::new(AtomicU64::new(0)) };
        tenure.extend(renewed, timing);
        tenure
    }

    fn extend(&self, renewed: Instant, timing: Timing) {
        let until = renewed.duration_since(self.started) + timing.renew_deadline;
        self.valid_until_ms.store(u64::try_from(until.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// True while the last renewal is younger than the renew deadline.
    pub(crate) fn holds(&self) -> bool {
        let passed = Instant::now().duration_since(self.started).as_millis();
        passed < u128::from(self.valid_until_ms.load(Ordering::Relaxed))
    }
}

/// The elector of one process.
pub(crate) struct Elector {
    api: Api<Lease>,
    name: String,
    me: String,
    timing: Timing,
}

/// A Lease that we hold: renew it with [`Held::renew_until_lost`], give it back with [`Held::release`].
pub(crate) struct Held {
    elector: Elector,
    lease: Lease,
    renewed: Instant,
    tenure: Tenure,
}

impl Elector {
    /// `api` must come from a client without automatic retries: a retried renewal outlives its deadline.
    pub(crate) fn new(api: Api<Lease>, name: &str, me: &str, timing: Timing) -> Self {
        Self { api, name: name.to_owned(), me: me.to_owned(), timing }
    }

    /// Waits until the Lease is ours.
    pub(crate) async fn acquire(self) -> Held {
        let mut view = View::default();
        let mut waiting_for = String::new();
        loop {
            let started = Instant::now();
            match timeout(self.timing.renew_deadline, self.try_acquire(&mut view)).await {
                Ok(Ok(Attempt::Got(lease))) => {
                    let tenure = Tenure::new(started, self.timing);
                    return Held { elector: self, lease: *lease, renewed: started, tenure };
                }
                Ok(Ok(Attempt::HeldBy(holder))) => {
                    if holder != waiting_for {
                        info!(%holder, lease = %self.name, "another operator leads; standing by");
                        waiting_for = holder;
                    }
                }
                Ok(Err(error)) if is_conflict(&error) => {
                    debug!(lease = %self.name, "another operator was faster")
                }
                Ok(Err(error)) => {
                    warn!(%error, lease = %self.name, "cannot read or take the lease")
                }
                Err(_) => {
                    warn!(lease = %self.name, "the API server did not answer about the lease in time")
                }
            }
            sleep(self.timing.retry).await;
        }
    }

    async fn try_acquire(&self, view: &mut View) -> kube_client::Result<Attempt> {
        let Some(mut lease) = self.api.get_opt(&self.name).await? else {
            let lease = Lease {
                metadata: ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() },
                spec: Some(self.claim(0)),
            };
            let made = self.api.create(&PostParams::default(), &lease).await?;
            return Ok(Attempt::Got(Box::new(made)));
        };
        let seen = Sighting::of(&lease, self.timing.duration);
        if !view.may_take(&seen, &self.me, Instant::now()) {
            return Ok(Attempt::HeldBy(seen.holder));
        }
        lease.spec = Some(self.claim(seen.transitions.saturating_add(1)));
        // The resource version travels with the object, so a rival's write in between makes this a conflict.
        let taken = self.api.replace(&self.name, &PostParams::default(), &lease).await?;
        Ok(Attempt::Got(Box::new(taken)))
    }

    fn claim(&self, transitions: i32) -> LeaseSpec {
        let now = MicroTime(jiff::Timestamp::now());
        LeaseSpec {
            holder_identity: Some(self.me.clone()),
            lease_duration_seconds: Some(i32::try_from(self.timing.duration.as_secs()).unwrap_or(i32::MAX)),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        }
    }
}

enum Attempt {
    Got(Box<Lease>),
    HeldBy(String),
}

impl Held {
    /// Number of times that the Lease changed hands.
    pub(crate) fn transitions(&self) -> i32 {
        self.lease.spec.as_ref().and_then(|s| s.lease_transitions).unwrap_or(0)
    }

    pub(crate) fn tenure(&self) -> Tenure {
        self.tenure.clone()
    }

    /// Renews for as long as it works, and returns why it no longer does.
    pub(crate) async fn renew_until_lost(&mut self) -> Lost {
        let timing = self.elector.timing;
        loop {
            sleep(timing.retry).await;
            let started = Instant::now();
            let left = timing.renew_deadline.saturating_sub(started.duration_since(self.renewed));
            match timeout(left, self.renew()).await {
                Ok(Ok(None)) => {
                    self.renewed = started;
                    self.tenure.extend(started, timing);
                }
                Ok(Ok(Some(holder))) => return Lost::Taken { holder },
                Ok(Err(error)) => warn!(%error, "lease renewal failed; trying again"),
                Err(_) => warn!("lease renewal timed out"),
            }
            let waited = Instant::now().duration_since(self.renewed);
            if waited >= timing.renew_deadline {
                return Lost::NotRenewed { waited_ms: waited.as_millis(), limit_ms: timing.renew_deadline.as_millis() };
            }
        }
    }

    /// `Ok(Some(holder))` when somebody else holds it now.
    async fn renew(&mut self) -> kube_client::Result<Option<String>> {
        let api = &self.elector.api;
        let mut next = self.lease.clone();
        if let Some(spec) = &mut next.spec {
            spec.renew_time = Some(MicroTime(jiff::Timestamp::now()));
        }
        match api.replace(&self.elector.name, &PostParams::default(), &next).await {
            Ok(lease) => {
                self.lease = lease;
                Ok(None)
            }
            Err(error) if is_conflict(&error) => {
                // Somebody touched the object: a rival, or only a label. Look before giving up.
                let lease = api.get(&self.elector.name).await?;
                let holder = Sighting::of(&lease, self.elector.timing.duration).holder;
                if holder == self.elector.me {
                    self.lease = lease;
                    Err(error)
                } else {
                    Ok(Some(holder))
                }
            }
            Err(error) if is_gone(&error) => Ok(Some("nobody: the lease was deleted".to_owned())),
            Err(error) => Err(error),
        }
    }

    /// Gives the Lease back, so that a successor need not wait for its expiry. Best effort, bounded by the retry period.
    pub(crate) async fn release(mut self) {
        if let Some(spec) = &mut self.lease.spec {
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(1);
            spec.renew_time = Some(MicroTime(jiff::Timestamp::now()));
        }
        let params = PostParams::default();
        let replace = self.elector.api.replace(&self.elector.name, &params, &self.lease);
        match timeout(self.elector.timing.retry, replace).await {
            Ok(Ok(_)) => info!(lease = %self.elector.name, "lease released"),
            Ok(Err(error)) => warn!(%error, "lease not released; a successor waits for its expiry"),
            Err(_) => warn!("lease not released in time; a successor waits for its expiry"),
        }
    }
}

fn is_conflict(error: &kube_client::Error) -> bool {
    matches!(error, kube_client::Error::Api(status) if status.code == 409)
}

fn is_gone(error: &kube_client::Error) -> bool {
    matches!(error, kube_client::Error::Api(status) if status.code == 404)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sighting(holder: &str, transitions: i32) -> Sighting {
        Sighting { holder: holder.to_owned(), renewed: None, transitions, duration: Duration::from_secs(15) }
    }

    #[tokio::test(start_paused = true)]
    async fn a_rivals_lease_is_taken_only_after_its_own_duration_without_change() {
        let mut view = View::default();
        assert!(!view.may_take(&sighting("rival", 1), "me", Instant::now()));
        tokio::time::advance(Duration::from_secs(14)).await;
        assert!(!view.may_take(&sighting("rival", 1), "me", Instant::now()));
        // A renewal starts the wait anew.
        assert!(!view.may_take(&sighting("rival", 2), "me", Instant::now()));
        tokio::time::advance(Duration::from_secs(14)).await;
        assert!(!view.may_take(&sighting("rival", 2), "me", Instant::now()));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(view.may_take(&sighting("rival", 2), "me", Instant::now()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_released_lease_and_our_own_are_taken_at_once() {
        let mut view = View::default();
        assert!(view.may_take(&sighting("", 1), "me", Instant::now()));
        assert!(view.may_take(&sighting("me", 1), "me", Instant::now()));
    }

    #[tokio::test(start_paused = true)]
    async fn tenure_ends_before_the_others_may_take_over() {
        let timing = Timing::default();
        assert!(timing.renew_deadline < timing.duration);
        let tenure = Tenure::new(Instant::now(), timing);
        tokio::time::advance(timing.renew_deadline - Duration::from_millis(1)).await;
        assert!(tenure.holds());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!tenure.holds());
        tenure.extend(Instant::now(), timing);
        assert!(tenure.holds());
    }
}
