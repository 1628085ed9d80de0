//! The generated CRDs: the files in the repository, and properties every schema here must have.

#![expect(clippy::disallowed_methods, reason = "reads the files it compares, which are no data")]

use std::path::Path;

use headwater_crds::{Stream, StreamCluster, crd, status::StreamStatus};
use serde_json::{Value, json};

fn root() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn the_files_are_what_the_types_say() {
    for crd in crd::all() {
        let name = crd::file_name(&crd);
        for (folder, expected) in
            [("crds/yaml", crd::yaml(&crd)), ("charts/headwater-crds/templates", crd::template(&crd))]
        {
            let path = root().join(folder).join(&name);
            let found = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(found == expected, "{} is out of date: cargo run -p headwater-crds --bin crdgen", path.display());
        }
    }
}

#[test]
fn names_are_what_people_type() {
    let stream = serde_json::to_value(crd::stream()).unwrap();
    assert_eq!(stream["metadata"]["name"], "streams.headwater.dev");
    assert_eq!(stream["spec"]["names"]["shortNames"], json!(["stm"]));
    assert_eq!(stream["spec"]["names"]["categories"], json!(["headwater"]));
    assert_eq!(stream["spec"]["scope"], "Namespaced");
    let columns = |version: &Value| -> Vec<String> {
        let columns = version["additionalPrinterColumns"].as_array().unwrap();
        columns.iter().map(|c| c["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(
        columns(&stream["spec"]["versions"][0]),
        ["Ready", "Status", "Async", "Sync", "Leader", "PersistLag", "Age", "Name-On-Server", "Subjects", "Replicas"]
    );
    let cluster = serde_json::to_value(crd::cluster()).unwrap();
    assert_eq!(cluster["metadata"]["name"], "streamclusters.headwater.dev");
    assert_eq!(cluster["spec"]["names"]["shortNames"], json!(["stc"]));
}

#[test]
fn an_object_nobody_looked_at_is_not_done() {
    for crd in crd::all() {
        let crd = serde_json::to_value(crd).unwrap();
        let status = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"];
        let first = &status["default"]["conditions"][0];
        assert_eq!((&first["type"], &first["status"]), (&json!("Ready"), &json!("Unknown")));
    }
}

#[test]
fn only_the_cluster_has_a_default_in_the_spec() {
    let crd = serde_json::to_value(crd::stream()).unwrap();
    let spec = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let mut defaults = Vec::new();
    walk(spec, "spec", &mut |path, node| {
        if node.get("default").is_some() {
            defaults.push(format!("{path}={}", node["default"]));
        }
    });
    defaults.sort();
    assert_eq!(defaults, [r#"spec.clusterRef.name="headwater""#, r#"spec.clusterRef={"name":"headwater"}"#,]);
    assert_eq!(spec.get("required"), None);
}

/// The API server estimates what rules cost from these bounds, and refuses a CRD without them.
#[test]
fn everything_in_a_spec_is_bounded() {
    for crd in crd::all() {
        let crd = serde_json::to_value(crd).unwrap();
        let spec = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        walk(spec, "spec", &mut |path, node| {
            let bounded = match node["type"].as_str() {
                Some("string") => node.get("maxLength").is_some() || node.get("enum").is_some(),
                Some("array") => node.get("maxItems").is_some(),
                Some("object") if node.get("additionalProperties").is_some() => node.get("maxProperties").is_some(),
                Some("integer") => node.get("minimum").is_some(),
                _ => true,
            };
            assert!(bounded, "{path} has no bound: {node}");
            assert_eq!(node.get("nullable"), None, "{path}");
        });
    }
}

/// No unsigned formats: the API conventions forbid them, and the API server warns.
#[test]
fn formats_are_those_kubernetes_knows() {
    for crd in crd::all() {
        let crd = serde_json::to_value(crd).unwrap();
        walk(&crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"], "", &mut |path, node| {
            if let Some(format) = node.get("format").and_then(Value::as_str) {
                assert!(["int32", "int64", "date-time"].contains(&format), "{path}: {format}");
            }
        });
    }
}

#[test]
fn the_examples_are_what_they_claim() {
    let read = |name: &str| std::fs::read_to_string(root().join("examples").join(name)).unwrap();
    let stream: Stream = serde_yaml::from_str(&read("orders.yaml")).unwrap();
    assert_eq!(stream.spec.replicas, Some(3));
    assert_eq!(stream.spec.allow_async_flush, Some(true));
    assert_eq!(stream.spec.allow_direct, Some(true));
    assert_eq!(stream.spec.subjects, Some(vec!["orders.>".to_owned()]));
    let cluster: StreamCluster = serde_yaml::from_str(&read("external-cluster.yaml")).unwrap();
    assert_eq!(cluster.metadata.name.as_deref(), Some(headwater_crds::DEFAULT_CLUSTER));
    assert_eq!(cluster.spec.external.unwrap().admin_urls.len(), 3);
}

#[test]
fn a_status_with_nothing_known_is_empty() {
    assert_eq!(serde_json::to_value(StreamStatus::default()).unwrap(), json!({}));
}

fn walk(node: &Value, path: &str, see: &mut impl FnMut(&str, &Value)) {
    see(path, node);
    for (name, child) in node["properties"].as_object().into_iter().flatten() {
        walk(child, &format!("{path}.{name}"), see);
    }
    for key in ["items", "additionalProperties"] {
        if node[key].is_object() {
            walk(&node[key], &format!("{path}[]"), see);
        }
    }
}
