//! The handshake in front of every node-to-node connection.
//!
//! ```text
//!  dialer → acceptor   "HWP1" | purpose u8 | 0 0 0 | len u32 | hello JSON
//!  acceptor → dialer   "HWP1" | status u8  | 0 0 0 | len u32 | hello JSON, or why not
//!  dialer → acceptor   "HWP1" | status u8  | 0 0 0 | len u32 | nothing, or why not
//! ```
//!
//! Either side can refuse the other; the reason is text for the log of both.

use std::io;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::NodeId;

const MAGIC: [u8; 4] = *b"HWP2";
const PREAMBLE_BYTES: usize = 12;
/// Longest hello or refusal a peer may send.
const HELLO_BYTES_MAX: usize = 64 << 10;

/// What a node says about itself at a handshake.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// `None` until the node has founded or joined a cluster.
    #[serde(default)]
    pub(crate) cluster_id: Option<String>,
    pub(crate) node_name: String,
    /// Unique for one life of a node's data.
    pub(crate) node_id: NodeId,
    #[serde(default)]
    pub(crate) boot_epoch: u64,
    /// The boot before this one, as the node's disk remembers it.
    #[serde(default)]
    pub(crate) last_boot_epoch: Option<u64>,
    /// Where the node's log ended when this boot opened it: segment, and bytes of it.
    #[serde(default)]
    pub(crate) log_end: Option<(u64, u64)>,
    /// `host:port` where clients reach this node.
    #[serde(default)]
    pub(crate) client_addr: String,
    /// `host:port` where nodes reach this node.
    #[serde(default)]
    pub(crate) cluster_addr: String,
    /// `host:port` of the admin and monitoring listener.
    #[serde(default)]
    pub(crate) http_addr: String,
    /// The node holds no data and belongs to no cluster.
    #[serde(default)]
    pub(crate) empty: bool,
    #[serde(default)]
    pub(crate) version: String,
}

/// What this node says.
pub(crate) type LocalHello = Hello;
/// What a peer said.
pub(crate) type PeerHello = Hello;

/// Why a node does not want another as its peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) why: String,
    /// The refused node's disk must never take part again; without it, dialing again may help.
    pub(crate) for_good: bool,
}

impl From<String> for Refusal {
    fn from(why: String) -> Refusal {
        Refusal { why, for_good: false }
    }
}

/// What a connection is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Frames, until one side closes.
    Link,
    /// One header, then raw bytes.
    Bulk,
}

const PURPOSE_LINK: u8 = 0;
const PURPOSE_BULK: u8 = 1;
const STATUS_OK: u8 = 0;
const STATUS_REFUSED: u8 = 1;
/// The dialer has another link to the same node, or reached itself: nothing worth a log line.
const STATUS_NOT_NEEDED: u8 = 2;
/// Refused, and for good.
const STATUS_BANNED: u8 = 3;

/// Why a handshake did not end in a connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("handshake failed")]
    Io(#[from] io::Error),
    #[error("the other side does not speak this protocol")]
    NotAPeer,
    #[error("hello of {0} bytes is above the limit")]
    TooLong(usize),
    #[error("hello cannot be read")]
    Unreadable(#[from] serde_json::Error),
    #[error("refused by the peer: {}", .0.why)]
    RefusedByPeer(Refusal),
    #[error("refused by this node: {}", .0.why)]
    RefusedHere(Refusal),
    #[error("not needed by the dialer")]
    NotNeeded,
    #[error("handshake took too long")]
    TooSlow,
}

async fn write_part(to: &mut (impl AsyncWrite + Unpin), code: u8, body: &[u8]) -> io::Result<()> {
    let body = &body[..body.len().min(HELLO_BYTES_MAX)];
    let mut bytes = Vec::with_capacity(PREAMBLE_BYTES + body.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&[code, 0, 0, 0]);
    bytes.extend_from_slice(&u32::try_from(body.len()).unwrap_or(0).to_le_bytes());
    bytes.extend_from_slice(body);
    to.write_all(&bytes).await
}

async fn read_part(from: &mut (impl AsyncRead + Unpin)) -> Result<(u8, Vec<u8>), HandshakeError> {
    let mut preamble = [0; PREAMBLE_BYTES];
    from.read_exact(&mut preamble).await?;
    let [m0, m1, m2, m3, code, _, _, _, len @ ..] = preamble;
    if [m0, m1, m2, m3] != MAGIC {
        return Err(HandshakeError::NotAPeer);
    }
    let len = u32::from_le_bytes(len) as usize;
    if len > HELLO_BYTES_MAX {
        return Err(HandshakeError::TooLong(len));
    }
    let mut body = vec![0; len];
    from.read_exact(&mut body).await?;
    Ok((code, body))
}

fn refusal(code: u8, body: &[u8]) -> HandshakeError {
    match code {
        STATUS_NOT_NEEDED => HandshakeError::NotNeeded,
        _ => HandshakeError::RefusedByPeer(Refusal {
            why: String::from_utf8_lossy(body).into_owned(),
            for_good: code == STATUS_BANNED,
        }),
    }
}

/// Dialer, steps 1 and 2: introduces this node and returns what the acceptor said of itself.
pub(super) async fn introduce(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    purpose: Purpose,
    local: &LocalHello,
) -> Result<PeerHello, HandshakeError> {
    let code = match purpose {
        Purpose::Link => PURPOSE_LINK,
        Purpose::Bulk => PURPOSE_BULK,
    };
    write_part(stream, code, &serde_json::to_vec(local)?).await?;
    match read_part(stream).await? {
        (STATUS_OK, body) => Ok(serde_json::from_slice(&body)?),
        (code, body) => Err(refusal(code, &body)),
    }
}

/// Dialer, step 3: the connection stands.
pub(super) async fn confirm(stream: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    write_part(stream, STATUS_OK, b"").await
}

/// Dialer, step 3, or acceptor, step 2: the connection is refused.
pub(super) async fn refuse(stream: &mut (impl AsyncWrite + Unpin), refusal: &Refusal) -> io::Result<()> {
    let status = if refusal.for_good { STATUS_BANNED } else { STATUS_REFUSED };
    write_part(stream, status, refusal.why.as_bytes()).await
}

/// Dialer, step 3: the connection is not needed.
pub(super) async fn decline(stream: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    write_part(stream, STATUS_NOT_NEEDED, b"").await
}

/// Acceptor, step 1: who is there, and what for.
pub(super) async fn hear(stream: &mut (impl AsyncRead + Unpin)) -> Result<(Purpose, PeerHello), HandshakeError> {
    let (code, body) = read_part(stream).await?;
    let purpose = match code {
        PURPOSE_LINK => Purpose::Link,
        PURPOSE_BULK => Purpose::Bulk,
        _ => return Err(HandshakeError::NotAPeer),
    };
    Ok((purpose, serde_json::from_slice(&body)?))
}

/// Any bytes as a handshake, from either side: see [`crate::decoders`].
///
/// # Panics
/// If the decoder contradicts itself.
pub(super) fn decode_any(bytes: &[u8]) {
    use futures::FutureExt as _;
    // All bytes are there, so nothing waits.
    let heard = hear(&mut &bytes[..]).now_or_never().expect("reading from memory does not wait");
    if let Ok((purpose, hello)) = heard {
        let mut wire = Vec::new();
        let code = if purpose == Purpose::Link { PURPOSE_LINK } else { PURPOSE_BULK };
        let body = serde_json::to_vec(&hello).expect("a hello is plain data");
        write_part(&mut wire, code, &body).now_or_never().expect("writing to memory does not wait").expect("memory");
        let again = hear(&mut &wire[..]).now_or_never().expect("reading from memory does not wait");
        // What was escaped before may be longer now, and too long.
        assert!(body.len() > HELLO_BYTES_MAX || again.is_ok_and(|again| again == (purpose, hello)));
    }
    if let Some(Ok((code, body))) = read_part(&mut &bytes[..]).now_or_never() {
        let _ = refusal(code, &body).to_string();
    }
}

/// Acceptor, steps 2 and 3: answers and waits for the dialer's confirmation.
pub(super) async fn answer(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    local: &LocalHello,
) -> Result<(), HandshakeError> {
    write_part(stream, STATUS_OK, &serde_json::to_vec(local)?).await?;
    match read_part(stream).await? {
        (STATUS_OK, _) => Ok(()),
        (code, body) => Err(refusal(code, &body)),
    }
}
