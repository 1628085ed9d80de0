//! Acknowledgements of publishes: `{"stream":"S","seq":N}` and its error form.

use bytes::BufMut;

use crate::api::error::ApiError;
use crate::encode::{self, Address, number};
use crate::json;

const DUPLICATE: &[u8] = b",\"duplicate\": true";

/// The constant part of a stream's acknowledgements, prepared once so that the publish path only writes a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PubAckWriter {
    /// `{"stream":"S","seq":`, with the domain if there is one.
    prefix: Vec<u8>,
    stream_json: String,
}

impl PubAckWriter {
    /// Prepares acknowledgements of `stream`.
    pub fn new(stream: &str, domain: Option<&str>) -> Self {
        let stream_json = json::to_string(stream);
        let domain = domain.map(|domain| format!("\"domain\":{},", json::to_string(domain))).unwrap_or_default();
        let prefix = format!("{{\"stream\":{stream_json},{domain}\"seq\":").into_bytes();
        Self { prefix, stream_json }
    }

    /// Appends the JSON body.
    #[inline]
    pub fn body(&self, out: &mut impl BufMut, seq: u64, duplicate: bool) {
        out.put_slice(&self.prefix);
        number(out, seq);
        if duplicate {
            out.put_slice(DUPLICATE);
        }
        out.put_u8(b'}');
    }

    /// Length of [`Self::body`], in bytes.
    #[inline]
    pub fn body_len(&self, seq: u64, duplicate: bool) -> usize {
        let digits = seq.checked_ilog10().map_or(1, |log| log as usize + 1);
        self.prefix.len() + digits + if duplicate { DUPLICATE.len() } else { 0 } + 1
    }

    /// Appends a whole `MSG` that delivers the acknowledgement.
    #[inline]
    pub fn msg(&self, out: &mut impl BufMut, to: Address<'_>, seq: u64, duplicate: bool) {
        encode::msg_line(out, to, self.body_len(seq, duplicate));
        self.body(out, seq, duplicate);
        out.put_slice(b"\r\n");
    }

    /// The body that refuses a publish.
    pub fn refusal(&self, error: &ApiError) -> String {
        format!("{{\"error\":{},\"stream\":{},\"seq\":0}}", json::to_string(error), self.stream_json)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::error;
    use proptest::prelude::*;

    fn body(writer: &PubAckWriter, seq: u64, duplicate: bool) -> String {
        let mut out = Vec::new();
        writer.body(&mut out, seq, duplicate);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn bodies_are_those_of_nats_server() {
        let writer = PubAckWriter::new("s1", None);
        assert_eq!(body(&writer, 6, false), r#"{"stream":"s1","seq":6}"#);
        assert_eq!(body(&writer, 7, true), r#"{"stream":"s1","seq":7,"duplicate": true}"#);
        assert_eq!(body(&PubAckWriter::new("s1", Some("hub")), 6, false), r#"{"stream":"s1","domain":"hub","seq":6}"#);
        assert_eq!(
            writer.refusal(&error::stream_wrong_last_sequence(6)),
            r#"{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 6"},"stream":"s1","seq":0}"#
        );
        assert_eq!(body(&PubAckWriter::new("q\"q", None), 1, false), r#"{"stream":"q\"q","seq":1}"#);
    }

    #[test]
    fn a_whole_message() {
        let mut out = Vec::new();
        let to = Address { subject: b"_I.1", sid: b"9", reply: None };
        PubAckWriter::new("S", None).msg(&mut out, to, 10, false);
        assert_eq!(out, b"MSG _I.1 9 23\r\n{\"stream\":\"S\",\"seq\":10}\r\n");
    }

    proptest! {
        #[test]
        fn length_is_exact(seq in any::<u64>(), shift in 0u32..64, duplicate in any::<bool>()) {
            let writer = PubAckWriter::new("S", Some("d"));
            prop_assert_eq!(body(&writer, seq >> shift, duplicate).len(), writer.body_len(seq >> shift, duplicate));
        }
    }
}
