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

/// Frame kinds on the peer link that belong to JetStream.
pub(crate) mod kind {
    /// One message for the stream's leader: pull requests, acks, direct gets.
    pub(crate) const SERVICE: u8 = 0x22;
    /// An API request, answered with the response body.
    pub(crate) const API_CALL: u8 = 0x26;
}
