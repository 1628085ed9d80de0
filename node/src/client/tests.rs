//! A real TCP client, byte by byte, against the client listener.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::listener;
use crate::broker::{Broker, ClientLimits, ConnHandle, Inbound, JetStream, ServerInfo};
use crate::transport::tests::{listener as bind, until};

const PATIENCE: Duration = Duration::from_secs(10);
const QUIET: &str = r#"CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true,"protocol":1}"#;

/// A broker with its client listener.
pub(crate) struct Server {
    pub(crate) broker: Broker,
    pub(crate) addr: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

pub(crate) fn server_with(limits: ClientLimits) -> Server {
    let (listener, addr) = bind();
    let broker = Broker::new(ServerInfo { port: addr.port(), limits, ..ServerInfo::new("SID", "one") });
    let stop = CancellationToken::new();
    let task = tokio::spawn(listener::run(listener, broker.clone(), stop.clone()));
    Server { broker, addr, stop, task }
}

pub(crate) fn server() -> Server {
    server_with(ClientLimits::default())
}

/// A client that sees every byte.
pub(crate) struct Client {
    stream: TcpStream,
    seen: Vec<u8>,
}

impl Client {
    /// Connects and reads INFO.
    pub(crate) async fn raw(server: &Server) -> (Client, String) {
        let stream = TcpStream::connect(server.addr).await.unwrap();
        let mut client = Client { stream, seen: Vec::new() };
        let info = client.line().await;
        (client, info)
    }

    pub(crate) async fn with(server: &Server, connect: &str) -> Client {
        let (mut client, _) = Client::raw(server).await;
        client.send(&format!("{connect}\r\n")).await;
        client
    }

    /// A usual client: quiet, with headers and no-responders, past its first PING.
    pub(crate) async fn new(server: &Server) -> Client {
        let mut client = Client::with(server, QUIET).await;
        client.send("PING\r\n").await;
        client.expect("PONG\r\n").await;
        assert!(client.line().await.starts_with("INFO "));
        client
    }

    pub(crate) async fn send(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.unwrap();
    }

    async fn more(&mut self) -> bool {
        let read = timeout(PATIENCE, self.stream.read_buf(&mut self.seen)).await;
        let read = read.unwrap_or_else(|_| panic!("nothing more after {:?}", String::from_utf8_lossy(&self.seen)));
        read.unwrap_or(0) > 0
    }

    pub(crate) async fn line(&mut self) -> String {
        loop {
            if let Some(end) = self.seen.windows(2).position(|pair| pair == b"\r\n") {
                let line: Vec<u8> = self.seen.drain(..end + 2).collect();
                return String::from_utf8(line).unwrap();
            }
            assert!(self.more().await, "closed after {:?}", String::from_utf8_lossy(&self.seen));
        }
    }

    /// The next bytes must be these.
    pub(crate) async fn expect(&mut self, text: &str) {
        while self.seen.len() < text.len() {
            assert!(self.more().await, "closed after {:?}, wanted {text:?}", String::from_utf8_lossy(&self.seen));
        }
        let got: Vec<u8> = self.seen.drain(..text.len()).collect();
        assert_eq!(String::from_utf8_lossy(&got), text);
    }

    /// Nothing but the answer to a PING is there: everything else was received before.
    pub(crate) async fn expect_nothing(&mut self) {
        self.send("PING\r\n").await;
        self.expect("PONG\r\n").await;
    }

    /// What comes until the server closes must be exactly this.
    pub(crate) async fn expect_end(&mut self, text: &str) {
        while self.more().await {}
        assert_eq!(String::from_utf8_lossy(&self.seen), text);
    }
}

#[tokio::test]
async fn info_comes_first_and_again_after_the_first_ping() {
    let server = server();
    server.broker.set_connect_urls(vec!["10.0.0.2:4222".to_owned()]);
    let (mut client, info) = Client::raw(&server).await;
    let json: serde_json::Value = serde_json::from_str(info.strip_prefix("INFO ").unwrap()).unwrap();
    assert_eq!(json["server_id"], "SID");
    assert_eq!(json["headers"], true);
    assert_eq!(json["jetstream"], true);
    assert_eq!(json["max_payload"], 1 << 20);
    assert_eq!(json["client_id"], 1);
    assert_eq!(json["client_ip"], "127.0.0.1");
    assert_eq!(json["connect_urls"][0], "10.0.0.2:4222");
    client.send(&format!("{QUIET}\r\nPING\r\n")).await;
    client.expect("PONG\r\n").await;
    let second = client.line().await;
    assert!(second.contains(r#""connect_info":true"#) && second.contains(r#""remote_account":"$G""#), "{second}");
    server.broker.set_connect_urls(vec!["10.0.0.3:4222".to_owned()]);
    assert!(client.line().await.contains(r#""connect_urls":["10.0.0.3:4222"]"#));
    // The same list again is no news.
    server.broker.set_connect_urls(vec!["10.0.0.3:4222".to_owned()]);
    client.expect_nothing().await;
    server.broker.lame_duck();
    assert!(client.line().await.contains(r#""ldm":true"#));
}

#[tokio::test]
async fn an_old_client_gets_no_info_it_cannot_understand() {
    let server = server();
    let mut client = Client::with(&server, r#"CONNECT {"verbose":false,"pedantic":false}"#).await;
    client.send("PING\r\n").await;
    client.expect("PONG\r\n").await;
    server.broker.set_connect_urls(vec!["a:1".to_owned()]);
    client.expect_nothing().await;
}

#[tokio::test]
async fn publishes_reach_matching_subscriptions_only() {
    let server = server();
    let (mut one, mut two) = (Client::new(&server).await, Client::new(&server).await);
    one.send("SUB foo 1\r\nSUB foo.* 2\r\nsub\tfoo.>\t 3\r\nPING\r\n").await;
    one.expect("PONG\r\n").await;
    two.send("PUB foo 2\r\nhi\r\nPUB foo.bar _R.1 0\r\n\r\nPUB other 1\r\nx\r\n").await;
    two.send("pub foo.bar.baz\t 5\r\nhe\r\no\r\nPING\r\n").await;
    two.expect("PONG\r\n").await;
    one.expect("MSG foo 1 2\r\nhi\r\n").await;
    let mut pair = [one.line().await, {
        one.line().await;
        one.line().await
    }];
    one.line().await;
    pair.sort();
    assert_eq!(pair, ["MSG foo.bar 2 _R.1 0\r\n", "MSG foo.bar 3 _R.1 0\r\n"]);
    one.expect("MSG foo.bar.baz 3 5\r\nhe\r\no\r\n").await;
    one.expect_nothing().await;
    let stats = server.broker.stats();
    assert_eq!((stats.connections, stats.subscriptions, stats.in_msgs, stats.out_msgs), (2, 3, 4, 4));
    assert_eq!((stats.in_bytes, stats.out_bytes), (8, 7));
    let connz = server.broker.connz();
    assert_eq!(connz["num_connections"], 2);
    assert_eq!(connz["connections"][0]["subscriptions"], 3);
    assert_eq!(connz["connections"][1]["in_msgs"], 4);
}

#[tokio::test]
async fn headers_reach_those_who_understand_them() {
    let server = server();
    let mut modern = Client::new(&server).await;
    let mut plain = Client::with(&server, r#"CONNECT {"verbose":false,"pedantic":false,"headers":false}"#).await;
    for client in [&mut modern, &mut plain] {
        client.send("SUB h 9\r\n").await;
        client.expect_nothing().await;
    }
    modern.send("HPUB h _R 22 24\r\nNATS/1.0\r\nBar: Baz\r\n\r\nhi\r\n").await;
    modern.expect("HMSG h 9 _R 22 24\r\nNATS/1.0\r\nBar: Baz\r\n\r\nhi\r\n").await;
    plain.expect("MSG h 9 _R 2\r\nhi\r\n").await;
}

#[tokio::test]
async fn a_queue_group_shares_and_every_member_gets_some() {
    let server = server();
    let mut members = Vec::new();
    for _ in 0..3 {
        let mut member = Client::new(&server).await;
        member.send("SUB work.* group 1\r\n").await;
        member.expect_nothing().await;
        members.push(member);
    }
    let mut watcher = Client::new(&server).await;
    watcher.send("SUB work.> 1\r\n").await;
    for n in 0..300 {
        watcher.send(&format!("PUB work.{n} 1\r\nx\r\n")).await;
    }
    let mut shares = Vec::new();
    for member in &mut members {
        member.send("PING\r\n").await;
    }
    for n in 0..300 {
        watcher.expect(&format!("MSG work.{n} 1 1\r\nx\r\n")).await;
    }
    for member in &mut members {
        member.send("PUB done 0\r\n\r\nPING\r\n").await;
        let mut share = 0;
        let mut pongs = 0;
        while pongs < 2 {
            match member.line().await {
                line if line.starts_with("MSG ") => {
                    share += 1;
                    member.line().await;
                }
                line => {
                    assert_eq!(line, "PONG\r\n");
                    pongs += 1;
                }
            }
        }
        shares.push(share);
    }
    assert_eq!(shares.iter().sum::<i32>(), 300);
    assert!(shares.iter().all(|share| *share > 50), "{shares:?}");
}

#[tokio::test]
async fn unsub_ends_at_once_or_after_its_maximum() {
    let server = server();
    let mut client = Client::new(&server).await;
    client.send("SUB a 1\r\nUNSUB 1 2\r\n").await;
    client.send(&"PUB a 0\r\n\r\n".repeat(3)).await;
    client.expect(&"MSG a 1 0\r\n\r\n".repeat(2)).await;
    client.expect_nothing().await;
    assert_eq!(server.broker.stats().subscriptions, 0);
    // Counted from the start of the subscription: three were delivered already.
    client.send("SUB b 2\r\nPUB b 0\r\n\r\nPUB b 0\r\n\r\nPUB b 0\r\n\r\nUNSUB 2 3\r\nPUB b 0\r\n\r\n").await;
    client.expect(&"MSG b 2 0\r\n\r\n".repeat(3)).await;
    client.expect_nothing().await;
    client.send("SUB c 3\r\nUNSUB 3\r\nUNSUB 99\r\nPUB c 0\r\n\r\n").await;
    client.expect_nothing().await;
    // The sid is free again.
    client.send("SUB d 3\r\nPUB d 0\r\n\r\n").await;
    client.expect("MSG d 3 0\r\n\r\n").await;
}

#[tokio::test]
async fn a_sid_in_use_keeps_its_subscription() {
    let server = server();
    let mut client = Client::new(&server).await;
    client.send("SUB a 1\r\nSUB b 1\r\nPUB b 0\r\n\r\nPUB a 0\r\n\r\n").await;
    client.expect("MSG a 1 0\r\n\r\n").await;
    client.expect_nothing().await;
}

#[tokio::test]
async fn requests_without_a_listener_are_answered_503() {
    let server = server();
    let mut client = Client::new(&server).await;
    client.send("SUB _INBOX.x.* 1\r\nPUB nobody.home _INBOX.x.7 2\r\nhi\r\n").await;
    let block = "NATS/1.0 503\r\nNats-Subject: nobody.home\r\n\r\n";
    let expected = format!("HMSG _INBOX.x.7 1 {} {}\r\n{block}\r\n", block.len(), block.len());
    client.expect(&expected).await;
    // Others who listen to the inbox hear nothing of it.
    let mut spy = Client::new(&server).await;
    spy.send("SUB _INBOX.> 1\r\n").await;
    spy.expect_nothing().await;
    client.send("PUB nobody.home _INBOX.x.7 0\r\n\r\n").await;
    client.expect(&expected).await;
    spy.expect_nothing().await;
    // Without the option, or without a subscription of its own, there is silence.
    let mut plain = Client::with(&server, r#"CONNECT {"verbose":false,"headers":true}"#).await;
    plain.send("SUB _INBOX.y.* 1\r\nPUB nobody.home _INBOX.y.7 0\r\n\r\n").await;
    plain.expect_nothing().await;
    client.send("PUB nobody.home elsewhere 0\r\n\r\n").await;
    client.expect_nothing().await;
}

#[tokio::test]
async fn echo_false_hides_own_messages_only() {
    let server = server();
    let connect = r#"CONNECT {"verbose":false,"pedantic":false,"echo":false,"headers":true,"no_responders":true}"#;
    let (mut silent, mut other) = (Client::with(&server, connect).await, Client::new(&server).await);
    silent.send("SUB a 1\r\nSUB _R 2\r\n").await;
    silent.expect_nothing().await;
    other.send("PUB a 1\r\no\r\n").await;
    silent.expect("MSG a 1 1\r\no\r\n").await;
    // Nobody else listens, so nobody got it.
    silent.send("PUB a _R 1\r\ns\r\n").await;
    assert!(silent.line().await.starts_with("HMSG _R 2 "));
}

#[tokio::test]
async fn verbose_clients_get_ok_for_each_operation() {
    let server = server();
    let mut client = Client::with(&server, "CONNECT {}").await;
    client.expect("+OK\r\n").await;
    client.send("SUB a 1\r\nUNSUB 1\r\nPUB a 0\r\n\r\nPING\r\n").await;
    client.expect("+OK\r\n+OK\r\n+OK\r\nPONG\r\n").await;
    // Pedantic by default, as nothing else was said.
    client.send("PUB a.* 0\r\n\r\nSUB a..b 1\r\n").await;
    client.expect("-ERR 'Invalid Publish Subject'\r\n-ERR 'Invalid Subject'\r\n").await;
    client.expect_nothing().await;
}

#[tokio::test]
async fn violations_are_named_and_close_the_connection() {
    let server = server();
    let long = format!("SUB {} 1\r\n", "x".repeat(5_000));
    for (bytes, error) in [
        ("PUB a 1048577\r\n", "-ERR 'Maximum Payload Violation'\r\n"),
        ("NONSENSE a b\r\n", "-ERR 'Unknown Protocol Operation'\r\n"),
        (long.as_str(), "-ERR 'maximum control line exceeded'\r\n"),
        (r#"CONNECT {"verbose":false,"headers":false,"no_responders":true}"#, ""),
        ("PUB a 3\r\nabcde\r\n", "-ERR 'Unknown Protocol Operation'\r\n"),
    ] {
        let mut client = Client::new(&server).await;
        let (bytes, error) = match error {
            "" => (format!("{bytes}\r\n"), "-ERR 'no responders requires headers support'\r\n"),
            error => (bytes.to_owned(), error),
        };
        client.send(&bytes).await;
        client.expect_end(error).await;
    }
    until("all gone", || server.broker.stats().connections == 0).await;
}

#[tokio::test]
async fn the_largest_payload_passes_and_its_reason_survives_when_it_does_not() {
    let server = server();
    let mut client = Client::new(&server).await;
    let body = "b".repeat(1 << 20);
    client.send(&format!("SUB a 1\r\nPUB a {}\r\n{body}\r\n", body.len())).await;
    client.expect(&format!("MSG a 1 {}\r\n{body}\r\n", body.len())).await;
    // The body that nobody will read is in the socket when the server closes.
    let too_long = format!("PUB a {}\r\n{body}b\r\n", body.len() + 1);
    client.send(&too_long).await;
    client.expect_end("-ERR 'Maximum Payload Violation'\r\n").await;
}

#[tokio::test]
async fn stale_and_silent_clients_are_closed() {
    let quick = ClientLimits { ping_interval: Duration::from_millis(30), ..ClientLimits::default() };
    let server = server_with(quick);
    let (mut silent, _) = Client::raw(&server).await;
    silent.expect_end("PING\r\nPING\r\n-ERR 'Stale Connection'\r\n").await;
    let mut stale = Client::with(&server, QUIET).await;
    stale.expect_end("PING\r\nPING\r\n-ERR 'Stale Connection'\r\n").await;
    let mut alive = Client::with(&server, QUIET).await;
    for _ in 0..5 {
        alive.expect("PING\r\n").await;
        alive.send("PONG\r\n").await;
    }
}

#[tokio::test]
async fn slow_consumers_are_closed_and_counted() {
    let small = ClientLimits { pending_bytes_max: 4 << 20, ..ClientLimits::default() };
    let server = server_with(small);
    let mut lazy = Client::new(&server).await;
    lazy.send("SUB flood 1\r\n").await;
    lazy.expect_nothing().await;
    let mut publisher = Client::new(&server).await;
    let publish = format!("PUB flood 100000\r\n{}\r\n", "x".repeat(100_000));
    for _ in 0..400 {
        publisher.send(&publish).await;
        if server.broker.stats().slow_consumers > 0 {
            break;
        }
    }
    until("counted", || server.broker.stats().slow_consumers == 1).await;
    until("closed", || server.broker.stats().connections == 1).await;
    publisher.expect_nothing().await;
    // A client that takes nothing at all is caught by the write deadline, however little waits.
    let impatient = ClientLimits { write_deadline: Duration::from_millis(100), ..ClientLimits::default() };
    let server = server_with(impatient);
    let mut lazy = Client::new(&server).await;
    lazy.send("SUB flood 1\r\n").await;
    lazy.expect_nothing().await;
    let mut publisher = Client::new(&server).await;
    for _ in 0..200 {
        publisher.send(&publish).await;
    }
    until("counted", || server.broker.stats().slow_consumers == 1).await;
}

#[tokio::test]
async fn limits_on_connections_and_subscriptions_hold() {
    let few = ClientLimits { connections_max: 1, subscriptions_max: Some(1), ..ClientLimits::default() };
    let server = server_with(few);
    let mut client = Client::new(&server).await;
    client.send("SUB a 1\r\nSUB b 2\r\n").await;
    client.expect("-ERR 'maximum subscriptions exceeded'\r\n").await;
    let (_, refusal) = Client::raw(&server).await;
    assert_eq!(refusal, "-ERR 'maximum connections exceeded'\r\n");
    client.expect_nothing().await;
}

#[tokio::test]
async fn shutdown_writes_what_waits_and_returns() {
    let server = server();
    let mut client = Client::new(&server).await;
    client.send("SUB a 1\r\n").await;
    client.expect_nothing().await;
    for _ in 0..100 {
        let msg = Inbound { subject: b"a", reply: None, headers: b"", payload: b"bye" };
        assert!(server.broker.publish(&msg));
    }
    server.stop.cancel();
    client.expect_end(&"MSG a 1 3\r\nbye\r\n".repeat(100)).await;
    timeout(PATIENCE, server.task).await.unwrap().unwrap();
    assert_eq!(server.broker.stats().connections, 0);
    assert_eq!(server.broker.stats().out_msgs, 100);
}

#[tokio::test]
async fn a_closed_client_leaves_no_interest() {
    let server = server();
    let mut client = Client::new(&server).await;
    client.send("SUB a 1\r\nSUB b.> q 2\r\n").await;
    client.expect_nothing().await;
    assert!(server.broker.has_interest(b"a") && server.broker.has_interest(b"b.c"));
    drop(client);
    until("gone", || server.broker.stats().connections == 0).await;
    assert!(!server.broker.has_interest(b"a") && !server.broker.has_interest(b"b.c"));
    assert_eq!(server.broker.stats().subscriptions, 0);
}

/// Stores nothing, remembers everything.
#[derive(Default)]
struct Recorder {
    stored: Mutex<Vec<(u64, String, bool)>>,
    serviced: Mutex<Vec<String>>,
    turns: AtomicUsize,
    leaderless: AtomicBool,
    full: AtomicBool,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl JetStream for Recorder {
    fn service(&self, from: Option<&ConnHandle>, msg: &Inbound<'_>) -> bool {
        self.serviced.lock().push(text(msg.subject));
        if msg.subject.ends_with(b"UNKNOWN") {
            return false;
        }
        if let (Some(from), Some(reply)) = (from, msg.reply) {
            assert!(from.reply_direct(reply, b"", b"served"));
        }
        true
    }
    fn publish(&self, from: Option<&ConnHandle>, stream: u64, msg: &Inbound<'_>) -> bool {
        if self.leaderless.load(Ordering::Relaxed) {
            return false;
        }
        let mut stored = self.stored.lock();
        stored.push((stream, text(msg.subject), from.is_some()));
        if let (Some(from), Some(reply)) = (from, msg.reply) {
            let ack = format!("ack {}", stored.len());
            assert!(from.reply_direct(reply, b"", ack.as_bytes()));
        }
        true
    }
    fn turn_end(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }
    fn room(&self) -> Option<BoxFuture<'static, ()>> {
        let full = self.full.swap(false, Ordering::Relaxed);
        full.then(|| Box::pin(sleep(Duration::from_millis(200))) as BoxFuture<'static, ()>)
    }
}

#[tokio::test]
async fn streams_take_their_subjects_and_acks_go_straight_back() {
    let server = server();
    let js = Arc::new(Recorder::default());
    server.broker.set_jetstream(Arc::clone(&js) as Arc<dyn JetStream>);
    server.broker.add_stream(7, &["orders.*".to_owned(), "a..b".to_owned()]);
    let mut client = Client::new(&server).await;
    client.send("SUB _INBOX.me.* 1\r\n").await;
    for n in 1..=3 {
        client.send(&format!("PUB orders.x _INBOX.me.{n} 1\r\nx\r\n")).await;
        client.expect(&format!("MSG _INBOX.me.{n} 1 5\r\nack {n}\r\n")).await;
    }
    assert!(js.turns.load(Ordering::Relaxed) >= 4);
    // A subscriber beside the stream gets the message too, though the stream alone was remembered.
    client.send("SUB orders.x 2\r\nPUB orders.x 1\r\ny\r\n").await;
    client.expect("MSG orders.x 2 1\r\ny\r\n").await;
    client.send("UNSUB 2\r\nPUB orders.x 0\r\n\r\n").await;
    client.expect_nothing().await;
    // Nothing is stored under a name that is a filter.
    client.send("PUB orders.* 0\r\n\r\n").await;
    client.expect_nothing().await;
    assert_eq!(js.stored.lock().len(), 5);
    // A stream without a leader is nobody, and so is one that is gone.
    js.leaderless.store(true, Ordering::Relaxed);
    client.send("PUB orders.x _INBOX.me.9 0\r\n\r\n").await;
    assert!(client.line().await.starts_with("HMSG _INBOX.me.9 1 "));
    for _ in 0..4 {
        client.line().await;
    }
    js.leaderless.store(false, Ordering::Relaxed);
    server.broker.remove_stream(7);
    client.send("PUB orders.x _INBOX.me.9 0\r\n\r\n").await;
    assert!(client.line().await.starts_with("HMSG _INBOX.me.9 1 "));
    assert_eq!(js.stored.lock().len(), 5);
}

#[tokio::test]
async fn api_requests_go_to_jetstream_first() {
    let server = server();
    let js = Arc::new(Recorder::default());
    server.broker.set_jetstream(Arc::clone(&js) as Arc<dyn JetStream>);
    let (mut client, mut spy) = (Client::new(&server).await, Client::new(&server).await);
    client.send("SUB _INBOX.me.* 1\r\nPUB $JS.API.INFO _INBOX.me.1 0\r\n\r\n").await;
    client.expect("MSG _INBOX.me.1 1 6\r\nserved\r\n").await;
    client.send("PUB $JS.UNKNOWN _INBOX.me.2 0\r\n\r\n").await;
    assert!(client.line().await.starts_with("HMSG _INBOX.me.2 1 "));
    for _ in 0..4 {
        client.line().await;
    }
    // Whoever watches the API sees requests that were handled.
    spy.send("SUB $JS.API.> 1\r\n").await;
    spy.expect_nothing().await;
    client.send("PUB $JS.API.INFO _INBOX.me.3 0\r\n\r\n").await;
    client.expect("MSG _INBOX.me.3 1 6\r\nserved\r\n").await;
    spy.expect("MSG $JS.API.INFO 1 _INBOX.me.3 0\r\n\r\n").await;
    assert_eq!(js.serviced.lock().len(), 3);
}

#[tokio::test]
async fn a_full_node_stops_reading_until_it_has_room() {
    let server = server();
    let js = Arc::new(Recorder::default());
    server.broker.set_jetstream(Arc::clone(&js) as Arc<dyn JetStream>);
    let mut client = Client::new(&server).await;
    js.full.store(true, Ordering::Relaxed);
    client.expect_nothing().await;
    let started = std::time::Instant::now();
    client.expect_nothing().await;
    assert!(started.elapsed() > Duration::from_millis(150));
}

#[tokio::test]
async fn random_bytes_close_only_their_own_connection() {
    use rand::{Rng as _, SeedableRng as _};
    let server = server();
    let mut healthy = Client::new(&server).await;
    let mut random = rand::rngs::StdRng::seed_from_u64(99);
    let words = [
        "PUB ",
        "HPUB ",
        "SUB ",
        "UNSUB ",
        "CONNECT {",
        "PING",
        "\r\n",
        " ",
        "\t",
        "a",
        "1",
        "99",
        "\0",
        "}",
        "*",
        ".",
        ">",
    ];
    for _ in 0..60 {
        let (mut client, _) = Client::raw(&server).await;
        let mut bytes = String::new();
        for _ in 0..random.random_range(1..80) {
            bytes.push_str(words[random.random_range(0..words.len())]);
        }
        // The server may close before everything is sent.
        let _ = client.stream.write_all(bytes.as_bytes()).await;
    }
    healthy.expect_nothing().await;
    until("others gone", || server.broker.stats().connections == 1).await;
}
