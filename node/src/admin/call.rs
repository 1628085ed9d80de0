//! A mutating call: who may make one, and its body.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, FromRequest, Request};
use axum::http::{HeaderMap, Method, Uri, header};
use headwater_protocol::json;
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
    /// The body as JSON. A field that nothing reads is refused: whoever sent it meant something by it.
    pub(super) fn parse<T: DeserializeOwned>(&self) -> Result<T, Refusal> {
        json::from_slice_strict(&self.body)
            .map_err(|e| Refusal::bad("bad_body", format!("the body is not as it should be: {e}")))
    }
}

impl FromRequest<Arc<Admin>> for Call {
    type Rejection = Refusal;

    async fn from_request(request: Request<Body>, admin: &Arc<Admin>) -> Result<Self, Refusal> {
        let forwarded = request.extensions().get::<FromPeer>().is_some();
        if !forwarded {
            let caller = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|c| c.0);
            let token = admin.context.config.admin_token.as_deref();
            if token.is_none() {
                not_from_a_web_page(request.headers(), request.uri())?;
            }
            authorize(token, request.headers(), caller)?;
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

/// Without a token, being on this machine is the right to change things, and a browser on it lends that to every page it
/// shows. A browser says so with `Origin`, and its `Host` is the page's own name where that was made to point here.
fn not_from_a_web_page(headers: &HeaderMap, uri: &Uri) -> Result<(), Refusal> {
    if headers.contains_key(header::ORIGIN) {
        return Err(Refusal::forbidden(
            "web pages may not change anything; this call has an Origin header, and the node no --admin-token-file",
        ));
    }
    let named = headers.get_all(header::HOST).iter().map(|host| host.to_str().unwrap_or("?"));
    match named.chain(uri.authority().map(|authority| authority.as_str())).find(|host| !is_loopback(host)) {
        Some(host) => Err(Refusal::forbidden(format!(
            "the host {host:?} is not this machine's own; without --admin-token-file changes are accepted at localhost, 127.0.0.1 and [::1] only"
        ))),
        None => Ok(()),
    }
}

/// Whether a host, with or without its port, is this machine's own by its very name.
fn is_loopback(host: &str) -> bool {
    let without_port = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.ends_with(':') => name,
        _ => host,
    };
    let name = without_port.strip_prefix('[').and_then(|v6| v6.strip_suffix(']')).unwrap_or(without_port);
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
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
    fn without_a_token_web_pages_may_not_change_things() {
        let ask = |lines: &[(&'static str, &str)], uri: &str| {
            let mut headers = HeaderMap::new();
            for (name, value) in lines {
                headers.append(*name, value.parse().unwrap());
            }
            not_from_a_web_page(&headers, &uri.parse().unwrap()).map_err(|refusal| refusal.status.as_u16())
        };
        let own = ["localhost", "LOCALHOST:8222", "127.0.0.1", "127.0.0.1:8222", "127.3.2.1:1", "[::1]", "[::1]:8222"];
        for host in own {
            assert_eq!(ask(&[("host", host)], "/v1/fence"), Ok(()), "{host}");
            assert_eq!(ask(&[("host", host), ("origin", "null")], "/v1/fence"), Err(403), "{host}");
            assert_eq!(ask(&[("host", host), ("origin", "http://localhost:3000")], "/v1/fence"), Err(403), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:8222",
            "10.0.0.1:8222",
            "localhost.evil.example",
            "127.0.0.1.evil:1",
            "[fd00::1]:1",
            "",
            ":1",
        ] {
            assert_eq!(ask(&[("host", host)], "/v1/fence"), Err(403), "{host}");
            assert_eq!(ask(&[("host", "127.0.0.1"), ("host", host)], "/v1/fence"), Err(403), "{host}");
        }
        assert_eq!(ask(&[("host", "127.0.0.1")], "http://evil.example/v1/fence"), Err(403));
    }

    #[test]
    fn a_body_is_an_object_with_known_fields_only() {
        use headwater_plan::wire::{FenceRequest, StreamDelete, StreamPut};
        let call = |body: &'static str| Call {
            method: Method::POST,
            path: String::new(),
            forwarded: false,
            body: Bytes::from_static(body.as_bytes()),
        };
        let why = |refusal: Refusal| (refusal.status.as_u16(), refusal.message);
        assert!(call(r#"{"holder":"x","ttl_ms":5}"#).parse::<FenceRequest>().is_ok());
        let (status, text) =
            call(r#"{"holder":"x","ttl_ms":5,"bogus":1}"#).parse::<FenceRequest>().map_err(why).unwrap_err();
        assert!(status == 400 && text.contains("bogus"), "{text}");
        let nested = r#"{"generation":1,"fence":1,"owner":{"namespace":"a","name":"b","uuid":"c"}}"#;
        let (status, text) = call(nested).parse::<StreamDelete>().map_err(why).unwrap_err();
        assert!(status == 400 && text.contains("uuid"), "{text}");
        for positional in [r#"["x",5]"#, "[]"] {
            assert_eq!(call(positional).parse::<FenceRequest>().map_err(why).unwrap_err().0, 400, "{positional}");
        }
        let put = r#"{"config":{"name":"S","any":{"thing":[]}},"generation":0,"fence":1}"#;
        assert!(call(put).parse::<StreamPut>().is_ok(), "the configuration is read by rules of its own");
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
