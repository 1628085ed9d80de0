//! The CONNECT document: what a client tells about itself.

use serde::Deserialize;

use crate::json;
use crate::wire_error::WireError;

/// CONNECT options. Unknown fields are ignored; absent ones have nats-server's defaults.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ConnectOptions {
    /// Whether every operation is answered `+OK`. True when absent.
    #[serde(deserialize_with = "or_true")]
    pub verbose: bool,
    /// Stricter checks. True when absent.
    #[serde(deserialize_with = "or_true")]
    pub pedantic: bool,
    /// Whether own publishes reach own subscriptions. True when absent.
    #[serde(deserialize_with = "or_true")]
    pub echo: bool,
    /// Whether the client understands headers.
    #[serde(deserialize_with = "json::nullable")]
    pub headers: bool,
    /// Whether requests without a listener are answered `503`.
    #[serde(deserialize_with = "json::nullable")]
    pub no_responders: bool,
    /// 1: the client understands INFO at any time.
    #[serde(deserialize_with = "json::nullable")]
    pub protocol: i64,
    /// The client insists on TLS.
    #[serde(deserialize_with = "json::nullable")]
    pub tls_required: bool,
    /// Client name.
    #[serde(deserialize_with = "json::nullable")]
    pub name: String,
    /// Client language.
    #[serde(deserialize_with = "json::nullable")]
    pub lang: String,
    /// Client library version.
    #[serde(deserialize_with = "json::nullable")]
    pub version: String,
    /// User name.
    #[serde(deserialize_with = "json::nullable")]
    pub user: String,
    /// Password.
    #[serde(deserialize_with = "json::nullable")]
    pub pass: String,
    /// Token.
    #[serde(deserialize_with = "json::nullable")]
    pub auth_token: String,
    /// Public nkey.
    #[serde(deserialize_with = "json::nullable")]
    pub nkey: String,
    /// Signature over the nonce.
    #[serde(deserialize_with = "json::nullable")]
    pub sig: String,
    /// User JWT.
    #[serde(deserialize_with = "json::nullable")]
    pub jwt: String,
    /// Never accepted from clients.
    #[serde(deserialize_with = "json::nullable")]
    pub account: String,
    /// Never accepted from clients.
    #[serde(deserialize_with = "json::nullable")]
    pub new_account: bool,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            verbose: true,
            pedantic: true,
            echo: true,
            headers: false,
            no_responders: false,
            protocol: 0,
            tls_required: false,
            name: String::new(),
            lang: String::new(),
            version: String::new(),
            user: String::new(),
            pass: String::new(),
            auth_token: String::new(),
            nkey: String::new(),
            sig: String::new(),
            jwt: String::new(),
            account: String::new(),
            new_account: false,
        }
    }
}

/// Secrets stay out of logs.
impl std::fmt::Debug for ConnectOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnectOptions")
            .field("name", &self.name)
            .field("lang", &self.lang)
            .field("version", &self.version)
            .field("user", &self.user)
            .field("verbose", &self.verbose)
            .field("headers", &self.headers)
            .field("no_responders", &self.no_responders)
            .field("protocol", &self.protocol)
            .field("echo", &self.echo)
            .finish_non_exhaustive()
    }
}

fn or_true<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(true))
}

impl ConnectOptions {
    /// Parses and checks the document of a CONNECT line.
    ///
    /// # Errors
    /// The error to tell the client; all of them end the connection.
    pub fn parse(json: &[u8]) -> Result<Self, WireError> {
        let options: Self = json::from_slice(json).map_err(|_| WireError::MalformedArguments)?;
        if !options.account.is_empty() || options.new_account {
            return Err(WireError::AuthorizationViolation);
        }
        if !(0..=1).contains(&options.protocol) {
            return Err(WireError::InvalidClientProtocol);
        }
        if options.no_responders && !options.headers {
            return Err(WireError::NoRespondersRequiresHeaders);
        }
        Ok(options)
    }

    /// Whether the client understands INFO after the first one.
    pub fn takes_async_info(&self) -> bool {
        self.protocol >= 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_nats_server() {
        let options = ConnectOptions::parse(b"{}").unwrap();
        assert!(options.verbose && options.pedantic && options.echo);
        assert!(!options.headers && !options.no_responders && !options.takes_async_info());
        let options = ConnectOptions::parse(br#"{"verbose":false,"protocol":1,"bogus":1,"user":null}"#).unwrap();
        assert!(!options.verbose && options.takes_async_info());
    }

    #[test]
    fn refusals() {
        for (json, want) in [
            (r#"{"headers":false,"no_responders":true}"#, WireError::NoRespondersRequiresHeaders),
            (r#"{"protocol":5}"#, WireError::InvalidClientProtocol),
            (r#"{"account":"x"}"#, WireError::AuthorizationViolation),
            (r#"{"protocol":"x"}"#, WireError::MalformedArguments),
            ("x", WireError::MalformedArguments),
        ] {
            assert_eq!(ConnectOptions::parse(json.as_bytes()), Err(want), "{json}");
        }
    }

    #[test]
    fn secrets_are_not_printed() {
        let options = ConnectOptions::parse(br#"{"pass":"hunter2","auth_token":"t0p"}"#).unwrap();
        let printed = format!("{options:?}");
        assert!(!printed.contains("hunter2") && !printed.contains("t0p"));
    }
}
