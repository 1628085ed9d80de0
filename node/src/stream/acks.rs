//! Publish acks: who waits for which message, and how the answer gets there.
//!
//! Reply subjects stay at the node the publish came in on: they are never replicated. Acks of one release that go to
//! the same connection are written in one go; those of publishes that came from another node return as one batch.

use std::collections::HashMap;

use bytes::Bytes;

use super::forward::{AckBuilder, Fate};
use crate::broker::{Broker, ConnHandle, Inbound};
use crate::transport::{NodeId, Transport};

/// Frame kinds of forwarded publishes.
pub(crate) const PUBLISH_BATCH: u8 = 0x20;
pub(crate) const PUBLISH_ACKS: u8 = 0x21;

/// Where an ack goes.
#[derive(Clone)]
pub(crate) enum AckTo {
    /// To a reply subject, preferably straight into the connection that published.
    Reply { conn: Option<ConnHandle>, reply: Bytes },
    /// Back to the node that forwarded the publish.
    Peer { node: NodeId, batch: u64, message: u32 },
}

/// One publisher that waits, and what it will be told once the entry it waits for is as safe as promised.
pub(crate) struct PendingAck {
    pub(crate) to: AckTo,
    pub(crate) fate: Fate,
}

/// Writes acks for one stream.
#[derive(Clone)]
pub(crate) struct AckWriter {
    broker: Broker,
    transport: Transport,
    /// `{"stream":"NAME","seq":` — the same for every ack.
    prefix: Bytes,
    /// `,"stream":"NAME","seq":0}` — the end of a refusal.
    refusal_tail: Bytes,
}

impl AckWriter {
    pub(crate) fn new(broker: Broker, transport: Transport, stream: &str) -> Self {
        let name = serde_json::to_string(stream).expect("a string serializes");
        Self {
            broker,
            transport,
            prefix: Bytes::from(format!("{{\"stream\":{name},\"seq\":")),
            refusal_tail: Bytes::from(format!(",\"stream\":{name},\"seq\":0}}")),
        }
    }

    fn json(&self, fate: &Fate, out: &mut Vec<u8>) -> bool {
        out.clear();
        match fate {
            Fate::Stored { seq } | Fate::Duplicate { seq } => {
                out.extend_from_slice(&self.prefix);
                out.extend_from_slice(itoa::Buffer::new().format(*seq).as_bytes());
                out.extend_from_slice(if matches!(fate, Fate::Duplicate { .. }) {
                    b",\"duplicate\":true}"
                } else {
                    b"}"
                });
                true
            }
            Fate::Refused(error) => {
                out.extend_from_slice(b"{\"error\":");
                out.extend_from_slice(error);
                out.extend_from_slice(&self.refusal_tail);
                true
            }
            Fate::Unknown => false,
        }
    }

    fn reply(&self, conn: Option<&ConnHandle>, reply: &[u8], json: &[u8]) {
        if conn.is_some_and(|c| c.reply_direct(reply, &[], json)) {
            return;
        }
        // Somebody else listens on the reply subject; if nobody does any more, the ack has nowhere to go.
        self.broker.publish(&Inbound { subject: reply, reply: None, headers: &[], payload: json });
    }

    /// Answers one publisher at once: refusals and known duplicates.
    pub(crate) fn answer(&self, to: &AckTo, fate: &Fate) {
        match to {
            AckTo::Reply { conn, reply } => {
                let mut json = Vec::with_capacity(96);
                if self.json(fate, &mut json) {
                    self.reply(conn.as_ref(), reply, &json);
                }
            }
            AckTo::Peer { node, batch, message } => {
                let mut acks = AckBuilder::new(*batch);
                acks.push(*message, fate);
                self.send(*node, acks);
            }
        }
    }

    /// Answers everyone who waited for a frame that is now as safe as promised.
    pub(crate) fn release(&self, acks: impl IntoIterator<Item = PendingAck>) {
        let mut json = Vec::with_capacity(96);
        let mut batches: HashMap<(NodeId, u64), AckBuilder> = HashMap::new();
        for PendingAck { to, fate } in acks {
            match to {
                AckTo::Reply { conn, reply } => {
                    if self.json(&fate, &mut json) {
                        self.reply(conn.as_ref(), &reply, &json);
                    }
                }
                AckTo::Peer { node, batch, message } => {
                    batches.entry((node, batch)).or_insert_with(|| AckBuilder::new(batch)).push(message, &fate);
                }
            }
        }
        for ((node, _), acks) in batches {
            self.send(node, acks);
        }
    }

    /// Tells all of them the same: that nothing was stored, or (`Unknown`) nothing at all, so that publishers time out
    /// and retry while a forwarding node forgets them.
    pub(crate) fn release_as(&self, acks: impl IntoIterator<Item = PendingAck>, fate: &Fate) {
        self.release(acks.into_iter().map(|ack| PendingAck { to: ack.to, fate: fate.clone() }));
    }

    fn send(&self, node: NodeId, acks: AckBuilder) {
        // If the link is down the other node has given the batch up already.
        let _down = self.transport.send(node, PUBLISH_ACKS, &[acks.finish()]);
    }

    /// Writes a fate that came back from the leader's node.
    pub(crate) fn relay(&self, conn: Option<&ConnHandle>, reply: &[u8], fate: &Fate) {
        let mut json = Vec::with_capacity(96);
        if self.json(fate, &mut json) {
            self.reply(conn, reply, &json);
        }
    }
}
