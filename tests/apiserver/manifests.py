"""Manifests that the API server must refuse, and the field that each refusal must name."""


def stream(object_name="bad", /, **spec):
    """A Stream object; `name=` is the stream's name on the server."""
    return {"apiVersion": "headwater.dev/v1alpha1", "kind": "Stream",
            "metadata": {"name": object_name, "namespace": "default"}, "spec": spec}


def cluster(name="headwater", **external):
    """A StreamCluster object; without arguments its spec is empty."""
    return {"apiVersion": "headwater.dev/v1alpha1", "kind": "StreamCluster",
            "metadata": {"name": name, "namespace": "default"}, "spec": {"external": external} if external else {}}


GOOD_URL = {"clientURL": "nats://127.0.0.1:4222", "adminURLs": ["http://127.0.0.1:8222"]}

# (what is wrong, manifest, text that the message must contain)
REFUSED = [
    ("no subjects", stream(subjects=[]), "spec.subjects"),
    ("a space in a subject", stream(subjects=["a b"]), "spec.subjects[0]"),
    ("an empty token in a subject", stream(subjects=["a..b"]), "spec.subjects[0]"),
    ("unknown storage", stream(storage="tape"), "spec.storage"),
    ("unknown retention", stream(retention="forever"), "spec.retention"),
    ("unknown discard", stream(discard="none"), "spec.discard"),
    ("no replicas", stream(replicas=0), "spec.replicas"),
    ("too many replicas", stream(replicas=6), "spec.replicas"),
    ("replicas as text", stream(replicas="3"), "spec.replicas"),
    ("maxMsgs below -1", stream(maxMsgs=-2), "spec.maxMsgs"),
    ("maxBytes below -1", stream(maxBytes=-2), "spec.maxBytes"),
    ("maxMsgSize above 2 GiB", stream(maxMsgSize=2147483648), "spec.maxMsgSize"),
    ("days in maxAge", stream(maxAge="1d"), "spec.maxAge"),
    ("maxAge below 100ms", stream(maxAge="1ms"), "maxAge must be"),
    ("duplicateWindow above maxAge", stream(maxAge="1m", duplicateWindow="2m"), "spec.duplicateWindow"),
    ("duplicateWindow below 100ms", stream(duplicateWindow="1ms"), "duplicateWindow must be"),
    ("unknown syncMode", stream(syncMode="sometimes"), "spec.syncMode"),
    ("interval without syncInterval", stream(syncMode="interval"), "spec.syncInterval"),
    ("syncInterval without interval", stream(syncMode="always", syncInterval="1s"), "spec.syncInterval"),
    ("syncInterval alone", stream(syncInterval="1s"), "spec.syncInterval"),
    ("syncInterval too short", stream(syncMode="interval", syncInterval="1ms"), "syncInterval must be"),
    ("syncInterval too long", stream(syncMode="interval", syncInterval="10m"), "syncInterval must be"),
    ("allowAsyncFlush as text", stream(allowAsyncFlush="yes"), "spec.allowAsyncFlush"),
    ("a typing error in a field", stream(allowAsyncFlsh=True), "spec.allowAsyncFlsh"),
    ("discardPerSubject with discard old", stream(discardPerSubject=True), "spec.discardPerSubject"),
    ("denyPurge with allowRollup", stream(denyPurge=True, allowRollup=True), "spec.denyPurge"),
    ("a reserved metadata key", stream(metadata={"headwater.sync_mode": "noWait"}), "spec.metadata"),
    ("a dot in the stream's name", stream(name="a.b"), "spec.name"),
    ("a dot in the object's name only", stream("a.b"), "spec.name"),
    ("unknown deletionPolicy", stream(deletionPolicy="Drop"), "spec.deletionPolicy"),
    ("unknown updatePolicy", stream(updatePolicy="Always"), "spec.updatePolicy"),
    ("unknown adoptionPolicy", stream(adoptionPolicy="Maybe"), "spec.adoptionPolicy"),
    ("preventDelete against Delete", stream(preventDelete=True, deletionPolicy="Delete"), "spec.preventDelete"),
    ("preventUpdate against Enforce", stream(preventUpdate=True, updatePolicy="Enforce"), "spec.preventUpdate"),
    ("an empty cluster name", stream(clusterRef={"name": ""}), "spec.clusterRef.name"),
    ("a cluster without nodes", cluster(), "spec.external"),
    ("a cluster without adminURLs", cluster(clientURL="nats://127.0.0.1:4222", adminURLs=[]), "spec.external.adminURLs"),
    ("an admin URL of another scheme", cluster(**{**GOOD_URL, "adminURLs": ["ftp://x"]}), "spec.external.adminURLs[0]"),
    ("a client URL of another scheme", cluster(**{**GOOD_URL, "clientURL": "http://x"}), "spec.external.clientURL"),
]
# (what is wrong, spec before, spec after, text that the message must contain)
REFUSED_CHANGES = [
    ("change of storage", {"storage": "file"}, {"storage": "memory"}, "spec.storage"),
    ("removal of non-default storage", {"storage": "memory"}, {}, "spec.storage"),
    ("rename", {"name": "A"}, {"name": "B"}, "spec.name"),
    ("rename by removing the name", {"name": "A"}, {}, "spec.name"),
    ("change of cluster", {}, {"clusterRef": {"name": "other"}}, "spec.clusterRef"),
    ("denyDelete taken back", {"denyDelete": True}, {"denyDelete": False}, "spec.denyDelete"),
    ("denyPurge taken back", {"denyPurge": True}, {}, "spec.denyPurge"),
]
