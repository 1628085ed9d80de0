//! `Stream` manifests from files: several documents a file; every problem is told, with file, stream and field.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use headwater_crds::{GROUP, Stream, StreamSpec, VERSION};
use headwater_plan::Desired;
use headwater_protocol::subject::FilterSet;
use serde::Deserialize as _;
use serde_yaml::{Mapping, Value};

/// Largest file that is read (bytes): a manifest is about one KiB.
const FILE_BYTES_MAX: usize = 4 << 20;
/// Most opening brackets of one document. A parser's work grows with the square of their depth, and a stream has a few.
const BRACKETS_MAX: usize = 1000;

/// What the files say.
#[derive(Debug, Default)]
pub(crate) struct Manifests {
    /// Valid streams, by their name on the server.
    pub(crate) streams: Vec<Desired>,
    /// Where each of `streams` is written.
    places: Vec<String>,
    /// What is wrong, or left aside; one line each.
    pub(crate) remarks: Vec<Remark>,
}

/// One thing to tell about a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Remark {
    pub(crate) place: String,
    pub(crate) text: String,
    /// Whether a stream is not kept because of it.
    pub(crate) is_error: bool,
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.text)
    }
}

/// Files whose content is compared at every look.
#[derive(Debug)]
pub(crate) struct ManifestFiles {
    paths: Vec<PathBuf>,
    seen: Option<Vec<Result<Vec<u8>, String>>>,
}

impl ManifestFiles {
    pub(crate) fn new(paths: Vec<PathBuf>) -> Self {
        Self { paths, seen: None }
    }

    /// The manifests, if any file's content has changed since the last call.
    pub(crate) fn changed(&mut self) -> Option<Manifests> {
        let now: Vec<_> = self.paths.iter().map(|path| std::fs::read(path).map_err(|e| e.to_string())).collect();
        if self.seen.as_ref() == Some(&now) {
            return None;
        }
        let mut manifests = Manifests::default();
        for (path, content) in self.paths.iter().zip(&now) {
            match content {
                Ok(bytes) => manifests.read(path, &String::from_utf8_lossy(bytes)),
                Err(why) => manifests.error(path.display().to_string(), format!("cannot be read: {why}")),
            }
        }
        self.seen = Some(now);
        manifests.compare();
        Some(manifests)
    }
}

impl Manifests {
    /// Whether a stream is left out because of what is wrong.
    pub(crate) fn has_errors(&self) -> bool {
        self.remarks.iter().any(|remark| remark.is_error)
    }

    fn error(&mut self, place: String, text: String) {
        self.remarks.push(Remark { place, text, is_error: true });
    }

    fn note(&mut self, place: String, text: String) {
        self.remarks.push(Remark { place, text, is_error: false });
    }

    /// Reads every document of one file.
    pub(crate) fn read(&mut self, path: &Path, text: &str) {
        let file = path.display();
        if let Err(why) = check_size(text) {
            return self.error(file.to_string(), why);
        }
        // Each document is parsed twice: once to see what it is, once as that, so that errors name field and line.
        let documents = || serde_yaml::Deserializer::from_str(text);
        let mut is_empty = true;
        for (i, (document, again)) in documents().zip(documents()).enumerate() {
            let place = format!("{file}, document {}", i + 1);
            let value = match Value::deserialize(document) {
                Ok(Value::Null) => continue,
                Ok(value) => {
                    is_empty = false;
                    value
                }
                Err(error) => {
                    // Nothing after a syntax error can be told apart.
                    return self.error(place, format!("is not YAML: {error}"));
                }
            };
            let word = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
            let (api_version, kind) = (word("apiVersion"), word("kind"));
            if api_version != format!("{GROUP}/{VERSION}") {
                self.error(place, format!("apiVersion: {api_version:?} is not {GROUP}/{VERSION}"));
                continue;
            }
            match kind.as_str() {
                "Stream" => self.stream(place, Stream::deserialize(again), &value),
                "StreamCluster" => {
                    self.note(place, "a StreamCluster is for Kubernetes; this command runs its own".to_owned())
                }
                other => self.error(place, format!("kind: {other:?} is not Stream")),
            }
        }
        if is_empty {
            // No error: a file may come to hold its first stream later.
            self.note(file.to_string(), "holds no Stream".to_owned());
        }
    }

    /// What only all manifests together can have wrong.
    fn compare(&mut self) {
        self.refuse_twins();
        self.refuse_overlaps();
    }

    fn stream(&mut self, place: String, read: Result<Stream, serde_yaml::Error>, written: &Value) {
        let name = written.get("metadata").and_then(|metadata| metadata.get("name")).and_then(Value::as_str);
        let place = name.map_or_else(|| place.clone(), |name| format!("{place} (Stream {name})"));
        let before = self.remarks.len();
        let mut unreadable = Vec::new();
        let read = read.or_else(|first| {
            // The parser stops at the first field that it cannot read: each is tried alone, then the rest together.
            let first = first.to_string();
            let (rest, problems) = without_unreadable_fields(written);
            for (field, problem) in problems {
                let same = first.starts_with(&format!("{}:", problem.split(": ").next().unwrap_or_default()));
                self.error(place.clone(), if same { first.clone() } else { problem });
                unreadable.push(field);
            }
            serde_yaml::to_string(&rest).and_then(|text| serde_yaml::from_str(&text)).map_err(|_| first)
        });
        let mut stream: Stream = match read {
            Ok(stream) => stream,
            Err(first) if unreadable.is_empty() => return self.error(place, first),
            Err(_) => return,
        };
        if stream.metadata.name.is_none() {
            self.error(place.clone(), "metadata.name: is required".to_owned());
            stream.metadata.name = Some("unnamed".to_owned());
        }
        for field in unknown_fields(&stream, written).into_iter().filter(|field| !unreadable.contains(field)) {
            // A field that has no effect may be a misspelt one: the stream would not be what was meant.
            self.error(place.clone(), format!("spec.{field}: unknown"));
        }
        stream.metadata.namespace.get_or_insert_with(|| "default".to_owned());
        match Desired::from_stream(&stream) {
            Ok(desired) if self.remarks.len() == before => {
                self.streams.push(desired);
                self.places.push(place);
            }
            Ok(_) => {}
            Err(problems) => {
                for problem in problems.0 {
                    // What a rule says about a field that could not be read is not about what was written.
                    if !unreadable.iter().any(|field| problem.message.contains(field.as_str())) {
                        self.error(place.clone(), problem.to_string());
                    }
                }
            }
        }
    }

    /// Two manifests for one stream would take turns for ever: neither is used.
    fn refuse_twins(&mut self) {
        let mut owners: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for desired in &self.streams {
            owners.entry(desired.name.clone()).or_default().push(desired.owner.to_string());
        }
        for (name, owners) in owners.into_iter().filter(|(_, owners)| owners.len() > 1) {
            let (streams, places) = (std::mem::take(&mut self.streams), std::mem::take(&mut self.places));
            (self.streams, self.places) =
                streams.into_iter().zip(places).filter(|(desired, _)| desired.name != name).unzip();
            self.error(
                format!("stream {name}"),
                format!("spec.name: is used by {}; neither is kept", owners.join(" and ")),
            );
        }
    }
}

impl Manifests {
    /// A subject belongs to one stream: the cluster would take the first of these manifests and refuse the other for
    /// ever. Every subject is told with the first that it overlaps, and two manifests once.
    fn refuse_overlaps(&mut self) {
        let mut earlier = FilterSet::new();
        // Which stream each of `earlier` is of, and how it is written.
        let mut owners: Vec<(usize, &str)> = Vec::new();
        let mut found = Vec::new();
        for (at, desired) in self.streams.iter().enumerate() {
            let subjects = subjects_of(desired);
            let mut told = BTreeSet::new();
            for subject in &subjects {
                if let Some(other) = earlier.overlapping(subject.as_bytes())
                    && let Some((stream, theirs)) = owners.get(other)
                    && told.insert(*stream)
                {
                    let text = format!("spec.subjects: {subject:?} overlaps {theirs:?} of {}", self.places[*stream]);
                    found.push((self.places[at].clone(), text));
                }
            }
            for subject in subjects {
                earlier.insert(subject.as_bytes());
                owners.push((at, subject));
            }
        }
        for (place, text) in found {
            self.error(place, text);
        }
    }
}

/// What a stream will store: its subjects, or its name if the manifest has none.
fn subjects_of(desired: &Desired) -> Vec<&str> {
    let written = desired.new_config().and_then(|config| config.get("subjects")?.as_array());
    let subjects: Vec<&str> = written.into_iter().flatten().filter_map(serde_json::Value::as_str).collect();
    if subjects.is_empty() { vec![&desired.name] } else { subjects }
}

/// Bounds what the parser is given, before it is given it.
fn check_size(text: &str) -> Result<(), String> {
    if text.len() > FILE_BYTES_MAX {
        return Err(format!("is larger than {FILE_BYTES_MAX} bytes"));
    }
    let mut brackets = 0;
    for line in text.lines() {
        if line.starts_with("---") {
            brackets = 0;
        }
        brackets += line.bytes().filter(|byte| matches!(byte, b'[' | b'{')).count();
        if brackets > BRACKETS_MAX {
            return Err(format!("has more than {BRACKETS_MAX} opening brackets in one document: no stream has"));
        }
    }
    Ok(())
}

/// The document without those fields of `spec` that cannot be read, and what is wrong with each.
fn without_unreadable_fields(written: &Value) -> (Value, Vec<(String, String)>) {
    let mut rest = written.clone();
    let mut problems = Vec::new();
    if let Some(spec) = rest.get_mut("spec").and_then(Value::as_mapping_mut) {
        spec.retain(|key, value| {
            let found = unreadable(key, value);
            let field = key.as_str().unwrap_or_default();
            problems.extend(found.iter().map(|problem| (field.to_owned(), format!("spec.{problem}"))));
            found.is_empty()
        });
    }
    (rest, problems)
}

/// What is wrong with one field of `spec`, item by item if it has some.
fn unreadable(key: &Value, value: &Value) -> Vec<String> {
    // By way of text: a plain `5` in a file may be a word, in a parsed document it is a number.
    let read = |value: Value| {
        let alone = Mapping::from_iter([(key.clone(), value)]);
        let text = serde_yaml::to_string(&alone).map_err(|error| error.to_string())?;
        serde_yaml::from_str::<StreamSpec>(&text).map_err(|error| {
            let text = error.to_string();
            // Where it stands in the text made above.
            text.rsplit_once(" at line ").map_or(text.as_str(), |(text, _)| text).to_owned()
        })
    };
    let Err(whole) = read(value.clone()) else { return Vec::new() };
    let items: Vec<String> = match value {
        Value::Sequence(items) => {
            let item = |(i, item): (usize, &Value)| {
                let error = read(Value::Sequence(vec![item.clone()])).err()?;
                Some(error.replacen("[0]", &format!("[{i}]"), 1))
            };
            items.iter().enumerate().filter_map(item).collect()
        }
        Value::Mapping(items) => {
            let item = |(key, item): (&Value, &Value)| {
                read(Value::Mapping(Mapping::from_iter([(key.clone(), item.clone())]))).err()
            };
            items.iter().filter_map(item).collect()
        }
        _ => Vec::new(),
    };
    let field = key.as_str().unwrap_or("?");
    let named = |error: String| if error.starts_with(field) { error } else { format!("{field}: {error}") };
    if items.is_empty() { vec![named(whole)] } else { items.into_iter().map(named).collect() }
}

/// Fields of `spec` that a stream does not have. An API server would refuse them, too.
fn unknown_fields(stream: &Stream, written: &Value) -> Vec<String> {
    let known = serde_yaml::to_value(&stream.spec).unwrap_or_default();
    let (Some(written), Some(known)) = (written.get("spec").and_then(Value::as_mapping), known.as_mapping()) else {
        return Vec::new();
    };
    written
        .iter()
        // What was read is written again under its name; null is as good as absent.
        .filter(|(key, value)| !value.is_null() && !known.contains_key(*key))
        .filter_map(|(key, _)| Some(key.as_str()?.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Manifests {
        let mut manifests = Manifests::default();
        manifests.read(Path::new("s.yaml"), text);
        manifests.compare();
        manifests
    }

    const HEAD: &str = "apiVersion: headwater.dev/v1alpha1\nkind: Stream\n";

    #[test]
    fn the_examples_are_valid() {
        let orders = read(include_str!("../../../../examples/orders.yaml"));
        assert_eq!(orders.remarks, []);
        assert_eq!(orders.streams[0].name, "ORDERS");
        let external = read(include_str!("../../../../examples/external-cluster.yaml"));
        assert!(external.streams.is_empty() && !external.remarks[0].is_error, "{:?}", external.remarks);
    }

    #[test]
    fn problems_name_file_and_field_and_leave_the_rest() {
        let text = format!(
            "{HEAD}metadata: {{name: good}}\nspec: {{}}\n---\n\
             {HEAD}metadata: {{name: bad}}\nspec: {{replicas: 9, syncInterval: 1s}}\n---\n\
             {HEAD}metadata: {{name: typed}}\nspec: {{replicas: three}}\n---\n\
             {HEAD}metadata: {{name: typo}}\nspec: {{replcas: 3}}\n---\n\
             apiVersion: jetstream.nats.io/v1beta2\nkind: Stream\nmetadata: {{name: nack}}\n"
        );
        let manifests = read(&text);
        assert_eq!(manifests.streams.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["good"]);
        let told: Vec<String> = manifests.remarks.iter().map(ToString::to_string).collect();
        for (line, parts) in told.iter().zip([
            ["document 2 (Stream bad)", "spec.replicas"],
            ["document 2 (Stream bad)", "spec.syncInterval"],
            ["document 3 (Stream typed)", "spec.replicas"],
            ["document 4 (Stream typo)", "spec.replcas: unknown"],
            ["document 5", "apiVersion"],
        ]) {
            assert!(line.starts_with("s.yaml") && parts.iter().all(|p| line.contains(p)), "{line} lacks {parts:?}");
        }
        assert_eq!(told.len(), 5, "{told:?}");
    }

    #[test]
    fn everything_that_is_wrong_with_a_stream_is_told_at_once() {
        let text = format!(
            "{HEAD}metadata: {{name: bad}}\nspec:\n  storage: tape\n  replicas: three\n  syncMode: sometimes\n  \
             syncInterval: 5s\n  allowAsyncFlush: maybe\n  subjects: [a, [b], {{c: d}}]\n  metadata: {{a: [], b: c}}\n  \
             maxAge: soon\n  bogus: 1\n  description: 5\n---\n{HEAD}metadata: {{}}\nspec: {{replicas: x, maxMsgs: y}}\n"
        );
        let manifests = read(&text);
        assert!(manifests.streams.is_empty());
        let told: Vec<String> = manifests.remarks.iter().map(ToString::to_string).collect();
        let expected = [
            "(Stream bad): spec.storage: unknown variant `tape`, expected `file` or `memory` at line 5",
            "(Stream bad): spec.replicas: invalid type",
            "(Stream bad): spec.syncMode: unknown variant `sometimes`",
            "(Stream bad): spec.allowAsyncFlush: invalid type",
            "(Stream bad): spec.subjects[1]: invalid type",
            "(Stream bad): spec.subjects[2]: invalid type",
            "(Stream bad): spec.metadata.a: invalid type",
            "(Stream bad): spec.bogus: unknown",
            "(Stream bad): spec.maxAge: ",
            "document 2: spec.replicas: ",
            "document 2: spec.maxMsgs: ",
            "document 2: metadata.name: is required",
        ];
        assert_eq!(told.len(), expected.len(), "{told:#?}");
        for (line, part) in told.iter().zip(expected) {
            assert!(line.contains(part), "{line} lacks {part}");
        }
    }

    #[test]
    fn deep_nesting_is_refused_before_it_is_parsed() {
        let deep = format!("{HEAD}metadata: {{name: a}}\nspec: {}\n", "[".repeat(200_000));
        let began = std::time::Instant::now();
        let manifests = read(&deep);
        assert!(manifests.remarks[0].text.contains("opening brackets"), "{:?}", manifests.remarks);
        assert!(began.elapsed() < std::time::Duration::from_secs(1));
        let many = format!("{HEAD}metadata: {{name: NAME}}\nspec: {{subjects: [\"NAME.>\"]}}\n---\n");
        let many: String = (0..600).map(|i| many.replace("NAME", &format!("s{i}"))).collect();
        assert_eq!(read(&many).streams.len(), 600);
        assert!(read(&"#\n".repeat(FILE_BYTES_MAX)).remarks[0].text.contains("larger than"));
    }

    #[test]
    fn two_manifests_of_one_stream_are_both_refused() {
        let text = format!(
            "{HEAD}metadata: {{name: a}}\nspec: {{name: S}}\n---\n{HEAD}metadata: {{name: b}}\nspec: {{name: S}}\n"
        );
        let manifests = read(&text);
        assert!(manifests.streams.is_empty() && manifests.remarks[0].text.contains("default/a and default/b"));
    }

    #[test]
    fn overlapping_subjects_name_both_places() {
        let stream = |name: &str, spec: &str| format!("{HEAD}metadata: {{name: {name}}}\nspec: {{{spec}}}\n---\n");
        let mut manifests = Manifests::default();
        manifests.read(
            Path::new("a.yaml"),
            &(stream("orders", "subjects: [orders.>, orders]")
                + &stream("plain", "description: its name is its subject")),
        );
        manifests.read(
            Path::new("b.yaml"),
            &(stream("new", "subjects: [other, orders.new, orders.old, '*.x']") + &stream("two", "subjects: ['*']")),
        );
        assert!(!manifests.has_errors());
        manifests.compare();
        let told: Vec<String> = manifests.remarks.iter().map(ToString::to_string).collect();
        let overlap = |stream: &str, subject: &str, other: &str| {
            let first = "a.yaml, document 1 (Stream orders)";
            format!("b.yaml, {stream}: spec.subjects: {subject:?} overlaps {other:?} of {first}")
        };
        let first = overlap("document 1 (Stream new)", "orders.new", "orders.>");
        let second = overlap("document 2 (Stream two)", "*", "orders");
        assert_eq!(told, [first, second]);
        assert!(manifests.has_errors());
    }

    #[test]
    fn a_file_without_streams_is_told() {
        for text in ["", "# later\n", "---\n---\n"] {
            let told: Vec<String> = read(text).remarks.iter().map(ToString::to_string).collect();
            assert_eq!(told, ["s.yaml: holds no Stream"], "{text:?}");
            assert!(!read(text).has_errors());
        }
        assert_eq!(read(&format!("{HEAD}metadata: {{name: a}}\nspec: {{}}\n")).remarks, []);
    }

    #[test]
    fn broken_yaml_is_told_with_its_place() {
        let manifests = read("a: [1\n---\nb: }");
        assert_eq!(manifests.remarks.len(), 1);
        assert!(manifests.remarks[0].is_error && manifests.remarks[0].place == "s.yaml, document 1");
    }

    #[test]
    fn a_file_is_read_again_when_its_content_changes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.yaml");
        let write = |text: &str| {
            use std::io::Write as _;
            std::fs::File::create(&path).unwrap().write_all(text.as_bytes()).unwrap();
        };
        let mut files = ManifestFiles::new(vec![path.clone()]);
        assert!(files.changed().unwrap().remarks[0].text.contains("cannot be read"));
        assert!(files.changed().is_none());
        write(&format!("{HEAD}metadata: {{name: a}}\nspec: {{}}\n"));
        assert_eq!(files.changed().unwrap().streams.len(), 1);
        assert!(files.changed().is_none());
    }
}
