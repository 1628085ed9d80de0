//! Forbidden dependency edges (I-1): pure crates know no runtime, file system or Kubernetes client.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

/// Every package that `root` links in a normal build, by name, with its enabled features.
fn linked(metadata: &Value, root: &str) -> BTreeMap<String, BTreeSet<String>> {
    let nodes = metadata["resolve"]["nodes"].as_array().expect("resolve graph");
    let name_of: BTreeMap<&str, &str> = metadata["packages"]
        .as_array()
        .expect("packages")
        .iter()
        .map(|p| (p["id"].as_str().expect("id"), p["name"].as_str().expect("name")))
        .collect();
    let by_id: BTreeMap<&str, &Value> = nodes.iter().map(|n| (n["id"].as_str().expect("id"), n)).collect();
    let start = name_of.iter().find(|(_, n)| **n == root).unwrap_or_else(|| panic!("no package {root}")).0;
    let (mut queue, mut seen) = (vec![*start], BTreeMap::new());
    while let Some(id) = queue.pop() {
        let node = by_id[id];
        let features = node["features"].as_array().expect("features").iter();
        let features: BTreeSet<String> = features.map(|f| f.as_str().expect("feature").to_owned()).collect();
        if seen.insert(name_of[id].to_owned(), features).is_some() {
            continue;
        }
        for dep in node["deps"].as_array().expect("deps") {
            let normal = dep["dep_kinds"].as_array().expect("kinds").iter().any(|k| k["kind"].is_null());
            if normal {
                queue.push(dep["pkg"].as_str().expect("pkg"));
            }
        }
    }
    seen
}

fn metadata() -> Value {
    let out = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked"])
        .output()
        .expect("cargo metadata");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).expect("metadata is JSON")
}

#[test]
fn forbidden_edges_are_absent() {
    let metadata = metadata();
    let pure = ["headwater-protocol", "headwater-core", "headwater-crds", "headwater-plan"];
    let runtimes = [
        "tokio",
        "async-std",
        "smol",
        "mio",
        "rustix",
        "openraft",
        "hyper",
        "reqwest",
        "axum",
        "rand",
        "kube-client",
        "kube-runtime",
    ];
    let mut found = Vec::new();
    for crate_name in pure {
        let links = linked(&metadata, crate_name);
        found.extend(runtimes.iter().filter(|r| links.contains_key(**r)).map(|r| format!("{crate_name} links {r}")));
    }
    let storage = linked(&metadata, "headwater-storage");
    for banned in ["tokio", "openraft", "hyper", "reqwest", "axum"] {
        if storage.contains_key(banned) {
            found.push(format!("headwater-storage links {banned}"));
        }
    }
    let node = linked(&metadata, "headwater");
    for banned in ["kube-client", "kube-runtime"] {
        if node.contains_key(banned) {
            found.push(format!("headwater links {banned}: the node must not know Kubernetes"));
        }
    }
    assert!(found.is_empty(), "forbidden edges:\n{}", found.join("\n"));
}

#[test]
fn the_walk_sees_what_is_linked() {
    let links = linked(&metadata(), "headwater");
    for expected in ["tokio", "openraft", "headwater-core", "headwater-storage"] {
        assert!(links.contains_key(expected), "headwater links {expected}, so the edge check would miss others");
    }
}
