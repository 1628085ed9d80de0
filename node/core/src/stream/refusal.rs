//! Why a publish is refused, with JetStream's codes and texts.

use crate::ids::StreamSeq;

/// A refusal. None of them takes a sequence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PubRefusal {
    /// The sequencer waits for the state to catch up with the log.
    #[error("JetStream system temporarily unavailable")]
    NotReady,
    /// The disks have too little room.
    #[error("insufficient resources")]
    NoRoom,
    /// The stream is removed or about to be.
    #[error("stream not found")]
    StreamNotFound,
    /// The stream is sealed.
    #[error("invalid operation on sealed stream")]
    Sealed,
    /// Over `max_msg_size`, or more than a frame holds.
    #[error("message size exceeds maximum allowed")]
    MessageTooLarge,
    /// The header block is over 64 KiB.
    #[error("header size exceeds maximum allowed of 64k")]
    HeadersTooLarge,
    /// `Nats-Expected-Stream` names another stream.
    #[error("expected stream does not match")]
    WrongStream,
    /// An expected sequence differs.
    #[error("wrong last sequence: {0}")]
    WrongLastSequence(StreamSeq),
    /// An expected sequence cannot be decided before what is in flight is applied.
    #[error("wrong last sequence")]
    WrongLastSequenceInFlight,
    /// `Nats-Expected-Last-Subject-Sequence-Subject` without a sequence.
    #[error("missing sequence for expected last sequence per subject")]
    LastSubjectWithoutSequence,
    /// `Nats-Expected-Last-Msg-Id` differs.
    #[error("wrong last msg ID: {0}")]
    WrongLastMsgId(String),
    /// A rollup that is not allowed or not known.
    #[error("{0}")]
    Rollup(String),
    /// `Nats-TTL` with a value that is none.
    #[error("invalid per-message TTL")]
    TtlInvalid,
    /// `Nats-TTL` on a stream that does not allow it.
    #[error("per-message TTL is disabled")]
    TtlDisabled,
    /// Part of an atomic batch, which a plain publish cannot carry.
    #[error("atomic publish is disabled")]
    AtomicDisabled,
    /// `Nats-Stream-Source`, which is the server's to write: readers take it for where a message came from.
    #[error("message stream source header is not allowed")]
    SourceHeader,
    /// Discard new: `max_msgs`.
    #[error("maximum messages exceeded")]
    MaxMessages,
    /// Discard new: `max_bytes`; or one message alone exceeds it.
    #[error("maximum bytes exceeded")]
    MaxBytes,
    /// Discard new per subject: `max_msgs_per_subject`.
    #[error("maximum messages per subject exceeded")]
    MaxMessagesPerSubject,
}

impl PubRefusal {
    /// HTTP-like status.
    pub const fn code(&self) -> u16 {
        match self {
            Self::NotReady | Self::NoRoom | Self::MaxMessages | Self::MaxBytes | Self::MaxMessagesPerSubject => 503,
            Self::StreamNotFound => 404,
            Self::Rollup(_) => 500,
            _ => 400,
        }
    }

    /// JetStream's error number.
    pub const fn err_code(&self) -> u16 {
        match self {
            Self::NotReady => 10_008,
            Self::NoRoom => 10_023,
            Self::StreamNotFound => 10_059,
            Self::Sealed => 10_109,
            Self::MessageTooLarge => 10_054,
            Self::HeadersTooLarge => 10_097,
            Self::WrongStream => 10_060,
            Self::WrongLastSequence(_) => 10_071,
            Self::WrongLastSequenceInFlight => 10_164,
            Self::LastSubjectWithoutSequence => 10_193,
            Self::WrongLastMsgId(_) => 10_070,
            Self::Rollup(_) => 10_111,
            Self::TtlInvalid => 10_165,
            Self::TtlDisabled => 10_166,
            Self::AtomicDisabled => 10_174,
            Self::SourceHeader => 10_227,
            Self::MaxMessages | Self::MaxBytes | Self::MaxMessagesPerSubject => 10_077,
        }
    }

    /// Description as JetStream words it.
    pub fn description(&self) -> String {
        self.to_string()
    }
}
