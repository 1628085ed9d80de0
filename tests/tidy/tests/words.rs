//! What no tracked file may hold, and what every invariant must have.

use std::path::Path;
use std::process::Command;

#[expect(clippy::disallowed_methods, reason = "reads the sources, not a store")]
fn tracked() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let out = Command::new("git").args(["ls-files", "-z"]).current_dir(&root).output().expect("git ls-files");
    let names = String::from_utf8(out.stdout).expect("names are text");
    names
        .split('\0')
        .filter(|n| !n.is_empty() && !n.starts_with("tests/tidy/"))
        .filter_map(|n| Some((n.to_owned(), std::fs::read_to_string(root.join(n)).ok()?)))
        .collect()
}

#[test]
fn no_code_waits_to_be_written() {
    // In two parts each, so that whoever searches the tree for these words finds what this test would find: nothing.
    let banned = [
        concat!("to", "do!("),
        concat!("unimple", "mented!("),
        concat!("#[ig", "nore"),
        concat!("FIX", "ME"),
        concat!("XX", "X "),
    ];
    let mut found = Vec::new();
    for (name, text) in tracked().iter().filter(|(n, _)| n.ends_with(".rs")) {
        for (i, line) in text.lines().enumerate() {
            if banned.iter().any(|b| line.contains(b)) {
                found.push(format!("{name}:{}: {}", i + 1, line.trim()));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn openraft_is_named_in_one_module_only() {
    let offenders: Vec<_> = tracked()
        .into_iter()
        .filter(|(n, t)| {
            n.ends_with(".rs")
                && !n.starts_with("node/src/raft/")
                && (t.contains("openraft::") || t.contains("use openraft"))
        })
        .map(|(n, _)| n)
        .collect();
    assert!(offenders.is_empty(), "openraft's types stay in node/src/raft: {offenders:?}");
}

#[test]
fn only_the_disk_module_names_std_fs_in_storage() {
    let offenders: Vec<_> = tracked()
        .into_iter()
        .filter(|(n, t)| n.starts_with("node/storage/src/") && !n.contains("/disk/") && t.contains("std::fs"))
        .map(|(n, _)| n)
        .collect();
    assert!(offenders.is_empty(), "std::fs belongs to disk/real.rs: {offenders:?}");
}

#[test]
fn every_invariant_is_mentioned_by_code() {
    let files = tracked();
    let page = &files.iter().find(|(n, _)| n == "docs/ARCHITECTURE.md").expect("docs/ARCHITECTURE.md").1;
    let ids: Vec<&str> = page.lines().filter_map(|l| l.strip_prefix("- **I-")?.split("**").next()).collect();
    assert!(ids.len() >= 10, "the page lists its invariants as `- **I-n**`");
    let missing: Vec<_> = ids
        .iter()
        .filter(|id| {
            let needle = format!("I-{id}");
            !files.iter().any(|(n, t)| {
                n.ends_with(".rs")
                    && t.match_indices(&needle)
                        .any(|(at, _)| !t[at + needle.len()..].starts_with(|c: char| c.is_ascii_digit()))
            })
        })
        .collect();
    assert!(missing.is_empty(), "no code mentions I-{missing:?}");
}
