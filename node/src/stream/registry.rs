//! The streams this node knows: those with a replica here, and who leads each of them.

use std::collections::HashMap;
use std::sync::Arc;

use headwater_core::ids::StreamId;
use headwater_core::rejoin::Standing;
use parking_lot::Mutex;

use super::replica::StreamReplica;
use crate::transport::NodeId;

/// Who answers for a stream.
pub(crate) enum Owner {
    /// Its leader is here.
    Here(Arc<StreamReplica>),
    Node(NodeId),
    Nobody,
}

struct Slot {
    name: String,
    replica: Option<Arc<StreamReplica>>,
    /// A task opens the replica here, and opens it again when it has failed.
    kept_open: bool,
    /// Why it could not be opened.
    not_opened: Option<String>,
    /// Where its replica here stands, while it is kept out of its group.
    kept_out: Option<Standing>,
    /// The newest claim of leadership that was heard: term and node.
    claim: Option<(u64, NodeId)>,
    /// The only node of a stream with one replica.
    only: Option<NodeId>,
}

#[derive(Default)]
struct Inner {
    slots: HashMap<u64, Slot>,
    names: HashMap<String, u64>,
}

/// See the module's description.
#[derive(Default)]
pub(crate) struct Streams {
    inner: Mutex<Inner>,
}

impl Streams {
    /// Makes a stream known; a replica that is already open stays.
    pub(crate) fn know(&self, id: StreamId, name: &str, only: Option<NodeId>) {
        let mut inner = self.inner.lock();
        inner.names.insert(name.to_owned(), id.get());
        let slot = inner.slots.entry(id.get()).or_insert_with(|| Slot {
            name: name.to_owned(),
            replica: None,
            kept_open: false,
            not_opened: None,
            kept_out: None,
            claim: None,
            only,
        });
        slot.only = only;
    }

    /// True for the one caller that is to open the replica here and keep it open.
    pub(crate) fn start_opening(&self, id: StreamId) -> bool {
        let mut inner = self.inner.lock();
        inner.slots.get_mut(&id.get()).is_some_and(|slot| !std::mem::replace(&mut slot.kept_open, true))
    }

    /// Whether the stream is still known.
    pub(crate) fn is_wanted(&self, id: StreamId) -> bool {
        self.inner.lock().slots.contains_key(&id.get())
    }

    /// The replica here is open, in place of the one before it. False if the stream is gone: then it is not.
    pub(crate) fn open(&self, replica: Arc<StreamReplica>) -> bool {
        let mut inner = self.inner.lock();
        let Some(slot) = inner.slots.get_mut(&replica.spec.stream.get()) else { return false };
        slot.replica = Some(replica);
        slot.not_opened = None;
        true
    }

    /// The replica here could not be opened.
    pub(crate) fn not_opened(&self, id: StreamId, why: String) {
        if let Some(slot) = self.inner.lock().slots.get_mut(&id.get()) {
            slot.not_opened = Some(why);
        }
    }

    /// The replica here is kept out of its group, or is not any more.
    pub(crate) fn keep_out(&self, id: StreamId, standing: Option<Standing>) {
        if let Some(slot) = self.inner.lock().slots.get_mut(&id.get()) {
            slot.kept_out = standing;
        }
    }

    /// Where the replica here stands, if it is kept out of its group.
    pub(crate) fn kept_out(&self, id: u64) -> Option<Standing> {
        self.inner.lock().slots.get(&id)?.kept_out
    }

    /// The streams whose replica here is not open, and why if it could not be opened.
    pub(crate) fn unopened(&self) -> Vec<(StreamId, Option<String>)> {
        let inner = self.inner.lock();
        let unopened = inner.slots.iter().filter(|(_, slot)| slot.kept_open && slot.replica.is_none());
        unopened.map(|(id, slot)| (StreamId::new(*id), slot.not_opened.clone())).collect()
    }

    /// Forgets a stream; its replica, if there was one here.
    pub(crate) fn forget(&self, id: StreamId) -> Option<Arc<StreamReplica>> {
        let mut inner = self.inner.lock();
        let slot = inner.slots.remove(&id.get())?;
        if inner.names.get(&slot.name) == Some(&id.get()) {
            inner.names.remove(&slot.name);
        }
        slot.replica
    }

    pub(crate) fn known(&self) -> Vec<StreamId> {
        self.inner.lock().slots.keys().map(|id| StreamId::new(*id)).collect()
    }

    pub(crate) fn id_of(&self, name: &str) -> Option<u64> {
        self.inner.lock().names.get(name).copied()
    }

    pub(crate) fn local(&self, id: u64) -> Option<Arc<StreamReplica>> {
        self.inner.lock().slots.get(&id)?.replica.clone()
    }

    /// Every replica on this node, by stream.
    pub(crate) fn all_local(&self) -> Vec<Arc<StreamReplica>> {
        let mut all: Vec<_> = self.inner.lock().slots.values().filter_map(|s| s.replica.clone()).collect();
        all.sort_by_key(|r| r.spec.stream);
        all
    }

    pub(crate) fn owner(&self, id: u64) -> Owner {
        let inner = self.inner.lock();
        let Some(slot) = inner.slots.get(&id) else { return Owner::Nobody };
        let replica = slot.replica.as_ref();
        if let Some(replica) = replica.filter(|r| r.leads()) {
            return Owner::Here(Arc::clone(replica));
        }
        let leader = match replica {
            // Raft at this replica knows best who leads; a stopped one hears no more than a node without any.
            Some(replica) if !replica.is_stopped() => replica.followed_leader(),
            _ => slot.only.or(slot.claim.map(|(_, node)| node)),
        };
        let here = replica.map(|r| r.context.node_id);
        leader.filter(|node| Some(*node) != here).map_or(Owner::Nobody, Owner::Node)
    }

    /// A node says that it leads a stream.
    pub(crate) fn claimed(&self, id: u64, term: u64, node: NodeId) {
        if let Some(slot) = self.inner.lock().slots.get_mut(&id)
            && slot.claim.is_none_or(|(known, _)| known <= term)
        {
            slot.claim = Some((term, node));
        }
    }
}
