//! One client connection, from INFO to the last byte.

use std::ops::ControlFlow;
use std::time::Duration;

use headwater_protocol::connect::ConnectOptions;
use headwater_protocol::decode::{self, ClientOp, Limits, Step};
use headwater_protocol::wire_error::WireError;
use headwater_protocol::{encode, subject};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};
use tokio_util::sync::CancellationToken;

use super::buffer::{BufferPool, ReadBuffer};
use super::writer;
use crate::broker::{Broker, ConnHandle, Inbound, RouteCache};

/// A publisher pauses at most this long per read for a subscriber that lags.
const CROWD_PAUSE_MAX: Duration = Duration::from_millis(10);
/// What a refused client still sends is read and dropped for this long.
const LINGER: Duration = Duration::from_millis(500);

struct Session {
    conn: ConnHandle,
    broker: Broker,
    wire: Limits,
    verbose: bool,
    pedantic: bool,
    /// The client said that it knows headers.
    headers: bool,
    routes: RouteCache,
    pings_unanswered: u32,
    crowded: Option<ConnHandle>,
    in_messages: u64,
    in_bytes: u64,
    /// The client was told of an error that ends the connection.
    refused: bool,
}

async fn drain(from: &mut OwnedReadHalf, pool: &BufferPool) {
    let mut buffer = ReadBuffer::new(pool.clone());
    while let Ok(1..) = buffer.fill(from).await {
        buffer.consume(buffer.unparsed().len());
    }
}

/// Serves one client.
pub(super) async fn run(
    stream: TcpStream,
    conn: ConnHandle,
    broker: Broker,
    pool: BufferPool,
    shutdown: CancellationToken,
) {
    let (mut read, write) = stream.into_split();
    let limits = *broker.limits();
    let writer = tokio::spawn(writer::run(conn.clone(), write, limits));
    let info = broker.info(&conn, false);
    conn.send_control(|bytes| encode::info(bytes, &info));
    let defaults = ConnectOptions::default();
    let mut session = Session {
        wire: Limits {
            control_line_bytes_max: limits.control_line_bytes_max,
            payload_bytes_max: limits.payload_bytes_max,
        },
        verbose: defaults.verbose,
        pedantic: defaults.pedantic,
        headers: defaults.headers,
        routes: RouteCache::default(),
        pings_unanswered: 0,
        crowded: None,
        in_messages: 0,
        in_bytes: 0,
        refused: false,
        conn: conn.clone(),
        broker: broker.clone(),
    };
    let stopped = conn.stopped().clone();
    tokio::select! {
        () = session.serve(&mut read, &pool) => {}
        () = stopped.cancelled() => {}
        () = shutdown.cancelled() => {}
    }
    // What was queued for the client still leaves, as long as it takes it.
    conn.finish();
    // The writer only fails by a panic, which the runtime has reported.
    let _ = writer.await;
    if session.refused {
        // A socket closed over unread bytes resets the connection, and the client may never see why.
        let _ = timeout(LINGER, drain(&mut read, &pool)).await;
    }
    broker.disconnect(&conn);
}

impl Session {
    async fn serve(&mut self, from: &mut OwnedReadHalf, pool: &BufferPool) {
        let limits = *self.broker.limits();
        let mut buffer = ReadBuffer::new(pool.clone());
        let mut pings = interval_at(Instant::now() + limits.ping_interval, limits.ping_interval);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut heard = true;
        loop {
            self.between_turns(&buffer).await;
            let read = tokio::select! {
                biased;
                read = buffer.fill(from) => read,
                _ = pings.tick() => {
                    if self.ping(&mut heard).is_break() {
                        return;
                    }
                    continue;
                }
            };
            match read {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(client = self.conn.id(), %error, "client not read from");
                    return;
                }
            }
            heard = true;
            if self.turn(&mut buffer).is_break() {
                return;
            }
        }
    }

    /// Waits where the node needs time before it reads on, and lets others have their turn.
    async fn between_turns(&mut self, buffer: &ReadBuffer) {
        if let Some(room) = self.broker.jetstream().and_then(|js| js.room()) {
            room.await;
        }
        if let Some(crowded) = self.crowded.take() {
            // After that the publisher goes on, and the subscriber is closed if it never catches up.
            let _ = timeout(CROWD_PAUSE_MAX, crowded.until_drained()).await;
        } else if buffer.is_filled() {
            tokio::task::yield_now().await;
        }
    }

    fn ping(&mut self, heard: &mut bool) -> ControlFlow<()> {
        if std::mem::take(heard) {
            self.pings_unanswered = 0;
            return ControlFlow::Continue(());
        }
        if self.pings_unanswered >= self.broker.limits().pings_unanswered_max {
            self.conn.send_error(&WireError::StaleConnection);
            return ControlFlow::Break(());
        }
        self.pings_unanswered += 1;
        self.conn.send_control(encode::ping);
        ControlFlow::Continue(())
    }

    /// Handles every whole operation that was received.
    fn turn(&mut self, buffer: &mut ReadBuffer) -> ControlFlow<()> {
        let flow = self.parse(buffer);
        self.conn.count_in(std::mem::take(&mut self.in_messages), std::mem::take(&mut self.in_bytes));
        if let Some(js) = self.broker.jetstream() {
            js.turn_end();
        }
        flow
    }

    fn parse(&mut self, buffer: &mut ReadBuffer) -> ControlFlow<()> {
        while buffer.is_worth_parsing() {
            let step = match decode::next(buffer.unparsed(), &self.wire) {
                Ok(Step::Op { op, consumed }) => self.handle(op).map(|()| consumed),
                Ok(Step::Need { total }) => {
                    buffer.want(total);
                    return ControlFlow::Continue(());
                }
                Err(error) => Err(error),
            };
            match step {
                Ok(consumed) => {
                    buffer.consume(consumed);
                    buffer.want(0);
                }
                Err(error) => {
                    tracing::debug!(client = self.conn.id(), %error, "client closed");
                    self.conn.send_error(&error);
                    self.refused = true;
                    return ControlFlow::Break(());
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Handles one operation; an error ends the connection.
    fn handle(&mut self, op: ClientOp<'_>) -> Result<(), WireError> {
        match op {
            ClientOp::Pub(publish) if !publish.headers.is_empty() && !self.headers => {
                return Err(WireError::HeadersNotSupported);
            }
            ClientOp::Pub(publish) => {
                let msg = Inbound {
                    subject: publish.subject,
                    reply: publish.reply,
                    headers: publish.headers,
                    payload: publish.payload,
                };
                self.publish(&msg);
                return Ok(());
            }
            ClientOp::Sub { subject, queue, sid } => {
                if let Err(error) = self.broker.subscribe(&self.conn, subject, queue, sid) {
                    return self.tell(error);
                }
            }
            ClientOp::Unsub { sid, max } => self.broker.unsubscribe(&self.conn, sid, max),
            ClientOp::Ping => {
                self.conn.send_control(encode::pong);
                if self.conn.greet() {
                    let info = self.broker.info(&self.conn, true);
                    self.conn.send_control(|bytes| encode::info(bytes, &info));
                }
                return Ok(());
            }
            ClientOp::Pong => {
                self.pings_unanswered = 0;
                return Ok(());
            }
            ClientOp::Connect(json) => {
                let options = ConnectOptions::parse(json)?;
                self.verbose = options.verbose;
                self.pedantic = options.pedantic;
                self.headers = options.headers;
                self.conn.set_options(&options);
            }
            ClientOp::Ignored => return Ok(()),
        }
        self.confirm();
        Ok(())
    }

    fn publish(&mut self, msg: &Inbound<'_>) {
        self.in_messages += 1;
        self.in_bytes += (msg.headers.len() + msg.payload.len()) as u64;
        if self.pedantic && !subject::is_valid_literal(msg.subject) {
            self.conn.send_error(&WireError::InvalidPublishSubject);
            return;
        }
        self.confirm();
        if let Some(crowded) = self.broker.publish_from(&self.conn, &mut self.routes, msg) {
            self.crowded = Some(crowded);
        }
    }

    fn confirm(&self) {
        if self.verbose {
            self.conn.send_control(encode::ok);
        }
    }

    fn tell(&self, error: WireError) -> Result<(), WireError> {
        if error.closes() {
            return Err(error);
        }
        self.conn.send_error(&error);
        Ok(())
    }
}
