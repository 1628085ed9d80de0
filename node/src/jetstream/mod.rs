//! The JetStream API: finds who answers a request, and answers the ones that are ours.

mod account;
mod api;
mod consumers;
pub(crate) mod convert;
mod direct;
mod dispatch;
mod forwards;
mod messages;
pub(crate) mod streams;

pub(crate) use api::serve_api_call;
pub(crate) use dispatch::{Service, on_publish_batch, on_service};
pub(crate) use forwards::Forwards;

/// Any bytes as what nodes ask of each other for clients: the first byte says whether the rest is an API call or a
/// message for a stream's leader. See [`crate::decoders`].
///
/// # Panics
/// If a decoder contradicts itself.
pub fn decode_any(bytes: &[u8]) {
    match bytes.split_first() {
        Some((0, body)) => api::decode_any(body),
        Some((_, body)) => dispatch::decode_any(body),
        None => {}
    }
}

/// Frame kinds on the peer link that belong to JetStream.
pub(crate) mod kind {
    /// One message for the stream's leader: pull requests, acks, direct gets.
    pub(crate) const SERVICE: u8 = 0x22;
    /// An API request, answered with the response body.
    pub(crate) const API_CALL: u8 = 0x26;
}
