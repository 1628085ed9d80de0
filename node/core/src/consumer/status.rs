//! Status messages that answer pull requests. Clients compare these texts, so they are exact.

use std::fmt::Write;

use headwater_protocol::duration;

use crate::ids::{ConsumerSeq, StreamSeq};

/// A status message: an empty body under this header block.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Status {
    /// `100 Idle Heartbeat`.
    IdleHeartbeat {
        /// The last delivery, by consumer.
        last_consumer: ConsumerSeq,
        /// The last delivery, by stream.
        last_stream: StreamSeq,
    },
    /// `400 Bad Request - …`.
    BadRequest(&'static str),
    /// `404 No Messages`.
    NoMessages,
    /// `408 Request Timeout`.
    RequestTimeout(Unserved),
    /// `408 Requests Pending`.
    RequestsPending,
    /// `409 Exceeded MaxWaiting`.
    ExceededMaxWaiting,
    /// `409 Exceeded MaxRequestBatch of N`.
    ExceededMaxBatch(u32),
    /// `409 Exceeded MaxRequestExpires of <Go duration>`; nanoseconds.
    ExceededMaxExpires(u64),
    /// `409 Exceeded MaxRequestMaxBytes of N`.
    ExceededMaxBytes(u64),
    /// `409 Message Size Exceeds MaxBytes`.
    MessageSizeExceedsMaxBytes(Unserved),
    /// `409 Batch Completed`: the messages are all there, bytes are left over.
    BatchCompleted(Unserved),
    /// `409 Consumer Deleted`.
    ConsumerDeleted,
    /// `409 Leadership Change`.
    LeadershipChange(Unserved),
    /// `409 Server Shutdown`.
    ServerShutdown(Unserved),
}

/// What a request asked for and did not get.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Unserved {
    /// Messages.
    pub messages: u32,
    /// Bytes; 0 also for a request without a byte limit.
    pub bytes: u64,
}

impl Status {
    /// The whole header block, `NATS/1.0 …` to the empty line.
    pub fn header_block(&self) -> String {
        let mut block = String::from("NATS/1.0 ");
        match self {
            Self::IdleHeartbeat { .. } => block.push_str("100 Idle Heartbeat"),
            Self::BadRequest(why) => {
                block.push_str("400 Bad Request - ");
                block.push_str(why);
            }
            Self::NoMessages => block.push_str("404 No Messages"),
            Self::RequestTimeout(_) => block.push_str("408 Request Timeout"),
            Self::RequestsPending => block.push_str("408 Requests Pending"),
            Self::ExceededMaxWaiting => block.push_str("409 Exceeded MaxWaiting"),
            Self::ExceededMaxBatch(most) => put(&mut block, "409 Exceeded MaxRequestBatch of ", most),
            Self::ExceededMaxExpires(most) => {
                let most = duration::format(i64::try_from(*most).unwrap_or(i64::MAX));
                put(&mut block, "409 Exceeded MaxRequestExpires of ", &most);
            }
            Self::ExceededMaxBytes(most) => put(&mut block, "409 Exceeded MaxRequestMaxBytes of ", most),
            Self::MessageSizeExceedsMaxBytes(_) => block.push_str("409 Message Size Exceeds MaxBytes"),
            Self::BatchCompleted(_) => block.push_str("409 Batch Completed"),
            Self::ConsumerDeleted => block.push_str("409 Consumer Deleted"),
            Self::LeadershipChange(_) => block.push_str("409 Leadership Change"),
            Self::ServerShutdown(_) => block.push_str("409 Server Shutdown"),
        }
        block.push_str("\r\n");
        match self {
            Self::IdleHeartbeat { last_consumer, last_stream } => {
                put(&mut block, "Nats-Last-Consumer: ", last_consumer);
                put(&mut block, "\r\nNats-Last-Stream: ", last_stream);
                block.push_str("\r\n");
            }
            Self::RequestTimeout(unserved)
            | Self::MessageSizeExceedsMaxBytes(unserved)
            | Self::BatchCompleted(unserved)
            | Self::LeadershipChange(unserved)
            | Self::ServerShutdown(unserved) => {
                put(&mut block, "Nats-Pending-Messages: ", &unserved.messages);
                put(&mut block, "\r\nNats-Pending-Bytes: ", &unserved.bytes);
                block.push_str("\r\n");
            }
            _ => {}
        }
        block.push_str("\r\n");
        block
    }
}

fn put(block: &mut String, text: &str, value: &impl std::fmt::Display) {
    block.push_str(text);
    // Writing to a String cannot fail.
    let _ = write!(block, "{value}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_those_that_clients_compare() {
        let left = Unserved { messages: 3, bytes: 70 };
        let table = [
            (
                Status::IdleHeartbeat { last_consumer: ConsumerSeq::new(4), last_stream: StreamSeq::new(9) },
                "100 Idle Heartbeat\r\nNats-Last-Consumer: 4\r\nNats-Last-Stream: 9",
            ),
            (Status::BadRequest("x"), "400 Bad Request - x"),
            (Status::NoMessages, "404 No Messages"),
            (Status::RequestTimeout(left), "408 Request Timeout\r\nNats-Pending-Messages: 3\r\nNats-Pending-Bytes: 70"),
            (Status::RequestsPending, "408 Requests Pending"),
            (Status::ExceededMaxWaiting, "409 Exceeded MaxWaiting"),
            (Status::ExceededMaxBatch(10), "409 Exceeded MaxRequestBatch of 10"),
            (Status::ExceededMaxExpires(90_500_000_000), "409 Exceeded MaxRequestExpires of 1m30.5s"),
            (Status::ExceededMaxBytes(100_000), "409 Exceeded MaxRequestMaxBytes of 100000"),
            (
                Status::MessageSizeExceedsMaxBytes(left),
                "409 Message Size Exceeds MaxBytes\r\nNats-Pending-Messages: 3\r\nNats-Pending-Bytes: 70",
            ),
            (Status::BatchCompleted(left), "409 Batch Completed\r\nNats-Pending-Messages: 3\r\nNats-Pending-Bytes: 70"),
            (Status::ConsumerDeleted, "409 Consumer Deleted"),
            (
                Status::LeadershipChange(left),
                "409 Leadership Change\r\nNats-Pending-Messages: 3\r\nNats-Pending-Bytes: 70",
            ),
            (Status::ServerShutdown(left), "409 Server Shutdown\r\nNats-Pending-Messages: 3\r\nNats-Pending-Bytes: 70"),
        ];
        for (status, expected) in table {
            assert_eq!(status.header_block(), format!("NATS/1.0 {expected}\r\n\r\n"));
        }
    }
}
