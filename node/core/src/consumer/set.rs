//! All consumers of one stream.

use std::collections::BTreeMap;

use super::codec::Malformed;
use super::op::{ConsumerId, ConsumerOp, CreateConsumer, SeqRun, decode_ops};
use super::state::ConsumerState;
use super::view::LiveMessages;
use crate::ids::{StreamSeq, Timestamp};

/// What became of a create entry.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CreateOutcome {
    /// A new consumer.
    Created(ConsumerId),
    /// The name exists with the same configuration: nothing changed.
    Existing(ConsumerId),
    /// The name exists with another configuration: nothing changed.
    Conflict(ConsumerId),
}

/// What applying operations did, for the leader's replies and the stream's retention.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ConsumerEffects {
    /// One per create operation, in order.
    pub created: Vec<CreateOutcome>,
    /// Consumers with a new configuration: their pumps need `config_changed`.
    pub updated: Vec<ConsumerId>,
    /// Consumers with a new position: their pumps need `position_reset`.
    pub reset: Vec<ConsumerId>,
    /// Deleted consumers and their names.
    pub deleted: Vec<(ConsumerId, String)>,
    /// Messages that some consumer is done with: a work queue removes them, an interest stream asks
    /// [`ConsumerSet::needs`]. Not sorted across operations.
    pub settled: Vec<SeqRun>,
}

impl ConsumerEffects {
    /// Empties the lists and keeps their memory.
    pub fn clear(&mut self) {
        self.created.clear();
        self.updated.clear();
        self.reset.clear();
        self.deleted.clear();
        self.settled.clear();
    }
}

/// The consumers of a stream: replicated state, changed only by [`Self::apply`], [`Self::messages_removed`] and,
/// at recovery, [`Self::clamp`].
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ConsumerSet {
    pub(super) consumers: BTreeMap<ConsumerId, ConsumerState>,
    pub(super) names: BTreeMap<String, ConsumerId>,
    /// Ids given so far.
    pub(super) ids_given: u64,
}

impl ConsumerSet {
    /// Number of consumers.
    pub fn len(&self) -> usize {
        self.consumers.len()
    }

    /// Whether there are no consumers.
    pub fn is_empty(&self) -> bool {
        self.consumers.is_empty()
    }

    /// A consumer.
    pub fn get(&self, id: ConsumerId) -> Option<&ConsumerState> {
        self.consumers.get(&id)
    }

    /// The id behind a name.
    pub fn id_of(&self, name: &str) -> Option<ConsumerId> {
        self.names.get(name).copied()
    }

    /// A consumer by name.
    pub fn by_name(&self, name: &str) -> Option<(ConsumerId, &ConsumerState)> {
        let id = self.id_of(name)?;
        Some((id, self.consumers.get(&id)?))
    }

    /// All consumers, by id (the order of creation).
    pub fn iter(&self) -> impl Iterator<Item = (ConsumerId, &ConsumerState)> {
        self.consumers.iter().map(|(id, state)| (*id, state))
    }

    /// All consumers, by name.
    pub fn iter_by_name(&self) -> impl Iterator<Item = (&str, ConsumerId)> {
        self.names.iter().map(|(name, id)| (name.as_str(), *id))
    }

    /// Whether any consumer still needs the message (interest retention).
    pub fn needs(&self, seq: StreamSeq, subject: &[u8]) -> bool {
        self.consumers.values().any(|state| state.needs(seq, subject))
    }

    /// Applies the body of one `Consumers` record. A malformed body changes nothing.
    pub fn apply_body(
        &mut self,
        body: &[u8],
        live: &dyn LiveMessages,
        effects: &mut ConsumerEffects,
    ) -> Result<(), Malformed> {
        for op in decode_ops(body)? {
            self.apply(&op, live, effects);
        }
        Ok(())
    }

    /// Applies one operation. One about a consumer that is gone does nothing.
    pub fn apply(&mut self, op: &ConsumerOp, live: &dyn LiveMessages, effects: &mut ConsumerEffects) {
        if let ConsumerOp::Create { ts, create } = op {
            effects.created.push(self.create(*ts, create, live));
            return;
        }
        let Some(id) = op.id() else {
            return;
        };
        if matches!(op, ConsumerOp::Delete { .. }) {
            self.delete(id, effects);
            return;
        }
        let Some(state) = self.consumers.get_mut(&id) else {
            return;
        };
        match op {
            ConsumerOp::Create { .. } | ConsumerOp::Delete { .. } => {}
            ConsumerOp::Update { update, .. } => {
                if state.config.name == update.config.name {
                    state.set_config(update.config.clone(), update.config_json.clone());
                    effects.updated.push(id);
                }
            }
            ConsumerOp::Reset { next, .. } => {
                state.apply_reset(*next);
                effects.reset.push(id);
            }
            other => state.apply_delta(other, live, &mut effects.settled),
        }
    }

    /// Messages `first..=last` left the stream; gaps in that range do not matter.
    pub fn messages_removed(&mut self, first: StreamSeq, last: StreamSeq) {
        for state in self.consumers.values_mut() {
            state.messages_removed(first, last);
        }
    }

    /// Moves consumers back that are ahead of their stream (one that lost its tail under a relaxed mode); returns
    /// their names, for a warning.
    pub fn clamp(&mut self, next_seq: StreamSeq) -> Vec<String> {
        self.consumers
            .values_mut()
            .filter_map(|state| state.clamp(next_seq).then(|| state.config.name.clone()))
            .collect()
    }

    fn create(&mut self, ts: Timestamp, create: &CreateConsumer, live: &dyn LiveMessages) -> CreateOutcome {
        if let Some((id, existing)) = self.by_name(&create.config.name) {
            let same = existing.config == create.config && existing.config_json == create.config_json;
            return if same { CreateOutcome::Existing(id) } else { CreateOutcome::Conflict(id) };
        }
        self.ids_given += 1;
        let id = ConsumerId::new(self.ids_given);
        self.names.insert(create.config.name.clone(), id);
        self.consumers.insert(id, ConsumerState::new(create, ts, live));
        CreateOutcome::Created(id)
    }

    fn delete(&mut self, id: ConsumerId, effects: &mut ConsumerEffects) {
        if let Some(state) = self.consumers.remove(&id) {
            self.names.remove(&state.config.name);
            effects.deleted.push((id, state.config.name));
        }
    }
}

impl ConsumerState {
    /// Applies an operation that neither creates, replaces nor deletes.
    pub(super) fn apply_delta(&mut self, op: &ConsumerOp, live: &dyn LiveMessages, settled: &mut Vec<SeqRun>) {
        match op {
            ConsumerOp::Delivered { ts, runs, .. } => self.apply_delivered(*ts, runs, live, settled),
            ConsumerOp::Ack { runs, .. } | ConsumerOp::Term { runs, .. } => self.apply_settled(runs, settled),
            ConsumerOp::AckAll { through, .. } => self.apply_ack_all(*through, settled),
            ConsumerOp::Nak { due, runs, .. } => self.apply_nak(*due, runs),
            ConsumerOp::Progress { ts, runs, .. } => self.apply_progress(*ts, runs),
            ConsumerOp::Exhausted { runs, .. } => self.apply_exhausted(runs),
            ConsumerOp::Skip { through, .. } => self.apply_skip(*through, live),
            ConsumerOp::Reset { next, .. } => self.apply_reset(*next),
            ConsumerOp::Create { .. } | ConsumerOp::Update { .. } | ConsumerOp::Delete { .. } => {}
        }
    }
}
