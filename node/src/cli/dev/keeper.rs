//! Keeps the streams of the manifests, and says in lines what it does and what it waits for.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use headwater_plan::{Desired, Observed, Plan, WaitingOn};

use crate::planner::{Pass, Reconciler, Taken};

/// How long a refused step is not tried again, as long as the manifests stay the same.
const REFUSED_PAUSE: Duration = Duration::from_secs(30);

/// How a stream stood at the last look.
#[derive(Default)]
struct Standing {
    /// What was last said about it, numbers aside.
    said: String,
    refused: Option<(String, Instant)>,
    done: bool,
}

/// See the module's description.
pub(crate) struct Keeper {
    reconciler: Reconciler,
    desired: Vec<Desired>,
    standing: HashMap<String, Standing>,
}

impl Keeper {
    pub(crate) fn new(reconciler: Reconciler) -> Self {
        Self { reconciler, desired: Vec::new(), standing: HashMap::new() }
    }

    /// Takes over new manifests; returns what is to be said about streams that have none any more.
    pub(crate) fn set(&mut self, desired: Vec<Desired>) -> Vec<String> {
        let gone: Vec<String> = self
            .desired
            .iter()
            .filter(|old| desired.iter().all(|new| new.name != old.name))
            .map(|old| format!("{}: in no manifest any more; the stream and its messages stay", old.name))
            .collect();
        self.desired = desired;
        self.standing.clear();
        gone
    }

    /// Whether every stream was as its manifest says at the last look.
    pub(crate) fn is_done(&self) -> bool {
        self.desired.iter().all(|d| self.standing.get(&d.name).is_some_and(|s| s.done))
    }

    /// Gives the fence back, so that whoever keeps the streams next need not wait for its end.
    pub(crate) async fn release(&mut self) {
        self.reconciler.fleet.release().await;
    }

    /// One look at every stream and at most one step for each. Returns what there is to say.
    pub(crate) async fn turn(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.desired.is_empty() {
            return lines;
        }
        let answers = self.reconciler.look().await;
        for desired in &self.desired {
            let standing = self.standing.entry(desired.name.clone()).or_default();
            if standing.refused.as_ref().is_some_and(|(_, at)| at.elapsed() < REFUSED_PAUSE) {
                continue;
            }
            let pass = self.reconciler.pass(&answers, desired).await;
            if let Some(line) = standing.note(&pass) {
                lines.push(format!("{}: {line}", desired.name));
            }
        }
        if self.is_done() {
            self.release().await;
        }
        lines
    }
}

impl Standing {
    /// What there is to say about a pass, if it was not said before.
    fn note(&mut self, pass: &Pass) -> Option<String> {
        self.done = pass.is_done();
        let (key, line) = match &pass.step {
            Some((step, Taken::Yes)) => {
                // The same step twice is news: it did not last.
                self.said.clear();
                return Some(format!("{step}{}", promise(&pass.observed)));
            }
            Some((_, Taken::Overtaken)) => return None,
            Some((step, Taken::NotNow(why))) => (format!("not now {step}"), format!("waits to {step}: {why}")),
            Some((step, Taken::Refused(why))) => {
                self.refused = Some((step.clone(), Instant::now()));
                (format!("refused {step} {why}"), format!("refused: {step}: {why}"))
            }
            None if self.done => {
                let leader = pass.observed.leader().map(|l| format!(", leader {l}")).unwrap_or_default();
                let line = format!("as its manifest says{}{leader}", promise(&pass.observed));
                (line.clone(), line)
            }
            None => (waiting_key(&pass.plan), waiting_text(&pass.plan)),
        };
        if self.said == key {
            return None;
        }
        self.said = key;
        Some(line)
    }
}

fn promise(observed: &Observed) -> String {
    observed.promise().map(|p| format!("; promise {p}")).unwrap_or_default()
}

fn waiting_text(plan: &Plan) -> String {
    let texts: Vec<String> = plan.waiting.iter().map(|w| format!("waits: {w}")).collect();
    texts.join("; ")
}

/// What is awaited, without the numbers that change while it is.
fn waiting_key(plan: &Plan) -> String {
    let keys: Vec<String> = plan
        .waiting
        .iter()
        .map(|w| match w {
            WaitingOn::Drain { node, .. } => format!("drain {node}"),
            WaitingOn::Leader { .. } => "leader".to_owned(),
            WaitingOn::Voter { node, .. } => format!("voter {node}"),
            other => other.to_string(),
        })
        .collect();
    keys.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner::ClientError;

    fn pass(plan: Plan, step: Option<(String, Taken)>) -> Pass {
        Pass { observed: Observed::nothing("x"), plan, step }
    }

    fn drain(persisted: u64) -> Pass {
        let drain = WaitingOn::Drain { node: "n2".into(), persisted: Some(persisted), barrier: Some(9) };
        pass(Plan::wait(vec![drain]), None)
    }

    #[test]
    fn a_wait_is_told_once_and_a_step_every_time() {
        let mut standing = Standing::default();
        assert!(standing.note(&drain(1)).unwrap().contains("n2 drains"));
        assert_eq!(standing.note(&drain(2)), None);
        let step = || pass(Plan::default(), Some(("grant".into(), Taken::Yes)));
        assert!(standing.note(&step()).is_some() && standing.note(&step()).is_some());
        assert!(standing.note(&drain(3)).is_some(), "after a step it is news again");
        assert!(standing.note(&pass(Plan::default(), None)).unwrap().contains("as its manifest says"));
        assert!(standing.done);
    }

    #[test]
    fn a_refusal_is_kept_for_a_while() {
        let mut standing = Standing::default();
        let why = ClientError::Refused { status: 400, code: "10065".into(), message: "subjects overlap".into() };
        let plan = Plan::wait(vec![WaitingOn::ReplicasChange]);
        let line = standing.note(&pass(plan, Some(("create the stream".into(), Taken::Refused(why))))).unwrap();
        assert!(line.contains("subjects overlap") && standing.refused.is_some() && !standing.done);
    }
}
