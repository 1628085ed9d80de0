//! `Stream` manifests from files: several documents a file, problems told with file and field, the rest still used.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use headwater_crds::{GROUP, Stream, VERSION};
use headwater_plan::Desired;
use serde::Deserialize as _;
use serde_yaml::Value;

/// What the files say.
#[derive(Debug, Default)]
pub(crate) struct Manifests {
    /// Valid streams, by their name on the server.
    pub(crate) streams: Vec<Desired>,
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
        manifests.refuse_twins();
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
        // Each document is parsed twice: once to see what it is, once as that, so that errors name field and line.
        for (i, document) in serde_yaml::Deserializer::from_str(text).enumerate() {
            let place = format!("{file}, document {}", i + 1);
            let value = match Value::deserialize(document) {
                Ok(Value::Null) => continue,
                Ok(value) => value,
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
                "Stream" => {
                    let Some(document) = serde_yaml::Deserializer::from_str(text).nth(i) else { continue };
                    match Stream::deserialize(document) {
                        Ok(stream) => self.stream(place, stream, &value),
                        Err(error) => self.error(place, error.to_string()),
                    }
                }
                "StreamCluster" => {
                    self.note(place, "a StreamCluster is for Kubernetes; this command runs its own".to_owned())
                }
                other => self.error(place, format!("kind: {other:?} is not Stream")),
            }
        }
    }

    fn stream(&mut self, place: String, mut stream: Stream, written: &Value) {
        let name = stream.metadata.name.clone().unwrap_or_default();
        let place = if name.is_empty() { place } else { format!("{place} (Stream {name})") };
        if name.is_empty() {
            return self.error(place, "metadata.name: is required".to_owned());
        }
        let unknown = unknown_fields(&stream, written);
        for field in &unknown {
            self.error(place.clone(), format!("{field}: unknown"));
        }
        stream.metadata.namespace.get_or_insert_with(|| "default".to_owned());
        match Desired::from_stream(&stream) {
            Ok(desired) if unknown.is_empty() => self.streams.push(desired),
            // A field that has no effect may be a misspelt one: the stream would not be what was meant.
            Ok(_) => {}
            Err(problems) => {
                for problem in problems.0 {
                    self.error(place.clone(), problem.to_string());
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
            self.streams.retain(|desired| desired.name != name);
            self.error(
                format!("stream {name}"),
                format!("spec.name: is used by {}; neither is kept", owners.join(" and ")),
            );
        }
    }
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
        .filter_map(|(key, _)| Some(format!("spec.{}", key.as_str()?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Manifests {
        let mut manifests = Manifests::default();
        manifests.read(Path::new("s.yaml"), text);
        manifests.refuse_twins();
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
            ["document 3", "spec.replicas"],
            ["document 4 (Stream typo)", "spec.replcas: unknown"],
            ["document 5", "apiVersion"],
        ]) {
            assert!(line.starts_with("s.yaml") && parts.iter().all(|p| line.contains(p)), "{line} lacks {parts:?}");
        }
        assert_eq!(told.len(), 5, "{told:?}");
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
