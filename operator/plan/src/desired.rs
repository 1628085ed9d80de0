//! What is wanted, validated. The raw manifest goes no further than here.

use std::fmt;

use headwater_crds::{
    AdoptionPolicy, DeletionPolicy, GoDuration, PAUSED_ANNOTATION, Storage, Stream, StreamSpec, SyncMode, UpdatePolicy,
    jetstream,
};
use headwater_protocol::api::stream_rules::SUBJECTS_WORK_MAX;
use headwater_protocol::subject::FilterSet;
use serde_json::Value;

use crate::observed::ServerStream;
use crate::wire::Owner;

/// One thing wrong with a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Path of the field, as in the manifest.
    pub field: String,
    /// What is wrong, and what would be right.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// Everything wrong with a manifest; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("; ")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// A validated wish for one stream.
#[derive(Clone, Debug, PartialEq)]
pub struct Desired {
    /// Account of the stream.
    pub account: String,
    /// Name of the stream on the server.
    pub name: String,
    /// The object that wants it.
    pub owner: Owner,
    /// `metadata.generation` of that object; 0 outside Kubernetes.
    pub generation: i64,
    /// Whether the object is being deleted.
    pub deleting: bool,
    /// Whether changes are paused.
    pub paused: bool,
    /// What deletion means.
    pub deletion: DeletionPolicy,
    /// How far the stream may be changed.
    pub update: UpdatePolicy,
    /// Whether an existing stream is taken over.
    pub adoption: AdoptionPolicy,
    source: Source,
}

/// Where the wished configuration comes from.
#[derive(Clone, Debug, PartialEq)]
enum Source {
    /// A manifest. Its configuration with all defaults was built once, which proves it can be built.
    Manifest { metadata_name: String, spec: Box<StreamSpec>, config: Value },
    /// The server's own configuration, as plain clients left it.
    Server,
}

impl Desired {
    /// Validates a manifest.
    ///
    /// # Errors
    /// Every problem at once, each with its field.
    pub fn from_stream(stream: &Stream) -> Result<Self, Problems> {
        let metadata = &stream.metadata;
        let metadata_name = metadata.name.clone().unwrap_or_default();
        let spec = &stream.spec;
        let problems = validate(&metadata_name, spec);
        let config = match jetstream::stream_config(&metadata_name, spec) {
            Ok(config) if problems.is_empty() => config,
            // A bad duration was found above, by the same parser, together with the rest.
            _ => return Err(Problems(problems)),
        };
        Ok(Self {
            account: crate::ACCOUNT.to_owned(),
            name: spec.name.clone().unwrap_or_else(|| metadata_name.clone()),
            owner: Owner {
                namespace: metadata.namespace.clone().unwrap_or_default(),
                name: metadata_name.clone(),
                uid: metadata.uid.clone().unwrap_or_default(),
                adopted: false,
            },
            generation: metadata.generation.unwrap_or(0),
            deleting: metadata.deletion_timestamp.is_some(),
            paused: metadata
                .annotations
                .as_ref()
                .and_then(|annotations| annotations.get(PAUSED_ANNOTATION))
                .is_some_and(|value| value == "true"),
            deletion: spec.deletion(),
            update: spec.update(),
            adoption: spec.adoption_policy.unwrap_or_default(),
            source: Source::Manifest { metadata_name, spec: Box::new(spec.clone()), config },
        })
    }

    /// The wish behind a stream that no manifest names: what its own configuration says. Planning
    /// it carries out durability changes that plain clients made.
    pub fn unmanaged(account: &str, name: &str) -> Self {
        Self {
            account: account.to_owned(),
            name: name.to_owned(),
            owner: Owner { namespace: String::new(), name: String::new(), uid: String::new(), adopted: false },
            generation: 0,
            deleting: false,
            paused: false,
            deletion: DeletionPolicy::Retain,
            update: UpdatePolicy::ObserveOnly,
            adoption: AdoptionPolicy::Never,
            source: Source::Server,
        }
    }

    /// Whether a manifest stands behind this wish.
    pub fn is_managed(&self) -> bool {
        matches!(self.source, Source::Manifest { .. })
    }

    /// The configuration to create the stream with; `None` for a wish without a manifest.
    pub fn new_config(&self) -> Option<&Value> {
        match &self.source {
            Source::Manifest { config, .. } => Some(config),
            Source::Server => None,
        }
    }

    /// The configuration an existing stream should have.
    ///
    /// `adopted` says how to read unset fields: as the server has them, or as their defaults.
    pub fn config_for(&self, server: &ServerStream, adopted: bool) -> Value {
        let Source::Manifest { metadata_name, spec, .. } = &self.source else {
            return server.config.clone();
        };
        let wish = if adopted {
            jetstream::adopted_config(spec, &server.config)
        } else {
            jetstream::own_config(metadata_name, spec, &server.config)
        };
        wish.expect("from_stream has built this configuration once")
    }

    /// Replicas wanted of a new stream.
    pub fn replicas(&self) -> usize {
        self.new_config()
            .and_then(|config| config.get("num_replicas")?.as_u64())
            .and_then(|n| usize::try_from(n).ok())
            .unwrap_or(1)
    }

    /// Storage of the stream.
    pub fn storage(config: &Value) -> Storage {
        match config.get("storage").and_then(Value::as_str) {
            Some("memory") => Storage::Memory,
            _ => Storage::File,
        }
    }
}

/// The rules of the CRD again: `headwater dev` has no API server in front of it.
fn validate(metadata_name: &str, spec: &StreamSpec) -> Vec<Problem> {
    let mut found = Found(Vec::new());
    let name = spec.name.as_deref().unwrap_or(metadata_name);
    found.check_name(name, spec.name.is_some());
    found.check_subjects(spec.subjects.as_deref().unwrap_or_default());
    if spec.subjects.as_ref().is_some_and(Vec::is_empty) {
        found.add("subjects", "must not be empty; leave it out to use the stream's name");
    }
    if spec.replicas.is_some_and(|n| !(1..=5).contains(&n)) {
        found.add("replicas", "must be between 1 and 5");
    }
    for (field, limit) in [
        ("maxMsgs", spec.max_msgs),
        ("maxBytes", spec.max_bytes),
        ("maxMsgSize", spec.max_msg_size),
        ("maxMsgsPerSubject", spec.max_msgs_per_subject),
    ] {
        if limit.is_some_and(|n| n < -1) {
            found.add(field, "must be -1 (unlimited) or more");
        }
    }
    if spec.max_msg_size.is_some_and(|n| n > i64::from(i32::MAX)) {
        found.add("maxMsgSize", "must be at most 2147483647 bytes");
    }
    if spec.description.as_ref().is_some_and(|d| d.len() > 4_096) {
        found.add("description", "must be at most 4096 bytes");
    }

    const MS: i64 = 1_000_000;
    let max_age = found.duration("maxAge", spec.max_age.as_deref());
    if max_age.is_some_and(|age| age != 0 && age < 100 * MS) {
        found.add("maxAge", "must be 0s (unlimited) or at least 100ms");
    }
    let window = found.duration("duplicateWindow", spec.duplicate_window.as_deref());
    if window.is_some_and(|window| window < 100 * MS) {
        found.add("duplicateWindow", "must be at least 100ms");
    }
    if let (Some(window), Some(age)) = (window, max_age)
        && age > 0
        && window > age
    {
        found.add("duplicateWindow", "may not exceed maxAge");
    }
    let interval = found.duration("syncInterval", spec.sync_interval.as_deref());
    if interval.is_some_and(|t| !(10 * MS..=300_000 * MS).contains(&t)) {
        found.add("syncInterval", "must be between 10ms and 5m");
    }
    let wants_interval = spec.sync_mode == Some(SyncMode::Interval);
    if wants_interval && spec.sync_interval.is_none() {
        found.add("syncInterval", "is required with syncMode: interval");
    }
    if !wants_interval && spec.sync_interval.is_some() {
        found.add("syncInterval", "is only used with syncMode: interval; remove it or set that");
    }

    let new = spec.discard == Some(headwater_crds::Discard::New);
    let per_subject = spec.max_msgs_per_subject.is_some_and(|n| n > 0);
    if spec.discard_per_subject == Some(true) && !(new && per_subject) {
        found.add("discardPerSubject", "needs discard: new and maxMsgsPerSubject above 0");
    }
    if spec.deny_purge == Some(true) && spec.allow_rollup == Some(true) {
        found.add("denyPurge", "and allowRollup exclude each other: a rollup purges");
    }
    if spec.prevent_delete == Some(true) && spec.deletion_policy == Some(DeletionPolicy::Delete) {
        found.add("preventDelete", "contradicts deletionPolicy: Delete");
    }
    if spec.prevent_update == Some(true) && spec.update_policy == Some(UpdatePolicy::Enforce) {
        found.add("preventUpdate", "contradicts updatePolicy: Enforce");
    }
    for key in spec.metadata.iter().flatten().map(|(key, _)| key) {
        if key.starts_with("headwater.") || key.starts_with("_nats.") {
            found.add("metadata", &format!("key {key:?} is reserved; use the spec's own field"));
        }
    }
    found.0
}

struct Found(Vec<Problem>);

impl Found {
    fn add(&mut self, field: &str, message: &str) {
        self.0.push(Problem { field: format!("spec.{field}"), message: message.to_owned() });
    }

    fn check_name(&mut self, name: &str, explicit: bool) {
        if name.is_empty() {
            self.add("name", "is required when the object has no name");
            return;
        }
        let forbidden = |c: char| c.is_whitespace() || c.is_control() || ".*>/\\".contains(c);
        if let Some(c) = name.chars().find(|&c| forbidden(c)) {
            let hint = if explicit { "" } else { "; it comes from metadata.name, so set spec.name" };
            self.add("name", &format!("{name:?} may not contain {c:?}{hint}"));
        }
        if name.len() > 255 {
            self.add("name", "must be at most 255 bytes");
        }
    }

    fn check_subjects(&mut self, subjects: &[String]) {
        let mut earlier = FilterSet::new();
        // Which of `subjects` each of `earlier` is.
        let mut indexes = Vec::new();
        for (i, subject) in subjects.iter().enumerate() {
            let field = format!("subjects[{i}]");
            let tokens: Vec<&str> = subject.split('.').collect();
            if subject.len() > 255 {
                self.add(&field, "must be at most 255 bytes");
            } else if tokens.iter().any(|token| token.is_empty()) {
                self.add(&field, &format!("{subject:?} has an empty token"));
            } else if subject.chars().any(|c| c.is_whitespace() || c.is_control()) {
                self.add(&field, &format!("{subject:?} contains white space"));
            } else if tokens.iter().rev().skip(1).any(|token| *token == ">") {
                self.add(&field, &format!("{subject:?} may have > only as its last token"));
            } else {
                if let Some(other) = earlier.overlapping(subject.as_bytes()) {
                    self.add(&field, &format!("{subject:?} overlaps {:?}", subjects[indexes[other]]));
                }
                earlier.insert(subject.as_bytes());
                indexes.push(i);
                if earlier.work() > SUBJECTS_WORK_MAX {
                    self.add("subjects", "have their wildcards in too many different places to be compared");
                    return;
                }
            }
        }
    }

    fn duration(&mut self, field: &str, text: Option<&str>) -> Option<i64> {
        match text?.parse::<GoDuration>() {
            Ok(duration) => Some(duration.as_nanos()),
            Err(why) => {
                self.add(field, &format!("{:?} {why}", text.unwrap_or_default()));
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(yaml: &str) -> Stream {
        serde_yaml::from_str(&format!("apiVersion: headwater.dev/v1alpha1\nkind: Stream\n{yaml}")).unwrap()
    }

    #[test]
    fn a_minimal_manifest_is_valid() {
        let desired = Desired::from_stream(&stream("metadata: {name: orders, namespace: shop}\nspec: {}")).unwrap();
        assert_eq!(desired.name, "orders");
        assert_eq!(desired.owner.to_string(), "shop/orders");
        assert_eq!(desired.deletion, DeletionPolicy::Retain);
        assert_eq!(desired.replicas(), 1);
        assert!(!desired.paused);
    }

    #[test]
    fn every_problem_is_found_at_once_and_names_its_field() {
        let problems = Desired::from_stream(&stream(
            r"
metadata: {name: a.b}
spec:
  subjects: ['x..y', 'a.>.b', 'c.*', 'c.d']
  replicas: 7
  maxAge: 1d
  duplicateWindow: 1ms
  syncInterval: 1h
  maxMsgs: -2
  discardPerSubject: true
  denyPurge: true
  allowRollup: true
  preventDelete: true
  deletionPolicy: Delete
  preventUpdate: true
  updatePolicy: Enforce
  metadata: {headwater.sync_mode: noWait}
",
        ))
        .unwrap_err();
        let fields: Vec<&str> = problems.0.iter().map(|p| p.field.as_str()).collect();
        assert_eq!(
            fields,
            [
                "spec.name",
                "spec.subjects[0]",
                "spec.subjects[1]",
                "spec.subjects[3]",
                "spec.replicas",
                "spec.maxMsgs",
                "spec.maxAge",
                "spec.duplicateWindow",
                "spec.syncInterval",
                "spec.syncInterval",
                "spec.discardPerSubject",
                "spec.denyPurge",
                "spec.preventDelete",
                "spec.preventUpdate",
                "spec.metadata",
            ]
        );
        assert!(problems.to_string().contains("so set spec.name"), "{problems}");
        assert!(problems.to_string().contains("a day is 24h"), "{problems}");
    }

    #[test]
    fn overlapping_patterns_are_found() {
        let subjects = |list: &str| {
            let manifest = stream(&format!("metadata: {{name: s}}\nspec: {{subjects: [{list}]}}"));
            Desired::from_stream(&manifest).map_err(|problems| problems.to_string())
        };
        for (list, told) in [
            ("a, a", "spec.subjects[1]: \"a\" overlaps \"a\""),
            ("a.>, a..b, a.b.c", "spec.subjects[2]: \"a.b.c\" overlaps \"a.>\""),
            ("a.*, x, '*.b'", "spec.subjects[2]: \"*.b\" overlaps \"a.*\""),
            ("x, '>'", "spec.subjects[1]: \">\" overlaps \"x\""),
        ] {
            let problems = subjects(list).unwrap_err();
            assert!(problems.contains(told), "{problems} lacks {told}");
        }
        assert!(subjects("a.>, a, a*.b, b.*.c, b.b").is_ok());
    }

    #[test]
    fn nacks_spellings_are_policies() {
        let desired =
            Desired::from_stream(&stream("metadata: {name: s}\nspec: {preventDelete: true, preventUpdate: true}"))
                .unwrap();
        assert_eq!(desired.deletion, DeletionPolicy::Retain);
        assert_eq!(desired.update, UpdatePolicy::CreateOnly);
    }
}
