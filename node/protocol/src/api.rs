//! The JetStream API (`$JS.API.>`): subjects, bodies, errors and the rules a request must pass.
//!
//! Bodies are parsed strictly: an unknown field is refused. What Headwater does not do yet is refused by name, in
//! one place: [`unsupported`].

pub mod account;
pub mod consumer;
pub mod consumer_config;
pub mod consumer_rules;
pub mod envelope;
pub mod error;
pub mod level;
pub mod message;
pub mod page;
pub mod route;
pub mod stream;
pub mod stream_config;
pub mod stream_rules;
pub mod unsupported;
mod wire_enum;

/// Parses a request body strictly. `null` is an object without fields, as in Go.
///
/// # Errors
/// `10025 invalid JSON: …`.
pub fn parse_body<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, error::ApiError> {
    let body = if body.trim_ascii() == b"null" { b"{}" } else { body };
    crate::json::from_slice(body).map_err(|error| error::invalid_json(&error))
}

/// Whether nothing was sent where a body is needed. Unlike for an optional body, what is no JSON at all is not nothing.
pub(crate) fn is_missing_body(body: &[u8]) -> bool {
    let body = body.trim_ascii();
    body.is_empty() || (body.starts_with(b"{") && crate::json::is_empty_request(body))
}

/// Parses an optional body strictly; one without content gives the default.
///
/// # Errors
/// `10025 invalid JSON: …`.
pub fn parse_optional_body<T: serde::de::DeserializeOwned + Default>(body: &[u8]) -> Result<T, error::ApiError> {
    if crate::json::is_empty_request(body) { Ok(T::default()) } else { parse_body(body) }
}

/// Checks that a request has no body where none is allowed.
///
/// # Errors
/// `10038 expected an empty request payload`.
pub fn expect_no_body(body: &[u8]) -> Result<(), error::ApiError> {
    if is_missing_body(body) { Ok(()) } else { Err(error::NOT_EMPTY_REQUEST) }
}
