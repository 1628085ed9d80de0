//! The INFO document: what a server tells a client about itself.

use serde::Serialize;

/// The version reported to clients. SDKs gate features on it; it names the nats-server generation whose protocol and
/// API level is spoken, not Headwater's own version.
pub const REPORTED_VERSION: &str = "2.14.5";

/// JetStream API level spoken (2.14 generation).
pub const API_LEVEL: u32 = 4;

/// INFO. Empty optional fields are left out, as nats-server does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Info {
    /// Unique per start of the server.
    pub server_id: String,
    /// The node's name.
    pub server_name: String,
    /// A semantic version, see [`REPORTED_VERSION`].
    pub version: String,
    /// Protocol level; 1 means async INFO is sent.
    pub proto: u8,
    /// Build commit.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub git_commit: String,
    /// Language runtime; some clients expect the key.
    pub go: String,
    /// Listen address.
    pub host: String,
    /// Listen port.
    pub port: u16,
    /// Whether headers are understood; always true.
    pub headers: bool,
    /// Whether CONNECT must carry credentials.
    #[serde(skip_serializing_if = "crate::json::is_default")]
    pub auth_required: bool,
    /// Whether the client must upgrade to TLS.
    #[serde(skip_serializing_if = "crate::json::is_default")]
    pub tls_required: bool,
    /// Whether a client certificate is checked.
    #[serde(skip_serializing_if = "crate::json::is_default")]
    pub tls_verify: bool,
    /// Whether the client may upgrade to TLS.
    #[serde(skip_serializing_if = "crate::json::is_default")]
    pub tls_available: bool,
    /// Largest message, bytes.
    pub max_payload: usize,
    /// Whether the JetStream API is served.
    #[serde(skip_serializing_if = "crate::json::is_default")]
    pub jetstream: bool,
    /// This connection's number.
    pub client_id: u64,
    /// The client's address as seen by the server.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub client_ip: String,
    /// Challenge for nkey signatures.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub nonce: String,
    /// Name of the cluster.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cluster: String,
    /// `host:port` of other nodes' client listeners.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub connect_urls: Vec<String>,
    /// Lame duck: the node will leave, clients should go elsewhere.
    #[serde(skip_serializing_if = "crate::json::is_default")]
    pub ldm: bool,
    /// JetStream domain.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// JetStream API level.
    pub api_lvl: u32,
    /// Set in the INFO that follows the first PING: the fields below describe this connection.
    #[serde(skip_serializing_if = "crate::json::is_default")]
    pub connect_info: bool,
    /// The account the client ended up in.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remote_account: String,
    /// Whether that is the system account.
    #[serde(skip_serializing_if = "crate::json::is_default")]
    pub acc_is_sys: bool,
}

impl Default for Info {
    fn default() -> Self {
        Self {
            server_id: String::new(),
            server_name: String::new(),
            version: REPORTED_VERSION.to_owned(),
            proto: 1,
            git_commit: String::new(),
            go: "rust".to_owned(),
            host: String::new(),
            port: 4222,
            headers: true,
            auth_required: false,
            tls_required: false,
            tls_verify: false,
            tls_available: false,
            max_payload: 1024 * 1024,
            jetstream: true,
            client_id: 0,
            client_ip: String::new(),
            nonce: String::new(),
            cluster: String::new(),
            connect_urls: Vec::new(),
            ldm: false,
            domain: String::new(),
            api_lvl: API_LEVEL,
            connect_info: false,
            remote_account: String::new(),
            acc_is_sys: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_set_is_told() {
        let info = Info {
            server_id: "N1".into(),
            server_name: "n1".into(),
            host: "::".into(),
            client_id: 5,
            ..Info::default()
        };
        let mut line = Vec::new();
        crate::encode::info(&mut line, &info);
        assert_eq!(
            String::from_utf8(line).unwrap(),
            concat!(
                r#"INFO {"server_id":"N1","server_name":"n1","version":"2.14.5","proto":1,"go":"rust","host":"::","#,
                r#""port":4222,"headers":true,"max_payload":1048576,"jetstream":true,"client_id":5,"api_lvl":4}"#,
                "\r\n"
            )
        );
    }
}
