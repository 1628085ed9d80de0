//! Keeps streams as manifests say, for `dev` and `demo`: look, plan, check the plan, take one step.

use headwater_admin_client::{ClientError, FailureClass};
use headwater_plan::{Desired, NodeAnswer, Observed, Plan, WaitingOn, assemble, lint, plan, render, request};

use super::fleet::Fleet;
use super::now;

/// What became of a planned step.
#[derive(Debug)]
pub(crate) enum Taken {
    Yes,
    /// What it was planned from is old: plan again.
    Overtaken,
    /// Nobody could take it now.
    NotNow(ClientError),
    /// It is refused, and will be until the manifest or the cluster changes.
    Refused(ClientError),
}

/// One look at one stream, and what was done.
#[derive(Debug)]
pub(crate) struct Pass {
    pub(crate) observed: Observed,
    pub(crate) plan: Plan,
    /// The step in words, and what became of it.
    pub(crate) step: Option<(String, Taken)>,
}

impl Pass {
    /// Whether all is as wanted.
    pub(crate) fn is_done(&self) -> bool {
        self.plan.is_done()
    }
}

/// See the module's description.
pub(crate) struct Reconciler {
    pub(crate) fleet: Fleet,
}

impl Reconciler {
    pub(crate) fn new(fleet: Fleet) -> Self {
        Self { fleet }
    }

    /// Asks every node, for the passes that follow at once.
    pub(crate) async fn look(&self) -> Vec<NodeAnswer> {
        self.fleet.look().await
    }

    /// Takes the next step of one stream, if there is one.
    pub(crate) async fn pass(&mut self, answers: &[NodeAnswer], desired: &Desired) -> Pass {
        let entry = self.fleet.entry(answers, &desired.account, &desired.name).await;
        let observed = assemble(&desired.account, &desired.name, answers, entry, now());
        let plan = checked(desired, &observed);
        let Some(step) = &plan.step else {
            return Pass { observed, plan, step: None };
        };
        let words = render::step(step);
        let result = match self.fleet.fence(answers).await {
            Ok(fence) => {
                let call = request(step, desired, &observed, fence);
                // A step that names a node is about that node; the leader takes all others.
                let first =
                    step.node().filter(|_| matches!(call, headwater_plan::Request::Transfer(_))).or(observed.leader());
                self.fleet.send(answers, first, (&desired.account, &desired.name), &call).await
            }
            Err(error) => Err(error),
        };
        let taken = match result {
            Ok(()) => Taken::Yes,
            Err(error) => match error.class() {
                FailureClass::Overtaken | FailureClass::NotFound => Taken::Overtaken,
                FailureClass::Transient => Taken::NotNow(error),
                FailureClass::Credentials | FailureClass::Terminal => Taken::Refused(error),
            },
        };
        Pass { observed, plan, step: Some((words, taken)) }
    }
}

/// The planner's answer, held back if it breaks a rule.
pub(super) fn checked(desired: &Desired, observed: &Observed) -> Plan {
    let planned = plan(desired, observed, now());
    match lint(desired, observed, &planned, now()) {
        Ok(()) => planned,
        Err(violations) => {
            let why: Vec<String> = violations.iter().map(ToString::to_string).collect();
            // A bug of ours: refusing to act is the point of the check.
            Plan::wait(vec![WaitingOn::Refused { why: format!("the plan breaks a rule: {}", why.join("; ")) }])
        }
    }
}
