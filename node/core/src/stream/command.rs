//! Commands other than messages, and their bodies in frames.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::limits::Settings;
use crate::codec::{DecodeError, Reader, Writer};
use crate::durability::DurabilityCommand;
use crate::frame::FrameKind;
use crate::ids::{Generation, Ordinal, StreamSeq, Term, Timestamp};

/// What a sequencer built upon: `apply` accepts its `Begin` only if the state is still there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BeginBody {
    /// Term of the last effective entry.
    pub after_term: Term,
    /// Ordinal of the last effective entry.
    pub after_ordinal: Ordinal,
}

/// Time has passed, says the leader: removes messages past the age limit or their own TTL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expire {
    /// The leader's time.
    pub now: Timestamp,
    /// At most this many messages go with one entry.
    pub max_count: u32,
}

/// Removes many messages, none newer than `up_to_last`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Purge {
    /// Subject filter; `None` covers all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// Exclusive upper bound: only messages below it go. `None` is no bound, `1` is nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<StreamSeq>,
    /// This many of the newest covered messages stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<u64>,
    /// Last sequence when the leader accepted the purge; stamped by admission.
    pub up_to_last: StreamSeq,
}

/// Removes one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeleteMessage {
    /// Its sequence.
    pub seq: StreamSeq,
    /// Whether its bytes must be overwritten, too.
    pub erase: bool,
}

/// A new configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigChange {
    /// The part that decides about messages.
    pub settings: Settings,
    /// The whole configuration as the API shows it; opaque here.
    pub config_json: String,
    /// Its generation in the catalogue; an older one is refused.
    pub generation: Generation,
}

/// The stream is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remove {
    /// Generation of the catalogue's decision.
    pub generation: Generation,
}

/// A command to propose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// See [`Expire`].
    Expire(Expire),
    /// See [`Purge`].
    Purge(Purge),
    /// See [`DeleteMessage`].
    DeleteMessage(DeleteMessage),
    /// See [`ConfigChange`].
    Config(Box<ConfigChange>),
    /// Encoded consumer operations.
    Consumers(Bytes),
    /// See [`DurabilityCommand`].
    Durability(DurabilityCommand),
    /// See [`Remove`].
    Remove(Remove),
}

impl BeginBody {
    pub(super) fn encode(self) -> Vec<u8> {
        let mut out = Writer::new();
        out.u64(self.after_term.get());
        out.u64(self.after_ordinal.get());
        out.finish()
    }

    pub(super) fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut read = Reader::new(body);
        let after_term = Term::new(read.u64()?);
        let after_ordinal = Ordinal::new(read.u64()?);
        read.end()?;
        Ok(Self { after_term, after_ordinal })
    }
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("strings, numbers and lists always serialize")
}

fn from_json<T: for<'de> Deserialize<'de>>(body: &[u8], what: &'static str) -> Result<T, DecodeError> {
    serde_json::from_slice(body).map_err(|_| DecodeError::Unknown(what))
}

impl Command {
    /// Kind of the frame that carries it.
    pub fn kind(&self) -> FrameKind {
        match self {
            Self::Expire(_) => FrameKind::Expire,
            Self::Purge(_) => FrameKind::Purge,
            Self::DeleteMessage(_) => FrameKind::DeleteMessage,
            Self::Config(_) => FrameKind::Config,
            Self::Consumers(_) => FrameKind::Consumers,
            Self::Durability(_) => FrameKind::Durability,
            Self::Remove(_) => FrameKind::Remove,
        }
    }

    /// Body of the frame that carries it.
    pub fn encode(&self) -> Bytes {
        match self {
            Self::Expire(expire) => {
                let mut out = Writer::new();
                out.u64(expire.now.get());
                out.varint(u64::from(expire.max_count));
                out.finish().into()
            }
            Self::Purge(purge) => json(purge).into(),
            Self::DeleteMessage(delete) => json(delete).into(),
            Self::Config(config) => json(config).into(),
            Self::Consumers(ops) => ops.clone(),
            Self::Durability(command) => json(command).into(),
            Self::Remove(remove) => json(remove).into(),
        }
    }
}

/// Reads the body of a frame of this kind; `Messages` and `Begin` have none of these.
pub fn decode_command(kind: FrameKind, body: &[u8]) -> Result<Command, DecodeError> {
    Ok(match kind {
        FrameKind::Messages | FrameKind::Begin => return Err(DecodeError::Unknown("command")),
        FrameKind::Expire => {
            let mut read = Reader::new(body);
            let now = Timestamp::new(read.u64()?);
            let max_count = u32::try_from(read.varint()?).unwrap_or(u32::MAX);
            read.end()?;
            Command::Expire(Expire { now, max_count })
        }
        FrameKind::Purge => Command::Purge(from_json(body, "purge")?),
        FrameKind::DeleteMessage => Command::DeleteMessage(from_json(body, "delete")?),
        FrameKind::Config => Command::Config(from_json(body, "config")?),
        FrameKind::Consumers => Command::Consumers(Bytes::copy_from_slice(body)),
        FrameKind::Durability => Command::Durability(from_json(body, "durability")?),
        FrameKind::Remove => Command::Remove(from_json(body, "removal")?),
    })
}

#[cfg(test)]
mod tests {
    use super::super::image::tests::example;
    use super::*;
    use crate::durability::{Durability, FlushMode, SyncMode};
    use crate::frame::FrameBuilder;
    use crate::ids::{RaftNodeId, StreamId};

    #[test]
    fn bodies_come_back() {
        let commands = [
            Command::Expire(Expire { now: Timestamp::new(5), max_count: 1_000 }),
            Command::Purge(Purge { filter: Some("a.>".into()), keep: Some(2), ..Purge::default() }),
            Command::DeleteMessage(DeleteMessage { seq: StreamSeq::new(4), erase: true }),
            Command::Config(Box::new(ConfigChange {
                settings: Settings::default(),
                config_json: "{\"name\":\"S\"}".into(),
                generation: Generation::new(3),
            })),
            Command::Consumers(Bytes::from_static(b"ops")),
            Command::Remove(Remove { generation: Generation::new(9) }),
        ];
        for command in commands {
            assert_eq!(decode_command(command.kind(), &command.encode()), Ok(command));
        }
        assert!(decode_command(FrameKind::Purge, b"{").is_err());
        assert!(decode_command(FrameKind::Expire, b"123").is_err());
        let begin = BeginBody { after_term: Term::new(3), after_ordinal: Ordinal::new(8) };
        assert_eq!(BeginBody::decode(&begin.encode()), Ok(begin));
    }

    #[test]
    fn bodies_are_as_documented() {
        let page = include_str!("../../../../docs/formats/commands.md");
        let shown = |kind: FrameKind, body: &[u8]| {
            let text = match body.first() {
                Some(b'{') => String::from_utf8_lossy(body).into_owned(),
                _ => body.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" "),
            };
            let line = format!("\n{} {kind:?}: `{text}`\n", kind as u8);
            assert!(page.contains(&line), "{line}");
        };
        let begin = BeginBody { after_term: Term::new(3), after_ordinal: Ordinal::new(12) };
        shown(FrameKind::Begin, &begin.encode());
        let (generation, replica) = (Generation::new(3), RaftNodeId::new(77));
        let interval = Durability { sync: SyncMode::Interval, interval_ms: 2_000, flush: FlushMode::Async };
        let commands = [
            Command::Expire(Expire { now: Timestamp::new(1_000), max_count: 1_000 }),
            Command::Purge(Purge {
                filter: Some("orders.>".into()),
                seq: Some(StreamSeq::new(8)),
                keep: None,
                up_to_last: StreamSeq::new(9),
            }),
            Command::Purge(Purge { keep: Some(2), up_to_last: StreamSeq::new(9), ..Purge::default() }),
            Command::DeleteMessage(DeleteMessage { seq: StreamSeq::new(4), erase: true }),
            Command::Config(Box::new(ConfigChange {
                settings: Settings { name: "S".into(), subjects: vec!["s".into()], ..Settings::default() },
                config_json: "{}".into(),
                generation,
            })),
            Command::Durability(DurabilityCommand::Change { desired: interval, generation, voters: vec![replica] }),
            Command::Durability(DurabilityCommand::Grant { generation, replica }),
            Command::Durability(DurabilityCommand::Complete { generation, replica }),
            Command::Durability(DurabilityCommand::Forget { replica }),
            Command::Remove(Remove { generation }),
        ];
        for command in commands {
            shown(command.kind(), &command.encode());
        }
    }

    #[test]
    fn a_command_s_frame_is_these_bytes() {
        let page = include_str!("../../../../docs/formats/commands.md");
        let body = Command::Remove(Remove { generation: Generation::new(3) }).encode();
        let (stream, term, ordinal) = (StreamId::new(7), Term::new(3), Ordinal::new(13));
        let (seq, ts) = (StreamSeq::new(10), Timestamp::new(9_000));
        let mut frame = FrameBuilder::new(FrameKind::Remove, stream, term, ordinal, seq, ts);
        frame.push_body(&body).unwrap();
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hex(&frame.finish()), hex(&example(page, "Example")));
    }
}
