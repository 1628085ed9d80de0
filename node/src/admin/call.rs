//! A mutating call: who may make one, and its body.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, FromRequest, Request};
use axum::http::{HeaderMap, Method, header};
use serde::de::DeserializeOwned;

use super::Admin;
use super::error::Refusal;
use super::peer::FromPeer;

/// Largest body that is read (bytes). Configurations are the largest bodies, a few kB.
const BODY_BYTES_MAX: usize = 1 << 20;
/// A call whose sender may change things.
pub(crate) struct Call {
    pub(super) method: Method,
    pub(super) path: String,
    /// Another node passed it on.
    pub(super) forwarded: bool,
    pub(super) body: Bytes,
}

impl Call {
    /// The body as JSON.
    pub(super) fn parse<T: DeserializeOwned>(&self) -> Result<T, Refusal> {
        serde_json::from_slice(&self.body)
            .map_err(|e| Refusal::bad("bad_body", format!("the body is not as it should be: {e}")))
    }
}

impl FromRequest<Arc<Admin>> for Call {
    type Rejection = Refusal;

    async fn from_request(request: Request<Body>, admin: &Arc<Admin>) -> Result<Self, Refusal> {
        let forwarded = request.extensions().get::<FromPeer>().is_some();
        if !forwarded {
            let caller = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|c| c.0);
            authorize(admin.context.config.admin_token.as_deref(), request.headers(), caller)?;
        }
        let (parts, body) = request.into_parts();
        let body = axum::body::to_bytes(body, BODY_BYTES_MAX).await.map_err(|_| {
            Refusal::too_large(format!("the body must be at most {BODY_BYTES_MAX} bytes, and complete"))
        })?;
        Ok(Self { method: parts.method, path: parts.uri.path().to_owned(), forwarded, body })
    }
}

/// With a token configured, the call must carry it; without one it must come from this machine.
fn authorize(token: Option<&str>, headers: &HeaderMap, peer: Option<SocketAddr>) -> Result<(), Refusal> {
    let Some(token) = token else {
        return if peer.is_some_and(|p| p.ip().to_canonical().is_loopback()) {
            Ok(())
        } else {
            Err(Refusal::forbidden(
                "changes are accepted from this machine only; start the node with --admin-token-file to accept them from others",
            ))
        };
    };
    let given = headers.get(header::AUTHORIZATION).and_then(|v| v.to_str().ok()).and_then(|v| v.split_once(' '));
    let Some((scheme, given)) = given else {
        return Err(Refusal::unauthorized("this call needs the header Authorization: Bearer <admin token>"));
    };
    if scheme.eq_ignore_ascii_case("bearer") && same(token.as_bytes(), given.trim().as_bytes()) {
        Ok(())
    } else {
        Err(Refusal::forbidden("the admin token is not this node's"))
    }
}

/// Compares without stopping at the first difference, so that the time taken tells nothing but the length.
fn same(a: &[u8], b: &[u8]) -> bool {
    let difference = a.iter().zip(b).fold(0_u8, |acc, (x, y)| std::hint::black_box(acc | (x ^ y)));
    a.len() == b.len() && difference == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, value.parse().unwrap());
        headers
    }

    #[test]
    fn without_a_token_only_this_machine_may_change_things() {
        let none = HeaderMap::new();
        let at = |ip: &str| Some(SocketAddr::new(ip.parse().unwrap(), 1));
        assert!(authorize(None, &none, at("127.0.0.1")).is_ok());
        assert!(authorize(None, &none, at("::1")).is_ok());
        assert!(authorize(None, &none, at("::ffff:127.0.0.1")).is_ok());
        for peer in [at("10.0.0.1"), at("0.0.0.0"), None] {
            assert_eq!(authorize(None, &none, peer).unwrap_err().status, 403, "{peer:?}");
        }
    }

    #[test]
    fn with_a_token_everybody_must_know_it() {
        let peer = Some(SocketAddr::from(([127, 0, 0, 1], 1)));
        let ask = |headers: &HeaderMap| authorize(Some("secret"), headers, peer).map_err(|r| r.status.as_u16());
        assert_eq!(ask(&headers("Bearer secret")), Ok(()));
        assert_eq!(ask(&headers("bearer secret ")), Ok(()));
        assert_eq!(ask(&HeaderMap::new()), Err(401));
        for wrong in ["Bearer secreT", "Bearer secret2", "Bearer secre", "Bearer ", "Basic secret"] {
            assert_eq!(ask(&headers(wrong)), Err(403), "{wrong}");
        }
    }
}
