//! Every CEL rule of the CRDs, evaluated without an API server: what it refuses and what it lets by.

use headwater_crds::{Stream, StreamCluster, crd};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::cel::Validator;
use serde_json::{Value, json};

fn schema(crd: &CustomResourceDefinition) -> Value {
    serde_json::to_value(&crd.spec.versions[0].schema.as_ref().unwrap().open_api_v3_schema).unwrap()
}

/// A Stream as the API server stores it, with the defaults of the schema.
fn stream(name: &str, spec: &Value) -> Value {
    let object = json!({
        "apiVersion": "headwater.dev/v1alpha1", "kind": "Stream",
        "metadata": {"name": name}, "spec": spec,
    });
    let typed: Stream = serde_json::from_value(object).unwrap();
    serde_json::to_value(typed).unwrap()
}

/// What the rules say, joined; empty if they let it by.
fn verdict(crd: &CustomResourceDefinition, new: &Value, old: Option<&Value>) -> String {
    match Validator::new().validate(&schema(crd), new, old) {
        Ok(()) => String::new(),
        Err(errors) => errors.to_string(),
    }
}

fn created(name: &str, spec: &Value) -> String {
    verdict(&crd::stream(), &stream(name, spec), None)
}

fn changed(old: &Value, new: &Value) -> String {
    verdict(&crd::stream(), &stream("s", new), Some(&stream("s", old)))
}

#[test]
fn streams_that_may_be_created() {
    for spec in [
        json!({}),
        json!({"maxAge": "0s", "duplicateWindow": "2m"}),
        json!({"maxAge": "1h30m", "duplicateWindow": "1h30m"}),
        json!({"syncMode": "interval", "syncInterval": "10ms"}),
        json!({"syncMode": "interval", "syncInterval": "5m"}),
        json!({"syncMode": "always", "allowAsyncFlush": true, "replicas": 3}),
        json!({"discardPerSubject": true, "discard": "new", "maxMsgsPerSubject": 1}),
        json!({"preventDelete": true, "deletionPolicy": "Retain"}),
        json!({"preventDelete": false, "deletionPolicy": "Delete"}),
        json!({"preventUpdate": true, "updatePolicy": "ObserveOnly"}),
        json!({"metadata": {"team": "shop"}}),
    ] {
        assert_eq!(created("s", &spec), "", "{spec}");
    }
    assert_eq!(created("a.b", &json!({"name": "AB"})), "");
}

#[test]
fn streams_that_are_refused_with_a_message_that_names_the_field() {
    for (spec, expected) in [
        (json!({"maxAge": "99ms"}), "maxAge must be 0s (unlimited) or at least 100ms"),
        (json!({"duplicateWindow": "1ms"}), "duplicateWindow must be at least 100ms"),
        (json!({"maxAge": "1m", "duplicateWindow": "2m"}), "duplicateWindow may not exceed maxAge"),
        (json!({"syncMode": "interval"}), "syncInterval is required with syncMode: interval"),
        (json!({"syncInterval": "1s"}), "syncInterval is required with syncMode: interval, and only then"),
        (json!({"syncMode": "interval", "syncInterval": "9ms"}), "syncInterval must be between 10ms and 5m"),
        (json!({"syncMode": "interval", "syncInterval": "301s"}), "syncInterval must be between 10ms and 5m"),
        (
            json!({"discardPerSubject": true, "discard": "new"}),
            "discardPerSubject needs discard: new and maxMsgsPerSubject above 0",
        ),
        (json!({"denyPurge": true, "allowRollup": true}), "denyPurge and allowRollup exclude"),
        (
            json!({"preventDelete": true, "deletionPolicy": "Delete"}),
            "preventDelete: true contradicts deletionPolicy: Delete",
        ),
        (
            json!({"preventUpdate": true, "updatePolicy": "Enforce"}),
            "preventUpdate: true contradicts updatePolicy: Enforce",
        ),
        (json!({"metadata": {"headwater.sync_mode": "noWait"}}), "metadata keys starting with"),
        (json!({"metadata": {"_nats.level": "1"}}), "metadata keys starting with"),
    ] {
        let verdict = created("s", &spec);
        assert!(verdict.contains(expected), "{spec}: {verdict:?}");
    }
    let verdict = created("a.b", &json!({}));
    assert!(verdict.contains("spec.name is required when metadata.name contains a dot"), "{verdict}");
}

#[test]
fn what_may_change_and_what_may_not() {
    for (old, new, expected) in [
        (json!({}), json!({"storage": "memory"}), "storage is immutable"),
        (json!({"storage": "memory"}), json!({}), "storage is immutable"),
        (json!({}), json!({"storage": "file"}), ""),
        (json!({}), json!({"name": "other"}), "spec.name is immutable"),
        (json!({"name": "other"}), json!({}), "spec.name is immutable"),
        (json!({}), json!({"name": "s"}), ""),
        (json!({}), json!({"clusterRef": {"name": "other"}}), "clusterRef.name is immutable"),
        (json!({}), json!({"clusterRef": {"name": "headwater"}}), ""),
        (json!({"denyDelete": true}), json!({}), "denyDelete cannot be taken back"),
        (json!({"denyPurge": true}), json!({"denyPurge": false}), "denyPurge cannot be taken back"),
        (json!({}), json!({"denyPurge": true, "denyDelete": true}), ""),
        (
            json!({"allowAsyncFlush": true, "syncMode": "always"}),
            json!({"allowAsyncFlush": false, "syncMode": "noWait"}),
            "",
        ),
    ] {
        let verdict = changed(&old, &new);
        if expected.is_empty() {
            assert_eq!(verdict, "", "{old} to {new}");
        } else {
            assert!(verdict.contains(expected), "{old} to {new}: {verdict:?}");
        }
    }
}

/// Once a stream exists, its number of copies stays, and may be written down as what it is.
#[test]
fn replicas_stay_once_the_stream_exists() {
    let replica = |n| json!({"node": format!("n{n}"), "role": "Follower", "phase": "Recovered"});
    let status = |count| {
        json!({
            "lastApplied": {"configHash": "0", "time": "2026-01-01T00:00:00Z"},
            "leader": "n1", "replicas": (0..count).map(replica).collect::<Vec<_>>(),
        })
    };
    let refused = "spec.replicas cannot change yet";
    let leaderless = json!({"lastApplied": status(0)["lastApplied"], "replicas": status(2)["replicas"]});
    for (old, status, new, expected) in [
        (json!({"replicas": 3}), status(3), json!({"replicas": 5}), refused),
        (json!({"replicas": 3}), status(3), json!({"replicas": 1}), refused),
        (json!({"replicas": 3}), status(3), json!({}), refused),
        (json!({}), status(1), json!({"replicas": 3}), refused),
        (json!({"replicas": 3}), status(3), json!({"replicas": 3, "maxMsgs": 1}), ""),
        (json!({}), status(1), json!({"replicas": 1}), ""),
        (json!({"replicas": 1}), status(1), json!({}), ""),
        // Adopted with three copies, of which the spec said nothing.
        (json!({}), status(3), json!({"replicas": 3}), ""),
        (json!({}), status(3), json!({"replicas": 2}), refused),
        // Without a leader the list may lack some.
        (json!({"replicas": 3}), leaderless, json!({"replicas": 2}), refused),
        // Not made yet: too few nodes, or refused by the server.
        (json!({"replicas": 5}), json!({"conditions": []}), json!({"replicas": 3}), ""),
        (json!({"replicas": 5}), Value::Null, json!({"replicas": 3}), ""),
    ] {
        let with = |spec: &Value| {
            let mut object = stream("s", spec);
            if !status.is_null() {
                object["status"] = status.clone();
            }
            object
        };
        let verdict = verdict(&crd::stream(), &with(&new), Some(&with(&old)));
        if expected.is_empty() {
            assert_eq!(verdict, "", "{old} to {new}");
        } else {
            assert!(verdict.contains(expected), "{old} to {new}: {verdict:?}");
        }
    }
}

#[test]
fn a_cluster_names_its_nodes() {
    let cluster = |spec: Value| {
        let object = json!({
            "apiVersion": "headwater.dev/v1alpha1", "kind": "StreamCluster",
            "metadata": {"name": "headwater"}, "spec": spec,
        });
        let typed: StreamCluster = serde_json::from_value(object).unwrap();
        verdict(&crd::cluster(), &serde_json::to_value(typed).unwrap(), None)
    };
    assert!(cluster(json!({})).contains("external is required"));
    let external = json!({"clientURL": "nats://a:4222", "adminURLs": ["http://a:8222"]});
    assert_eq!(cluster(json!({"external": external})), "");
}

/// Each rule above is one that the schema has: a rule without a test would go unnoticed.
#[test]
fn the_number_of_rules_is_the_number_tested() {
    fn count(value: &Value) -> usize {
        match value {
            Value::Object(map) => map
                .iter()
                .map(|(key, value)| match value {
                    Value::Array(rules) if key == "x-kubernetes-validations" => rules.len(),
                    other => count(other),
                })
                .sum(),
            Value::Array(items) => items.iter().map(count).sum(),
            _ => 0,
        }
    }
    assert_eq!(count(&schema(&crd::stream())), 17);
    assert_eq!(count(&schema(&crd::cluster())), 1);
}
