//! Refuses plans that break a rule, whatever produced them.
//!
//! The rules are stated on the observation, without calling the planner, so that a mistake there is
//! caught here. A plan with a violation is not executed.

use std::fmt;

use headwater_crds::jetstream::differences;
use headwater_crds::{AdoptionPolicy, DeletionPolicy, ReplicaPhase, ReplicaRole, UpdatePolicy};
use serde_json::Value;

use crate::desired::Desired;
use crate::observed::{ANSWER_AGE_MAX_MS, GroupView, Observed, ReplicaView, ServerStream, StreamView};
use crate::step::{Plan, Step};
use crate::time::Now;
use crate::wire::Durability;

/// A broken rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// Nothing is done while paused.
    PausedMeansStill,
    /// A step needs the fact it is about to be known.
    KnownStream,
    /// Only what was seen missing is created.
    CreateOnlyAbsent,
    /// Only the owner changes or deletes a stream, and only as its policy allows.
    PolicyAllows,
    /// Data is deleted only after its own object was seen being deleted, under policy Delete.
    DeleteOnlyOnRequest,
    /// Nothing but deletion happens to an object that is being deleted.
    DeletingMeansDelete,
    /// Immutable fields stay.
    ImmutableStays,
    /// The step carries the generation that was seen.
    GenerationSeen,
    /// A replica is touched only with every voter in view.
    EveryVoterInView,
    /// At most one replica is in motion.
    OneInMotion,
    /// The leader moves last, and not while it leads others.
    LeaderLast,
    /// Tightening needs every voter recovered.
    TightenOnlySound,
    /// A grant goes to a voter that needs it.
    GrantNeeded,
    /// Leadership goes from the leader to a voter that has recovered and moved.
    HeirFit,
    /// A change of size and a durability change exclude each other.
    ResizeAlone,
    /// Doing nothing without being done has a reason.
    WaitingSaysWhy,
}

/// A broken rule, and what breaks it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// What breaks it.
    pub why: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.why)
    }
}

/// Checks a plan against every rule.
///
/// # Errors
/// Every violation at once.
pub fn lint(desired: &Desired, observed: &Observed, plan: &Plan, now: Now) -> Result<(), Vec<Violation>> {
    let mut lint = Lint { desired, observed, now, found: Vec::new() };
    match &plan.step {
        Some(step) => lint.step(step),
        None => lint.rest(plan),
    }
    if lint.found.is_empty() { Ok(()) } else { Err(lint.found) }
}

struct Lint<'a> {
    desired: &'a Desired,
    observed: &'a Observed,
    now: Now,
    found: Vec<Violation>,
}

impl<'a> Lint<'a> {
    fn require(&mut self, holds: bool, rule: Rule, why: impl Into<String>) {
        if !holds {
            let why = why.into();
            self.found.push(Violation { rule, why });
        }
    }

    fn step(&mut self, step: &Step) {
        self.require(!self.desired.paused, Rule::PausedMeansStill, step.kind());
        if let Step::CreateStream { config } = step {
            self.create(config);
            return;
        }
        let StreamView::Present(server) = &self.observed.stream else {
            self.require(false, Rule::KnownStream, "the stream was not seen");
            return;
        };
        if !matches!(step, Step::DeleteStream { .. }) {
            let why = step.kind();
            self.require(!self.desired.deleting, Rule::DeletingMeansDelete, why);
        }
        match step {
            Step::CreateStream { .. } => {}
            Step::UpdateStream { config, generation, .. } => {
                let allowed = self.owned(server) && self.desired.update == UpdatePolicy::Enforce;
                self.require(allowed, Rule::PolicyAllows, "update");
                self.put(server, config, *generation);
            }
            Step::Adopt { config, generation, .. } => {
                let allowed = match self.desired.adoption {
                    AdoptionPolicy::Never => false,
                    AdoptionPolicy::IfUnowned => server.owner.is_none(),
                    AdoptionPolicy::Always => !self.owned(server),
                };
                let allowed = allowed && self.desired.update != UpdatePolicy::ObserveOnly;
                self.require(allowed, Rule::PolicyAllows, "adoption");
                self.put(server, config, *generation);
            }
            Step::DeleteStream { generation } => {
                let asked = self.desired.deleting && self.desired.deletion == DeletionPolicy::Delete;
                self.require(asked, Rule::DeleteOnlyOnRequest, "deletion was not asked for");
                self.require(self.owned(server), Rule::PolicyAllows, "the stream is not ours");
                self.seen(server.generation, *generation);
            }
            Step::ProposeDurability { generation, .. } => {
                if let Some(group) = self.group() {
                    self.seen(group.generation.saturating_add(1), *generation);
                }
            }
            Step::GrantDurability { node, generation } => {
                if let Some(group) = self.group() {
                    self.seen(group.generation, *generation);
                    self.grant(server, group, node);
                }
            }
            Step::TransferLeadership { from, to } => {
                if let Some(group) = self.group() {
                    self.transfer(server, group, from, to);
                }
            }
        }
    }

    fn create(&mut self, config: &Value) {
        let absent = self.observed.stream == StreamView::Absent;
        self.require(absent, Rule::CreateOnlyAbsent, "the stream was not seen missing");
        let allowed = self.desired.update != UpdatePolicy::ObserveOnly;
        self.require(allowed, Rule::PolicyAllows, "creation under ObserveOnly");
        self.require(!self.desired.deleting, Rule::DeletingMeansDelete, "creation");
        let named = config.get("name").and_then(Value::as_str) == Some(&self.desired.name);
        self.require(named, Rule::ImmutableStays, "the name differs from the wish");
    }

    fn put(&mut self, server: &ServerStream, config: &Value, generation: u64) {
        self.seen(server.generation, generation);
        let changes = differences(&server.config, config);
        for change in &changes {
            let moves = match change.field.as_str() {
                "storage" => true,
                "deny_delete" | "deny_purge" => change.to == Value::Bool(false),
                _ => false,
            };
            self.require(!moves, Rule::ImmutableStays, change.field.clone());
        }
        let renamed = config.get("name") != server.config.get("name");
        self.require(!renamed, Rule::ImmutableStays, "name");
        let resizes = changes.iter().any(|change| change.field == "num_replicas");
        if resizes && self.owned(server) {
            let moving: Vec<String> = self.moving().map(|v| v.node.clone()).collect();
            self.require(moving.is_empty(), Rule::ResizeAlone, moving.join(", "));
            self.everyone_in_view();
        }
    }

    fn grant(&mut self, server: &ServerStream, group: &GroupView, node: &str) {
        self.everyone_in_view();
        let moving: Vec<String> = self.moving().map(|v| v.node.clone()).collect();
        self.require(moving.is_empty(), Rule::OneInMotion, moving.join(", "));
        let unsettled = self.unsettled(server, group);
        self.require(unsettled.is_empty(), Rule::OneInMotion, unsettled.join(", "));

        let voter = self.observed.voters().find(|voter| voter.node == node);
        let Some(recorded) = voter.and_then(|voter| voter.recorded) else {
            self.require(false, Rule::GrantNeeded, format!("{node} is no known voter"));
            return;
        };
        let same = in_force(server, recorded.effective) == in_force(server, group.desired);
        self.require(!same, Rule::GrantNeeded, format!("{node} has what it is granted"));

        let voters = self.observed.voters().count();
        let leads = node == group.leader || voter.is_some_and(|voter| voter.role == ReplicaRole::Leader);
        self.require(voters == 1 || !leads, Rule::LeaderLast, format!("{node} leads"));

        let tightens = self.observed.voters().any(|voter| {
            voter.recorded.is_some_and(|recorded| {
                in_force(server, recorded.effective).tightens_to(in_force(server, group.desired))
            })
        });
        let unsound: Vec<String> = self
            .observed
            .voters()
            .filter(|voter| voter.phase != ReplicaPhase::Recovered)
            .map(|voter| voter.node.clone())
            .collect();
        if tightens {
            self.require(unsound.is_empty(), Rule::TightenOnlySound, unsound.join(", "));
        }
    }

    fn transfer(&mut self, server: &ServerStream, group: &GroupView, from: &str, to: &str) {
        self.everyone_in_view();
        let moving: Vec<String> = self.moving().map(|v| v.node.clone()).collect();
        self.require(moving.is_empty(), Rule::OneInMotion, moving.join(", "));
        self.require(from == group.leader, Rule::HeirFit, format!("{from} does not lead"));
        self.require(from != to, Rule::HeirFit, "from and to are the same");
        let heir = self.observed.voters().find(|voter| voter.node == to);
        let fit = heir.is_some_and(|heir| {
            heir.phase == ReplicaPhase::Recovered
                && heir
                    .recorded
                    .is_some_and(|recorded| in_force(server, recorded.effective) == in_force(server, group.desired))
        });
        self.require(fit, Rule::HeirFit, format!("{to} has not recovered or not moved"));
        let waiting: Vec<String> = self
            .observed
            .voters()
            .filter(|voter| voter.node != group.leader)
            .filter(|voter| {
                voter
                    .recorded
                    .is_none_or(|recorded| in_force(server, recorded.effective) != in_force(server, group.desired))
            })
            .map(|voter| voter.node.clone())
            .collect();
        self.require(waiting.is_empty(), Rule::LeaderLast, waiting.join(", "));
    }

    /// Nothing is done: then everything is as wanted, or something is awaited.
    fn rest(&mut self, plan: &Plan) {
        if !plan.waiting.is_empty() {
            return;
        }
        if self.desired.deleting {
            let stays = self.desired.deletion == DeletionPolicy::Retain
                || match &self.observed.stream {
                    StreamView::Unknown { .. } => false,
                    StreamView::Absent => true,
                    StreamView::Present(server) => !self.owned(server),
                };
            self.require(stays, Rule::WaitingSaysWhy, "the stream is still to be deleted");
            return;
        }
        match &self.observed.stream {
            StreamView::Unknown { .. } => {
                self.require(false, Rule::WaitingSaysWhy, "nothing is known of the stream");
            }
            StreamView::Absent => {
                let nobody = !self.desired.is_managed();
                self.require(nobody, Rule::WaitingSaysWhy, "the stream is missing");
            }
            StreamView::Present(server) => {
                let synced = self.group().is_some_and(|group| {
                    in_force(server, Durability::from_config(&server.config)) == in_force(server, group.desired)
                        && self.observed.voters().all(|voter| {
                            voter.reach.is_reachable()
                                && voter.recorded.is_some_and(|recorded| {
                                    recorded.granted.is_none()
                                        && in_force(server, recorded.effective) == in_force(server, group.desired)
                                })
                        })
                });
                self.require(synced, Rule::WaitingSaysWhy, "durability is not as wanted");
            }
        }
    }

    fn owned(&self, server: &ServerStream) -> bool {
        server.owner.as_ref().is_some_and(|owner| owner.same(&self.desired.owner))
    }

    fn group(&mut self) -> Option<&'a GroupView> {
        let observed: &'a Observed = self.observed;
        self.require(observed.group.is_some(), Rule::EveryVoterInView, "no leader was seen");
        observed.group.as_ref()
    }

    fn seen(&mut self, seen: u64, carried: u64) {
        let why = format!("generation {carried} where {seen} follows from what was seen");
        self.require(seen == carried, Rule::GenerationSeen, why);
    }

    fn everyone_in_view(&mut self) {
        let missing: Vec<String> = self
            .observed
            .voters()
            .filter(|voter| !voter.reach.is_reachable() || self.now.since_ms(voter.at) > ANSWER_AGE_MAX_MS)
            .map(|voter| voter.node.clone())
            .collect();
        let some = self.observed.voters().next().is_some();
        self.require(some, Rule::EveryVoterInView, "no voter is known");
        self.require(missing.is_empty(), Rule::EveryVoterInView, missing.join(", "));
    }

    fn moving(&self) -> impl Iterator<Item = &'a ReplicaView> {
        let observed: &'a Observed = self.observed;
        observed.voters().filter(|voter| voter.recorded.is_none_or(|recorded| recorded.granted.is_some()))
    }

    /// Voters that the log says have moved and that say otherwise themselves.
    fn unsettled(&self, server: &ServerStream, group: &GroupView) -> Vec<String> {
        let wanted = in_force(server, group.desired);
        self.observed
            .voters()
            .filter(|voter| {
                let by_log = voter.recorded.is_some_and(|recorded| in_force(server, recorded.effective) == wanted);
                let by_word = voter.effective.is_some_and(|own| in_force(server, own) == wanted);
                by_log && !by_word
            })
            .map(|voter| voter.node.clone())
            .collect()
    }
}

fn in_force(server: &ServerStream, durability: Durability) -> Durability {
    durability.acting(Desired::storage(&server.config), server.replicas())
}
