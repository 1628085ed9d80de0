//! API levels: what a request needs, what this server speaks, and the metadata that says so.

use std::collections::BTreeMap;

use crate::api::error::{self, ApiError};
use crate::headers::{HeaderBlock, name};
use crate::info::{API_LEVEL, REPORTED_VERSION};

/// Level that a stream's or consumer's configuration needs; stored.
pub const META_REQUIRED_LEVEL: &str = "_nats.req.level";
/// Level of the answering server; only in responses.
pub const META_LEVEL: &str = "_nats.level";
/// Version of the answering server; only in responses.
pub const META_VERSION: &str = "_nats.ver";
/// Keys that belong to the server and never count when configurations are compared.
pub const META_SERVER_PREFIX: &str = "_nats.";

/// Free-form key-value pairs of a stream or consumer.
pub type Metadata = BTreeMap<String, String>;

/// Whether a request's `Nats-Required-Api-Level`, if any, is within [`API_LEVEL`]. An unreadable one is not.
pub fn is_supported(headers: &[u8]) -> bool {
    let Some(required) = HeaderBlock(headers).get(name::REQUIRED_API_LEVEL) else {
        return true;
    };
    match std::str::from_utf8(required) {
        Ok("") => true,
        Ok(text) => text.parse::<i64>().is_ok_and(|required| required <= i64::from(API_LEVEL)),
        Err(_) => false,
    }
}

/// The same, as an API error.
///
/// # Errors
/// `10185 JetStream minimum api level required`.
pub fn check(headers: &[u8]) -> Result<(), ApiError> {
    if is_supported(headers) { Ok(()) } else { Err(error::REQUIRED_API_LEVEL) }
}

/// Records the level a configuration needs and drops the response-only keys, for storing.
pub fn stamp_stored(metadata: &mut Metadata, required: u32) {
    metadata.remove(META_LEVEL);
    metadata.remove(META_VERSION);
    metadata.insert(META_REQUIRED_LEVEL.to_owned(), required.to_string());
}

/// Adds the response-only keys, for showing.
pub fn stamp_response(metadata: &mut Metadata) {
    metadata.insert(META_LEVEL.to_owned(), API_LEVEL.to_string());
    metadata.insert(META_VERSION.to_owned(), REPORTED_VERSION.to_owned());
}

/// The pairs that users set.
pub fn user_entries(metadata: &Metadata) -> impl Iterator<Item = (&str, &str)> {
    metadata
        .iter()
        .filter(|(key, _)| !key.starts_with(META_SERVER_PREFIX))
        .map(|(key, value)| (key.as_str(), value.as_str()))
}

/// Bytes of all keys and values.
pub(crate) fn size(metadata: &Metadata) -> usize {
    metadata.iter().map(|(key, value)| key.len() + value.len()).sum()
}

/// Most bytes of metadata.
pub(crate) const METADATA_BYTES_MAX: usize = 128 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::HeaderBuilder;

    #[test]
    fn levels_up_to_ours_pass() {
        let with = |value: &str| {
            let mut builder = HeaderBuilder::new();
            builder.add(name::REQUIRED_API_LEVEL, value);
            check(&builder.finish())
        };
        assert_eq!(check(b""), Ok(()));
        for level in ["0", "3", "4", "", "-1"] {
            assert_eq!(with(level), Ok(()), "{level}");
        }
        for level in ["5", "9", "x", "1.5"] {
            assert_eq!(with(level), Err(error::REQUIRED_API_LEVEL), "{level}");
        }
    }
}
