//! `$JS.API` subjects.

use crate::api::envelope::ResponseType;

/// Start of every API subject.
pub const PREFIX: &str = "$JS.API.";

/// One API endpoint with the names in its subject. Names are not validated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiRoute<'a> {
    /// Account information.
    Info,
    /// Create a stream.
    StreamCreate { stream: &'a str },
    /// Change a stream.
    StreamUpdate { stream: &'a str },
    /// Names of streams.
    StreamNames,
    /// Descriptions of streams.
    StreamList,
    /// Describe a stream.
    StreamInfo { stream: &'a str },
    /// Delete a stream.
    StreamDelete { stream: &'a str },
    /// Remove messages.
    StreamPurge { stream: &'a str },
    /// Read one message, in JSON.
    StreamMsgGet { stream: &'a str },
    /// Delete one message.
    StreamMsgDelete { stream: &'a str },
    /// Send a backup.
    StreamSnapshot { stream: &'a str },
    /// Take a backup.
    StreamRestore { stream: &'a str },
    /// Hand a stream's leadership over.
    StreamLeaderStepdown { stream: &'a str },
    /// Move a replica off a node.
    StreamPeerRemove { stream: &'a str },
    /// Move a replica off a node, gently.
    StreamPeerEvacuate { stream: &'a str },
    /// Stop moving a stream.
    StreamCancelMove { stream: &'a str },
    /// Read messages raw.
    DirectGet {
        /// The stream.
        stream: &'a str,
        /// Read the last message of this subject.
        subject: Option<&'a str>,
    },
    /// Create or change a consumer.
    ConsumerCreate {
        /// The stream.
        stream: &'a str,
        /// The consumer; absent in the oldest form, where the server names it.
        consumer: Option<&'a str>,
        /// The filter, repeated in the subject.
        filter: Option<&'a str>,
    },
    /// Create or change a durable consumer, older form.
    ConsumerDurableCreate { stream: &'a str, consumer: &'a str },
    /// Names of consumers.
    ConsumerNames { stream: &'a str },
    /// Descriptions of consumers.
    ConsumerList { stream: &'a str },
    /// Describe a consumer.
    ConsumerInfo { stream: &'a str, consumer: &'a str },
    /// Delete a consumer.
    ConsumerDelete { stream: &'a str, consumer: &'a str },
    /// Pull messages.
    ConsumerMsgNext { stream: &'a str, consumer: &'a str },
    /// Pause or resume a consumer.
    ConsumerPause { stream: &'a str, consumer: &'a str },
    /// Unpin a client.
    ConsumerUnpin { stream: &'a str, consumer: &'a str },
    /// Reset a consumer's position.
    ConsumerReset { stream: &'a str, consumer: &'a str },
    /// Hand a consumer's leadership over.
    ConsumerLeaderStepdown { stream: &'a str, consumer: &'a str },
    /// Hand the catalogue's leadership over.
    MetaLeaderStepdown,
    /// Bring back a catalogue without a majority.
    MetaRescue,
    /// Remove a node from the cluster.
    ServerRemove,
    /// Move everything off a node.
    ServerEvacuate,
    /// Delete everything of an account.
    AccountPurge { account: &'a str },
    /// Move a stream between clusters.
    AccountStreamMove { account: &'a str, stream: &'a str },
    /// Stop such a move.
    AccountStreamCancelMove { account: &'a str, stream: &'a str },
    /// No such endpoint.
    Unknown,
}

impl<'a> ApiRoute<'a> {
    /// Reads a subject; `None` unless it starts with `$JS.API.`.
    pub fn parse(subject: &'a [u8]) -> Option<Self> {
        let rest = subject.strip_prefix(PREFIX.as_bytes())?;
        let Ok(rest) = std::str::from_utf8(rest) else {
            return Some(Self::Unknown);
        };
        Some(match rest.split_once('.') {
            Some(("CONSUMER", rest)) => Self::consumer(rest),
            Some(("DIRECT", rest)) => Self::direct(rest),
            Some(("STREAM", rest)) => Self::stream(rest),
            _ => Self::other(rest),
        })
    }

    fn consumer(rest: &'a str) -> Self {
        let Some((verb, names)) = rest.split_once('.') else {
            return Self::Unknown;
        };
        if let Some(route) = Self::consumer_of_stream(verb, names) {
            return route;
        }
        if verb == "CREATE" {
            return Self::consumer_create(names);
        }
        let nested = match verb {
            "MSG" => names.strip_prefix("NEXT."),
            "DURABLE" => names.strip_prefix("CREATE."),
            "LEADER" => names.strip_prefix("STEPDOWN."),
            _ => Some(names),
        };
        let Some((stream, consumer)) = nested.and_then(two_tokens) else {
            return Self::Unknown;
        };
        match verb {
            "MSG" => Self::ConsumerMsgNext { stream, consumer },
            "DURABLE" => Self::ConsumerDurableCreate { stream, consumer },
            "LEADER" => Self::ConsumerLeaderStepdown { stream, consumer },
            "INFO" => Self::ConsumerInfo { stream, consumer },
            "DELETE" => Self::ConsumerDelete { stream, consumer },
            "PAUSE" => Self::ConsumerPause { stream, consumer },
            "UNPIN" => Self::ConsumerUnpin { stream, consumer },
            "RESET" => Self::ConsumerReset { stream, consumer },
            _ => Self::Unknown,
        }
    }

    fn consumer_of_stream(verb: &str, names: &'a str) -> Option<Self> {
        let route = match verb {
            "NAMES" => Self::ConsumerNames { stream: names },
            "LIST" => Self::ConsumerList { stream: names },
            _ => return None,
        };
        Some(if is_token(names) { route } else { Self::Unknown })
    }

    fn consumer_create(names: &'a str) -> Self {
        let (stream, rest) = match names.split_once('.') {
            Some((stream, rest)) => (stream, Some(rest)),
            None => (names, None),
        };
        let (consumer, filter) = match rest.map(|rest| rest.split_once('.').map_or((rest, None), |(c, f)| (c, Some(f))))
        {
            Some((consumer, filter)) => (Some(consumer), filter),
            None => (None, None),
        };
        if stream.is_empty() || consumer == Some("") || filter == Some("") {
            return Self::Unknown;
        }
        Self::ConsumerCreate { stream, consumer, filter }
    }

    fn direct(rest: &'a str) -> Self {
        let Some(names) = rest.strip_prefix("GET.") else {
            return Self::Unknown;
        };
        let (stream, subject) =
            names.split_once('.').map_or((names, None), |(stream, subject)| (stream, Some(subject)));
        if stream.is_empty() || subject == Some("") {
            return Self::Unknown;
        }
        Self::DirectGet { stream, subject }
    }

    fn stream(rest: &'a str) -> Self {
        match rest {
            "NAMES" => return Self::StreamNames,
            "LIST" => return Self::StreamList,
            _ => {}
        }
        let Some((verb, stream)) = rest.rsplit_once('.').filter(|(_, stream)| is_token(stream)) else {
            return Self::Unknown;
        };
        match verb {
            "CREATE" => Self::StreamCreate { stream },
            "UPDATE" => Self::StreamUpdate { stream },
            "INFO" => Self::StreamInfo { stream },
            "DELETE" => Self::StreamDelete { stream },
            "PURGE" => Self::StreamPurge { stream },
            "MSG.GET" => Self::StreamMsgGet { stream },
            "MSG.DELETE" => Self::StreamMsgDelete { stream },
            "SNAPSHOT" => Self::StreamSnapshot { stream },
            "RESTORE" => Self::StreamRestore { stream },
            "LEADER.STEPDOWN" => Self::StreamLeaderStepdown { stream },
            "PEER.REMOVE" => Self::StreamPeerRemove { stream },
            "PEER.EVACUATE" => Self::StreamPeerEvacuate { stream },
            "CANCEL_MOVE" => Self::StreamCancelMove { stream },
            _ => Self::Unknown,
        }
    }

    fn other(rest: &'a str) -> Self {
        match rest {
            "INFO" => Self::Info,
            "META.LEADER.STEPDOWN" => Self::MetaLeaderStepdown,
            "META.RESCUE" => Self::MetaRescue,
            "SERVER.REMOVE" => Self::ServerRemove,
            "SERVER.EVACUATE" => Self::ServerEvacuate,
            _ => Self::account(rest).unwrap_or(Self::Unknown),
        }
    }

    fn account(rest: &'a str) -> Option<Self> {
        if let Some(account) = rest.strip_prefix("ACCOUNT.PURGE.") {
            return is_token(account).then_some(Self::AccountPurge { account });
        }
        if let Some(names) = rest.strip_prefix("ACCOUNT.STREAM.MOVE.") {
            let (account, stream) = two_tokens(names)?;
            return Some(Self::AccountStreamMove { account, stream });
        }
        let (account, stream) = two_tokens(rest.strip_prefix("ACCOUNT.STREAM.CANCEL_MOVE.")?)?;
        Some(Self::AccountStreamCancelMove { account, stream })
    }

    /// The `type` of this endpoint's responses.
    pub fn response_type(&self) -> ResponseType {
        ResponseType(match self {
            Self::Info => "account_info_response",
            Self::StreamCreate { .. } => "stream_create_response",
            Self::StreamUpdate { .. } | Self::AccountStreamMove { .. } | Self::AccountStreamCancelMove { .. } => {
                "stream_update_response"
            }
            Self::StreamNames => "stream_names_response",
            Self::StreamList => "stream_list_response",
            Self::StreamInfo { .. } => "stream_info_response",
            Self::StreamDelete { .. } => "stream_delete_response",
            Self::StreamPurge { .. } => "stream_purge_response",
            // A direct get never answers in JSON.
            Self::StreamMsgGet { .. } | Self::DirectGet { .. } => "stream_msg_get_response",
            Self::StreamMsgDelete { .. } => "stream_msg_delete_response",
            Self::StreamSnapshot { .. } => "stream_snapshot_response",
            Self::StreamRestore { .. } => "stream_restore_response",
            Self::StreamLeaderStepdown { .. } => "stream_leader_stepdown_response",
            Self::StreamPeerRemove { .. } => "stream_remove_peer_response",
            Self::StreamPeerEvacuate { .. } => "stream_evacuate_peer_response",
            Self::StreamCancelMove { .. } => "stream_cancel_move_response",
            Self::ConsumerCreate { .. } | Self::ConsumerDurableCreate { .. } => "consumer_create_response",
            Self::ConsumerNames { .. } => "consumer_names_response",
            Self::ConsumerList { .. } => "consumer_list_response",
            Self::ConsumerInfo { .. } => "consumer_info_response",
            Self::ConsumerDelete { .. } => "consumer_delete_response",
            Self::ConsumerMsgNext { .. } => "consumer_getnext_response",
            Self::ConsumerPause { .. } => "consumer_pause_response",
            Self::ConsumerUnpin { .. } => "consumer_unpin_response",
            Self::ConsumerReset { .. } => "consumer_reset_response",
            Self::ConsumerLeaderStepdown { .. } => "consumer_leader_stepdown_response",
            Self::MetaLeaderStepdown => "meta_leader_stepdown_response",
            Self::ServerRemove => "meta_server_remove_response",
            Self::AccountPurge { .. } => "account_purge_response",
            Self::MetaRescue | Self::ServerEvacuate | Self::Unknown => "system_response",
        })
    }
}

fn is_token(text: &str) -> bool {
    !text.is_empty() && !text.contains('.')
}

fn two_tokens(text: &str) -> Option<(&str, &str)> {
    text.split_once('.').filter(|(first, second)| is_token(first) && is_token(second))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn route(rest: &str) -> String {
        let subject = format!("{PREFIX}{rest}");
        format!("{:?}", ApiRoute::parse(subject.as_bytes()).unwrap())
    }

    #[test]
    fn every_endpoint_is_found() {
        for (rest, want) in [
            ("INFO", "Info"),
            ("STREAM.CREATE.S", "StreamCreate { stream: \"S\" }"),
            ("STREAM.UPDATE.S", "StreamUpdate { stream: \"S\" }"),
            ("STREAM.NAMES", "StreamNames"),
            ("STREAM.LIST", "StreamList"),
            ("STREAM.INFO.S", "StreamInfo { stream: \"S\" }"),
            ("STREAM.DELETE.S", "StreamDelete { stream: \"S\" }"),
            ("STREAM.PURGE.S", "StreamPurge { stream: \"S\" }"),
            ("STREAM.MSG.GET.S", "StreamMsgGet { stream: \"S\" }"),
            ("STREAM.MSG.DELETE.S", "StreamMsgDelete { stream: \"S\" }"),
            ("STREAM.SNAPSHOT.S", "StreamSnapshot { stream: \"S\" }"),
            ("STREAM.RESTORE.S", "StreamRestore { stream: \"S\" }"),
            ("STREAM.LEADER.STEPDOWN.S", "StreamLeaderStepdown { stream: \"S\" }"),
            ("STREAM.PEER.REMOVE.S", "StreamPeerRemove { stream: \"S\" }"),
            ("STREAM.PEER.EVACUATE.S", "StreamPeerEvacuate { stream: \"S\" }"),
            ("STREAM.CANCEL_MOVE.S", "StreamCancelMove { stream: \"S\" }"),
            ("DIRECT.GET.S", "DirectGet { stream: \"S\", subject: None }"),
            ("DIRECT.GET.KV_b.$KV.b.k", "DirectGet { stream: \"KV_b\", subject: Some(\"$KV.b.k\") }"),
            ("CONSUMER.CREATE.S", "ConsumerCreate { stream: \"S\", consumer: None, filter: None }"),
            ("CONSUMER.CREATE.S.C", "ConsumerCreate { stream: \"S\", consumer: Some(\"C\"), filter: None }"),
            (
                "CONSUMER.CREATE.S.C.a.>",
                "ConsumerCreate { stream: \"S\", consumer: Some(\"C\"), filter: Some(\"a.>\") }",
            ),
            ("CONSUMER.DURABLE.CREATE.S.C", "ConsumerDurableCreate { stream: \"S\", consumer: \"C\" }"),
            ("CONSUMER.NAMES.S", "ConsumerNames { stream: \"S\" }"),
            ("CONSUMER.LIST.S", "ConsumerList { stream: \"S\" }"),
            ("CONSUMER.INFO.S.C", "ConsumerInfo { stream: \"S\", consumer: \"C\" }"),
            ("CONSUMER.DELETE.S.C", "ConsumerDelete { stream: \"S\", consumer: \"C\" }"),
            ("CONSUMER.MSG.NEXT.S.C", "ConsumerMsgNext { stream: \"S\", consumer: \"C\" }"),
            ("CONSUMER.PAUSE.S.C", "ConsumerPause { stream: \"S\", consumer: \"C\" }"),
            ("CONSUMER.UNPIN.S.C", "ConsumerUnpin { stream: \"S\", consumer: \"C\" }"),
            ("CONSUMER.RESET.S.C", "ConsumerReset { stream: \"S\", consumer: \"C\" }"),
            ("CONSUMER.LEADER.STEPDOWN.S.C", "ConsumerLeaderStepdown { stream: \"S\", consumer: \"C\" }"),
            ("META.LEADER.STEPDOWN", "MetaLeaderStepdown"),
            ("META.RESCUE", "MetaRescue"),
            ("SERVER.REMOVE", "ServerRemove"),
            ("SERVER.EVACUATE", "ServerEvacuate"),
            ("ACCOUNT.PURGE.A", "AccountPurge { account: \"A\" }"),
            ("ACCOUNT.STREAM.MOVE.A.S", "AccountStreamMove { account: \"A\", stream: \"S\" }"),
            ("ACCOUNT.STREAM.CANCEL_MOVE.A.S", "AccountStreamCancelMove { account: \"A\", stream: \"S\" }"),
        ] {
            assert_eq!(route(rest), want, "{rest}");
        }
        for rest in [
            "",
            "FOO",
            "STREAM",
            "STREAM.INFO",
            "STREAM.INFO.",
            "STREAM.CREATE.a.b",
            "STREAM.NAMES.x",
            "STREAM.FOO.x",
            "CONSUMER.INFO.a",
            "CONSUMER.INFO.a.b.c",
            "CONSUMER.CREATE.",
            "CONSUMER.CREATE.a.",
            "CONSUMER.LIST.a.b",
            "CONSUMER.MSG.NEXT.a",
            "CONSUMER.MSG.LAST.a.b",
            "DIRECT.GET.",
            "DIRECT.PUT.S",
            "ACCOUNT.PURGE.",
            "META.FOO",
        ] {
            assert_eq!(route(rest), "Unknown", "{rest}");
        }
        assert_eq!(ApiRoute::parse(b"$JS.ACK.x"), None);
    }

    proptest! {
        #[test]
        fn any_subject_is_answered(bytes in proptest::collection::vec(any::<u8>(), 0..40), words in "[A-Z.]{0,40}") {
            let _ = (ApiRoute::parse(&bytes), route(&words));
        }
    }
}
