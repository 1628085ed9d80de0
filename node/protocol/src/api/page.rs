//! Paged lists.

use serde::{Deserialize, Serialize};

use crate::api::stream::StreamInfo;
use crate::json;

/// Names per page.
pub const NAMES_LIMIT: usize = 1024;
/// Descriptions per page.
pub const LIST_LIMIT: usize = 256;
/// Subjects per page of stream details.
pub const SUBJECTS_LIMIT: usize = 100_000;

/// Request of `STREAM.NAMES` and `STREAM.LIST`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StreamListRequest {
    /// Items to skip; negative counts as zero.
    #[serde(deserialize_with = "json::nullable")]
    pub offset: i64,
    /// Only streams whose subjects overlap this filter.
    #[serde(deserialize_with = "json::nullable")]
    pub subject: String,
}

/// Request of `CONSUMER.NAMES` and `CONSUMER.LIST`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConsumerListRequest {
    /// Items to skip; negative counts as zero.
    #[serde(deserialize_with = "json::nullable")]
    pub offset: i64,
}

/// Which part of a list is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Page {
    /// Items in the whole list.
    pub total: usize,
    /// Items skipped.
    pub offset: usize,
    /// Items per page.
    pub limit: usize,
}

impl Page {
    /// The page of a list of `total` items that starts at `offset`; beyond the end it is empty.
    pub fn new(total: usize, offset: i64, limit: usize) -> Self {
        let offset = usize::try_from(offset).unwrap_or(0).min(total);
        Self { total, offset, limit }
    }

    /// The page of a stream's subjects, which differs at both ends, as nats-server has it: an `offset` beyond the end
    /// is shown as it was sent, and where nothing matches there are no pages.
    pub fn of_subjects(total: usize, offset: i64) -> Self {
        if total == 0 {
            return Self { total: 0, offset: 0, limit: 0 };
        }
        Self { total, offset: usize::try_from(offset).unwrap_or(0), limit: SUBJECTS_LIMIT }
    }

    /// The items of `list` on this page.
    pub fn of<'a, T>(&self, list: &'a [T]) -> &'a [T] {
        let rest = list.get(self.offset..).unwrap_or_default();
        rest.get(..self.limit).unwrap_or(rest)
    }
}

/// `STREAM.NAMES`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StreamNamesResponse {
    /// Which part this is.
    #[serde(flatten)]
    pub page: Page,
    /// Names, sorted; `null` in a list that has none, as nats-server puts it.
    #[serde(serialize_with = "null_if_empty")]
    pub streams: Vec<String>,
}

fn null_if_empty<S: serde::Serializer>(names: &[String], serializer: S) -> Result<S::Ok, S::Error> {
    match names {
        [] => serializer.serialize_none(),
        names => serializer.collect_seq(names),
    }
}

/// `STREAM.LIST`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StreamListResponse {
    /// Which part this is.
    #[serde(flatten)]
    pub page: Page,
    /// Descriptions, sorted by name.
    pub streams: Vec<StreamInfo>,
    /// Streams that did not answer in time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

/// `CONSUMER.NAMES`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConsumerNamesResponse {
    /// Which part this is.
    #[serde(flatten)]
    pub page: Page,
    /// Names, sorted.
    pub consumers: Vec<String>,
}

/// `CONSUMER.LIST`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConsumerListResponse {
    /// Which part this is.
    #[serde(flatten)]
    pub page: Page,
    /// Descriptions, sorted by name.
    pub consumers: Vec<crate::api::consumer::ConsumerInfo>,
    /// Consumers that did not answer in time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_clamp() {
        let list = [1, 2, 3];
        assert_eq!(Page::new(3, -1, 2).of(&list), [1, 2]);
        assert_eq!(Page::new(3, 2, 2).of(&list), [3]);
        assert_eq!(Page::new(3, 10, 2), Page { total: 3, offset: 3, limit: 2 });
        assert!(Page::new(3, i64::MAX, 2).of(&list).is_empty());
    }

    #[test]
    fn pages_of_subjects_do_not_clamp() {
        let list = [1, 2, 3];
        let beyond = Page::of_subjects(3, 100);
        assert_eq!((beyond, beyond.of(&list)), (Page { total: 3, offset: 100, limit: SUBJECTS_LIMIT }, &[][..]));
        assert_eq!(Page::of_subjects(3, -1).of(&list), list);
        assert_eq!(Page::of_subjects(3, 2).of(&list), [3]);
        assert_eq!(Page::of_subjects(0, 5), Page { total: 0, offset: 0, limit: 0 });
    }

    #[test]
    fn names_response_keys() {
        let response = StreamNamesResponse { page: Page::new(1, 0, NAMES_LIMIT), streams: vec!["s1".into()] };
        assert_eq!(json::to_string(&response), r#"{"total":1,"offset":0,"limit":1024,"streams":["s1"]}"#);
        let none = StreamNamesResponse { page: Page::new(0, 0, NAMES_LIMIT), streams: Vec::new() };
        assert_eq!(json::to_string(&none), r#"{"total":0,"offset":0,"limit":1024,"streams":null}"#);
    }
}
