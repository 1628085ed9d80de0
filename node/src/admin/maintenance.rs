//! `POST /v1/maintenance`: keeps leadership away from this node for a while. It ends by time, by request, or with the
//! boot, never later.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use headwater_plan::wire::Maintenance;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::call::Call;
use super::error::Refusal;
use super::{Admin, fence};
use crate::node::Context;

/// Longest time (ms) a node may be kept from leading.
const TTL_MS_MAX: u64 = 3_600_000;
/// Pause between two looks at what this node leads.
const PACE: Duration = Duration::from_millis(500);

/// Until when this node must not lead.
#[derive(Default)]
pub(super) struct Window(Mutex<Held>);

#[derive(Default)]
struct Held {
    until: Option<Instant>,
    /// A task hands over what this node leads.
    tended: bool,
}

impl Window {
    /// Time left.
    pub(super) fn remaining(&self) -> Option<Duration> {
        let until = self.0.lock().until?;
        until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
    }

    /// Sets the end. True if the caller must start the task that tends to it.
    fn set(&self, ttl: Duration) -> bool {
        let mut state = self.0.lock();
        state.until = Some(Instant::now() + ttl);
        if ttl.is_zero() {
            return false;
        }
        !std::mem::replace(&mut state.tended, true)
    }

    /// The task looks whether it is still needed; if not, the next request starts another.
    fn ended(&self) -> bool {
        let mut state = self.0.lock();
        let over = state.until.is_none_or(|until| until <= Instant::now());
        if over {
            state.tended = false;
        }
        over
    }
}

pub(super) async fn post(State(admin): State<Arc<Admin>>, call: Call) -> Result<Json<Value>, Refusal> {
    let body: Maintenance = call.parse()?;
    if body.ttl_ms > TTL_MS_MAX {
        return Err(Refusal::bad("bad_ttl", format!("ttl_ms must be at most {TTL_MS_MAX}")));
    }
    fence::verify(&admin.context, body.fence).await?;
    let ttl = Duration::from_millis(body.ttl_ms);
    if admin.maintenance.set(ttl) {
        tokio::spawn(tend(Arc::clone(&admin)));
    }
    tracing::info!(ttl_ms = body.ttl_ms, "maintenance");
    Ok(Json(json!({"ttl_ms": body.ttl_ms, "boot_id": admin.context.boot_id})))
}

async fn tend(admin: Arc<Admin>) {
    while !admin.maintenance.ended() {
        hand_over_all(&admin.context).await;
        tokio::select! {
            () = tokio::time::sleep(PACE) => {}
            () = admin.context.stopping.cancelled() => return,
        }
    }
    tracing::info!("maintenance is over");
}

async fn hand_over_all(context: &Arc<Context>) {
    for replica in context.streams.all_local().into_iter().filter(|r| r.leads() && r.is_replicated()) {
        if let Err(why) = replica.hand_over(context, None).await {
            tracing::debug!(stream = replica.spec.name, why, "still led here; tried again");
        }
    }
    let Some(raft) = context.meta.raft().filter(|_| context.meta.leads()) else { return };
    let up = |id: &u64| *id != context.node_id && context.transport.is_up(*id);
    let Some(to) = raft.state().members.voters().into_iter().find(up) else { return };
    if let Err(why) = raft.transfer_leader(to, Duration::from_secs(2)).await {
        tracing::debug!(why, "the catalogue is still led here; tried again");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_task_tends_and_the_next_request_after_the_end_starts_another() {
        let window = Window::default();
        assert!(window.remaining().is_none());
        assert!(window.set(Duration::from_secs(60)));
        assert!(!window.set(Duration::from_secs(60)), "the first task still runs");
        assert!(window.remaining().is_some() && !window.ended());
        assert!(!window.set(Duration::ZERO));
        assert!(window.remaining().is_none() && window.ended());
        assert!(window.set(Duration::from_secs(1)));
    }
}
