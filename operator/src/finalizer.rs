//! When a Stream carries our finalizer, and when it goes.
//!
//! Only a Stream whose deletion shall remove data needs one. Without the operator, every other Stream, and so every
//! namespace of such Streams, can be deleted.

use headwater_crds::{DeletionPolicy, FORCE_FINALIZE_ANNOTATION, STREAM_FINALIZER, Stream};
use kube_client::ResourceExt as _;

/// What is known of the StreamCluster object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClusterObject {
    Present,
    /// It does not exist, or is being deleted.
    Gone,
}

/// Why the finalizer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    /// The policy keeps the data; so it does when it was changed after the deletion began.
    Retained,
    /// Somebody forced it, with the annotation.
    Forced,
    /// There is no cluster object that could be asked any more.
    ClusterGone,
}

/// What to do about the finalizer before anything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finality {
    /// Nothing: go on.
    Keep,
    /// Add it before anything may exist on the server.
    Add,
    /// Remove it; the object may then vanish.
    Remove(Release),
    /// The policy no longer wants it; the object lives on.
    Drop,
    /// Being deleted, and not held by us.
    Leave,
    /// Being deleted: remove the data, then the finalizer.
    Delete,
}

/// Decides from the object and from whether its cluster object exists.
pub(crate) fn decide(stream: &Stream, cluster: ClusterObject) -> Finality {
    let held = holds(stream);
    let deletes = stream.spec.deletion() == DeletionPolicy::Delete;
    if stream.metadata.deletion_timestamp.is_none() {
        return match (held, deletes) {
            (false, true) => Finality::Add,
            (true, false) => Finality::Drop,
            (true, true) | (false, false) => Finality::Keep,
        };
    }
    if !held {
        Finality::Leave
    } else if !deletes {
        Finality::Remove(Release::Retained)
    } else if stream.annotations().get(FORCE_FINALIZE_ANNOTATION).is_some_and(|value| value == "true") {
        Finality::Remove(Release::Forced)
    } else if cluster == ClusterObject::Gone {
        Finality::Remove(Release::ClusterGone)
    } else {
        Finality::Delete
    }
}

/// Whether our finalizer is on the object.
pub(crate) fn holds(stream: &Stream) -> bool {
    stream.finalizers().iter().any(|name| name == STREAM_FINALIZER)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(policy: &str, held: bool, deleting: bool, forced: bool) -> Stream {
        let mut object = serde_json::json!({
            "apiVersion": "headwater.dev/v1alpha1",
            "kind": "Stream",
            "metadata": {"name": "s", "annotations": {}},
            "spec": {"deletionPolicy": policy},
        });
        if held {
            object["metadata"]["finalizers"] = serde_json::json!(["other/one", STREAM_FINALIZER]);
        }
        if deleting {
            object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        }
        if forced {
            object["metadata"]["annotations"][FORCE_FINALIZE_ANNOTATION] = "true".into();
        }
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn the_finalizer_is_there_only_while_deletion_removes_data() {
        use ClusterObject::{Gone, Present};
        let table = [
            // policy, held, deleting, forced, cluster, decision
            ("Retain", false, false, false, Present, Finality::Keep),
            ("Retain", true, false, false, Present, Finality::Drop),
            ("Retain", false, true, false, Present, Finality::Leave),
            ("Retain", true, true, false, Present, Finality::Remove(Release::Retained)),
            ("Retain", true, true, true, Gone, Finality::Remove(Release::Retained)),
            ("Delete", false, false, false, Gone, Finality::Add),
            ("Delete", true, false, true, Gone, Finality::Keep),
            ("Delete", true, true, false, Present, Finality::Delete),
            ("Delete", true, true, false, Gone, Finality::Remove(Release::ClusterGone)),
            ("Delete", true, true, true, Present, Finality::Remove(Release::Forced)),
            ("Delete", false, true, false, Present, Finality::Leave),
        ];
        for (policy, held, deleting, forced, cluster, decision) in table {
            let found = decide(&stream(policy, held, deleting, forced), cluster);
            assert_eq!(found, decision, "{policy} held={held} deleting={deleting} forced={forced} {cluster:?}");
        }
    }
}
