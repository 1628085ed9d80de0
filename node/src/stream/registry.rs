//! The streams this node knows: those with a replica here, and who leads each of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use headwater_core::ids::StreamId;
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
    full: Mutex<Vec<Arc<StreamReplica>>>,
    any_full: AtomicBool,
}

impl Streams {
    /// Makes a stream known; a replica that is already open stays.
    pub(crate) fn know(&self, id: StreamId, name: &str, only: Option<NodeId>) {
        let mut inner = self.inner.lock();
        inner.names.insert(name.to_owned(), id.get());
        let slot = inner.slots.entry(id.get()).or_insert_with(|| Slot {
            name: name.to_owned(),
            replica: None,
            claim: None,
            only,
        });
        slot.only = only;
    }

    pub(crate) fn open(&self, replica: Arc<StreamReplica>) {
        if let Some(slot) = self.inner.lock().slots.get_mut(&replica.spec.stream.get()) {
            slot.replica = Some(replica);
        }
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
        if let Some(replica) = &slot.replica {
            if replica.leads() {
                return Owner::Here(Arc::clone(replica));
            }
            // Raft at this replica knows best who leads.
            return match replica.followed_leader() {
                Some(node) if node != replica.spec.raft_id.get() => Owner::Node(node),
                _ => Owner::Nobody,
            };
        }
        match slot.only.or(slot.claim.map(|(_, node)| node)) {
            Some(node) => Owner::Node(node),
            None => Owner::Nobody,
        }
    }

    /// A node says that it leads a stream.
    pub(crate) fn claimed(&self, id: u64, term: u64, node: NodeId) {
        if let Some(slot) = self.inner.lock().slots.get_mut(&id)
            && slot.claim.is_none_or(|(known, _)| known <= term)
        {
            slot.claim = Some((term, node));
        }
    }

    /// Publishers to this replica must wait before they read on.
    pub(crate) fn note_full(&self, replica: &Arc<StreamReplica>) {
        let mut full = self.full.lock();
        if !full.iter().any(|r| Arc::ptr_eq(r, replica)) {
            full.push(Arc::clone(replica));
        }
        self.any_full.store(true, Ordering::Release);
    }

    /// The replicas that were noted as full and still are.
    pub(crate) fn take_full(&self) -> Vec<Arc<StreamReplica>> {
        if !self.any_full.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut full = self.full.lock();
        full.retain(|r| r.is_full());
        self.any_full.store(!full.is_empty(), Ordering::Release);
        full.clone()
    }
}
