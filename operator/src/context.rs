//! What every reconcile shares.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use kube_client::core::Resource;
use kube_client::{Api, Client};
use tokio::time::Instant;

use headwater_plan::Step;

use crate::events::Events;
use crate::lease::Tenure;
use crate::metrics::Metrics;
use crate::observatory::Observatory;

/// Field manager of every server-side apply.
pub(crate) const FIELD_MANAGER: &str = "headwater-operator";
/// Entries in [`Notes`] from which on old ones are dropped.
const NOTES_SWEEP_FROM: usize = 1024;
/// An object that was not reconciled for this long is gone: longer than the longest resync period.
const NOTES_MAX_AGE: Duration = Duration::from_secs(2 * 3600);

/// What every reconcile shares.
pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) observatory: Observatory,
    pub(crate) events: Events,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) tenure: Tenure,
    /// `None` watches every namespace.
    namespace: Option<String>,
    /// Pause between two looks at an object at rest.
    pub(crate) resync: Duration,
    notes: Notes,
}

impl Context {
    pub(crate) fn new(
        client: Client,
        observatory: Observatory,
        events: Events,
        metrics: Arc<Metrics>,
        tenure: Tenure,
        namespace: Option<String>,
        resync: Duration,
    ) -> Self {
        Self { client, observatory, events, metrics, tenure, namespace, resync, notes: Notes::default() }
    }

    /// The watched objects of a kind.
    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        match &self.namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        }
    }

    /// What this process remembers of an object. Decisions never depend on it, only their pace does.
    pub(crate) fn note<R>(&self, uid: &str, change: impl FnOnce(&mut Note) -> R) -> R {
        self.notes.with(uid, change)
    }

    /// Drops what is remembered of an object.
    pub(crate) fn forget(&self, uid: &str) {
        self.notes.lock().remove(uid);
    }
}

/// A step that a node refused for good.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) step: Step,
    pub(crate) why: String,
    pub(crate) at: Instant,
}

/// What is remembered of one object between two reconciles.
#[derive(Debug)]
pub(crate) struct Note {
    /// When this process last wrote its status.
    pub(crate) status_written: Option<Instant>,
    /// Failed reconciles in a row.
    pub(crate) failures: u32,
    pub(crate) refusal: Option<Refusal>,
    touched: Instant,
}

#[derive(Default)]
struct Notes(Mutex<HashMap<String, Note>>);

impl Notes {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Note>> {
        // A panic elsewhere leaves these plain values usable.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<R>(&self, uid: &str, change: impl FnOnce(&mut Note) -> R) -> R {
        let now = Instant::now();
        let mut notes = self.lock();
        if notes.len() >= NOTES_SWEEP_FROM && !notes.contains_key(uid) {
            notes.retain(|_, note| now.duration_since(note.touched) < NOTES_MAX_AGE);
        }
        let note = notes.entry(uid.to_owned()).or_insert_with(|| Note {
            status_written: None,
            failures: 0,
            refusal: None,
            touched: now,
        });
        note.touched = now;
        change(note)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn notes_of_objects_that_are_gone_are_dropped() {
        let notes = Notes::default();
        for n in 0..NOTES_SWEEP_FROM {
            notes.with(&n.to_string(), |note| note.failures += 1);
        }
        tokio::time::advance(NOTES_MAX_AGE).await;
        notes.with("0", |note| assert_eq!(note.failures, 1));
        notes.with("new", |note| assert_eq!(note.failures, 0));
        assert_eq!(notes.lock().len(), 2);
    }
}
