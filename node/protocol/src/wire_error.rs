//! The `-ERR` lines of the client protocol. Clients compare these texts, so they are byte for byte nats-server's.

use std::borrow::Cow;

/// An error told to a client with `-ERR '<text>'`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WireError {
    /// The line is no known operation.
    UnknownOperation,
    /// The verb is known but its arguments are not understood. nats-server closes without a word.
    MalformedArguments,
    /// HPUB from a client that did not say that it knows headers. nats-server closes without a word.
    HeadersNotSupported,
    /// A client sent `-ERR`: it is leaving. Nothing is answered.
    ClientError,
    /// The control line is longer than the limit.
    ControlLineTooLong,
    /// The message is larger than `max_payload`.
    PayloadTooLarge,
    /// Credentials are missing or wrong, or a CONNECT field is refused.
    AuthorizationViolation,
    /// No CONNECT arrived in time.
    AuthenticationTimeout,
    /// The server requires TLS.
    TlsRequired,
    /// Too many pings went unanswered.
    StaleConnection,
    /// The node's connection limit is reached.
    ConnectionsExceeded,
    /// The account's connection limit is reached.
    AccountConnectionsExceeded,
    /// The connection's subscription limit is reached.
    SubscriptionsExceeded,
    /// `no_responders` was asked for without `headers`.
    NoRespondersRequiresHeaders,
    /// CONNECT `protocol` is neither 0 nor 1.
    InvalidClientProtocol,
    /// The SUB subject is malformed.
    InvalidSubject,
    /// The PUB subject is malformed or has wildcards.
    InvalidPublishSubject,
    /// Not allowed to publish to this subject.
    PublishPermission(String),
    /// Not allowed to subscribe to this subject.
    SubscriptionPermission {
        /// The refused subject.
        subject: String,
        /// The queue group, if one was named.
        queue: Option<String>,
    },
    /// Not allowed to publish with this reply subject.
    ReplyPermission(String),
}

impl WireError {
    /// The text between the quotes, or `None` when the connection ends without a word.
    pub fn text(&self) -> Option<Cow<'static, str>> {
        Some(match self {
            Self::MalformedArguments | Self::HeadersNotSupported | Self::ClientError => {
                return None;
            }
            Self::UnknownOperation => "Unknown Protocol Operation".into(),
            Self::ControlLineTooLong => "maximum control line exceeded".into(),
            Self::PayloadTooLarge => "Maximum Payload Violation".into(),
            Self::AuthorizationViolation => "Authorization Violation".into(),
            Self::AuthenticationTimeout => "Authentication Timeout".into(),
            Self::TlsRequired => "Secure Connection - TLS Required".into(),
            Self::StaleConnection => "Stale Connection".into(),
            Self::ConnectionsExceeded => "maximum connections exceeded".into(),
            Self::AccountConnectionsExceeded => "maximum account active connections exceeded".into(),
            Self::SubscriptionsExceeded => "maximum subscriptions exceeded".into(),
            Self::NoRespondersRequiresHeaders => "no responders requires headers support".into(),
            Self::InvalidClientProtocol => "invalid client protocol".into(),
            Self::InvalidSubject => "Invalid Subject".into(),
            Self::InvalidPublishSubject => "Invalid Publish Subject".into(),
            Self::PublishPermission(subject) => format!("Permissions Violation for Publish to \"{subject}\"").into(),
            Self::SubscriptionPermission { subject, queue: None } => {
                format!("Permissions Violation for Subscription to \"{subject}\"").into()
            }
            Self::SubscriptionPermission { subject, queue: Some(queue) } => {
                format!("Permissions Violation for Subscription to \"{subject}\" using queue \"{queue}\"").into()
            }
            Self::ReplyPermission(subject) => {
                format!("Permissions Violation for Publish with Reply of \"{subject}\"").into()
            }
        })
    }

    /// Whether the server closes the connection after telling.
    pub fn closes(&self) -> bool {
        match self {
            Self::UnknownOperation
            | Self::MalformedArguments
            | Self::HeadersNotSupported
            | Self::ClientError
            | Self::ControlLineTooLong
            | Self::PayloadTooLarge
            | Self::AuthorizationViolation
            | Self::AuthenticationTimeout
            | Self::TlsRequired
            | Self::StaleConnection
            | Self::ConnectionsExceeded
            | Self::AccountConnectionsExceeded
            | Self::NoRespondersRequiresHeaders
            | Self::InvalidClientProtocol => true,
            Self::SubscriptionsExceeded
            | Self::InvalidSubject
            | Self::InvalidPublishSubject
            | Self::PublishPermission(_)
            | Self::SubscriptionPermission { .. }
            | Self::ReplyPermission(_) => false,
        }
    }
}

impl std::fmt::Display for WireError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self, self.text()) {
            (_, Some(text)) => f.write_str(&text),
            (Self::ClientError, None) => f.write_str("client reported an error"),
            (_, None) => f.write_str("malformed arguments"),
        }
    }
}

impl std::error::Error for WireError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permission_texts_name_subject_and_queue() {
        let with_queue = WireError::SubscriptionPermission { subject: "a.b".into(), queue: Some("q".into()) };
        assert_eq!(
            with_queue.text().as_deref(),
            Some("Permissions Violation for Subscription to \"a.b\" using queue \"q\"")
        );
        assert!(!with_queue.closes());
        assert!(WireError::PayloadTooLarge.closes());
        assert_eq!(WireError::MalformedArguments.text(), None);
    }
}
