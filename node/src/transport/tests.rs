use std::net::SocketAddr;

use rand::RngCore as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{sleep, timeout};

use super::*;

const PATIENCE: Duration = Duration::from_secs(10);

/// Waits until `condition` holds, and fails the test when it does not in time.
pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) {
    let waited = timeout(PATIENCE, async {
        while !condition() {
            sleep(Duration::from_millis(2)).await;
        }
    });
    assert!(waited.await.is_ok(), "not in time: {what}");
}

/// A listener on a free loopback port, and its address.
pub(crate) fn listener() -> (std::net::TcpListener, SocketAddr) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

pub(crate) fn target(name: &str, addr: SocketAddr) -> Target {
    Target { name: name.to_owned(), addr: addr.to_string() }
}

fn quick() -> Timing {
    Timing {
        ping_after: Duration::from_millis(50),
        backoff_min: Duration::from_millis(10),
        backoff_max: Duration::from_millis(50),
        ..Timing::default()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Event {
    Up(NodeId),
    Down(NodeId),
    Message(NodeId, u8, Bytes),
    TurnEnd(NodeId),
    Bulk(NodeId, Bytes),
    Banned(String),
}

struct Recorder {
    hello: Mutex<LocalHello>,
    events: Mutex<Vec<Event>>,
    held: Mutex<Vec<Respond>>,
    refuse: Mutex<Option<Refusal>>,
}

impl Recorder {
    fn new(name: &str, node_id: NodeId, addr: SocketAddr) -> Arc<Recorder> {
        let hello = LocalHello {
            cluster_id: None,
            node_name: name.to_owned(),
            node_id,
            boot_epoch: 1,
            last_boot_epoch: None,
            log_end: None,
            client_addr: "c".to_owned(),
            cluster_addr: addr.to_string(),
            http_addr: "h".to_owned(),
            empty: true,
            version: "1".to_owned(),
        };
        Arc::new(Recorder {
            hello: Mutex::new(hello),
            events: Mutex::default(),
            held: Mutex::default(),
            refuse: Mutex::default(),
        })
    }

    fn events(&self) -> Vec<Event> {
        self.events.lock().clone()
    }

    fn messages(&self) -> Vec<Bytes> {
        let bodies = |event: &Event| if let Event::Message(_, _, body) = event { Some(body.clone()) } else { None };
        self.events.lock().iter().filter_map(bodies).collect()
    }

    fn count(&self, wanted: &Event) -> usize {
        self.events.lock().iter().filter(|event| *event == wanted).count()
    }
}

impl PeerHandler for Recorder {
    fn local_hello(&self) -> LocalHello {
        self.hello.lock().clone()
    }
    fn on_hello(&self, _: &PeerHello) -> Result<(), Refusal> {
        self.refuse.lock().clone().map_or(Ok(()), Err)
    }
    fn on_banned(&self, why: &str) {
        self.events.lock().push(Event::Banned(why.to_owned()));
    }
    fn on_up(&self, peer: &PeerHello) {
        self.events.lock().push(Event::Up(peer.node_id));
    }
    fn on_down(&self, node_id: NodeId) {
        self.events.lock().push(Event::Down(node_id));
    }
    fn on_message(&self, from: NodeId, kind: u8, body: Bytes) {
        self.events.lock().push(Event::Message(from, kind, body));
    }
    fn on_request(&self, _: NodeId, kind: u8, body: Bytes, respond: Respond) {
        match kind {
            1 => respond.send(Ok(vec![Bytes::from_static(b"echo:"), body])),
            2 => respond.send(Err("no such thing".to_owned())),
            3 => drop(respond),
            _ => self.held.lock().push(respond),
        }
    }
    fn on_turn_end(&self, from: NodeId) {
        self.events.lock().push(Event::TurnEnd(from));
    }
    fn on_bulk(&self, from: NodeId, bulk: BulkStream) {
        self.events.lock().push(Event::Bulk(from, bulk.header));
        tokio::spawn(async move {
            let (mut read, mut write) = bulk.stream.into_split();
            tokio::io::copy(&mut read, &mut write).await
        });
    }
}

struct Node {
    handler: Arc<Recorder>,
    transport: Transport,
    addr: SocketAddr,
}

fn node(name: &str, node_id: NodeId) -> Node {
    let (listener, addr) = listener();
    let handler = Recorder::new(name, node_id, addr);
    let transport = Transport::start_with(listener, Arc::clone(&handler) as Arc<dyn PeerHandler>, quick());
    Node { handler, transport, addr }
}

async fn pair() -> (Node, Node) {
    let (one, two) = (node("one", 1), node("two", 2));
    one.transport.set_targets(vec![target("two", two.addr)]);
    two.transport.set_targets(vec![target("one", one.addr)]);
    until("both links up", || one.transport.is_up(2) && two.transport.is_up(1)).await;
    (one, two)
}

#[tokio::test]
async fn messages_keep_their_order_and_end_in_a_turn() {
    let (one, two) = pair().await;
    for n in 0..500u32 {
        let parts = [Bytes::from(n.to_le_bytes().to_vec()), Bytes::from(vec![n as u8; (n as usize % 3) * 4000])];
        one.transport.send(2, 7, &parts).unwrap();
    }
    until("all messages", || two.handler.messages().len() == 500).await;
    for (n, body) in two.handler.messages().iter().enumerate() {
        assert_eq!(body[..4], (n as u32).to_le_bytes());
        assert_eq!(body.len(), 4 + (n % 3) * 4000);
    }
    assert_eq!(two.handler.events().last(), Some(&Event::TurnEnd(1)));
    until("queue drained", || one.transport.queued_bytes(2) == 0).await;
    assert_eq!(one.transport.peers().len(), 1);
    assert_eq!(one.transport.peers()[0].node_name, "two");
}

#[tokio::test]
async fn requests_end_in_an_answer_an_error_or_a_timeout() {
    let (one, two) = pair().await;
    let ask = |kind, patience| {
        let transport = one.transport.clone();
        async move { transport.request(2, kind, &[Bytes::from_static(b"hi")], patience).await }
    };
    assert_eq!(ask(1, PATIENCE).await.unwrap(), "echo:hi");
    assert_eq!(ask(2, PATIENCE).await, Err(RequestError::Remote("no such thing".to_owned())));
    assert_eq!(ask(3, PATIENCE).await, Err(RequestError::Remote("the request was dropped".to_owned())));
    assert_eq!(ask(9, Duration::from_millis(20)).await, Err(RequestError::Timeout));
    // The late answer to the request that timed out must not reach the next one.
    two.handler.held.lock().pop().unwrap().send(Ok(vec![Bytes::from_static(b"late")]));
    assert_eq!(ask(1, PATIENCE).await.unwrap(), "echo:hi");
    let unknown = one.transport.request(77, 1, &[], PATIENCE).await;
    assert_eq!(unknown, Err(RequestError::Unreachable(Unreachable::Down)));
}

#[tokio::test]
async fn large_frames_pass_whole_and_longer_ones_are_refused() {
    let (one, two) = pair().await;
    let mut body = vec![0; 6 << 20];
    rand::rng().fill_bytes(&mut body);
    let body = Bytes::from(body);
    let answer = one.transport.request(2, 1, std::slice::from_ref(&body), PATIENCE).await.unwrap();
    assert_eq!(answer[5..], body);
    one.transport.send(2, 5, &[body.slice(..10_000), body.slice(10_000..)]).unwrap();
    until("large message", || two.handler.messages().len() == 1).await;
    assert_eq!(two.handler.messages()[0], body);
    let too_long = Bytes::from(vec![0; frame::FRAME_BYTES_MAX]);
    assert_eq!(one.transport.send(2, 5, &[too_long]), Err(Unreachable::TooLong));
}

#[tokio::test]
async fn a_lost_peer_fails_its_requests_and_comes_back_under_a_new_id() {
    let (one, two) = pair().await;
    let transport = one.transport.clone();
    let waiting = tokio::spawn(async move { transport.request(2, 9, &[], PATIENCE).await });
    until("request arrived", || two.handler.held.lock().len() == 1).await;
    two.transport.shutdown();
    assert_eq!(waiting.await.unwrap(), Err(RequestError::LinkLost));
    until("down", || one.handler.count(&Event::Down(2)) == 1).await;
    assert_eq!(one.transport.send(2, 1, &[]), Err(Unreachable::Down));
    // The same address, a new incarnation.
    let listener = loop {
        match std::net::TcpListener::bind(two.addr) {
            Ok(listener) => break listener,
            Err(_) => sleep(Duration::from_millis(5)).await,
        }
    };
    let reborn = Recorder::new("two", 22, two.addr);
    let _transport = Transport::start_with(listener, Arc::clone(&reborn) as Arc<dyn PeerHandler>, quick());
    until("up again", || one.transport.is_up(22)).await;
    assert_eq!(one.handler.events(), [Event::Up(2), Event::Down(2), Event::Up(22)]);
}

#[tokio::test]
async fn a_silent_peer_is_given_up() {
    let one = node("one", 1);
    // Answers the handshake, then never says a word, as a paused process does.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = silent.local_addr().unwrap();
    one.transport.set_targets(vec![target("silent", addr)]);
    let (mut stream, _) = silent.accept().await.unwrap();
    let (_, mut hello) = hello::hear(&mut stream).await.unwrap();
    hello.node_id = 9;
    hello::answer(&mut stream, &hello).await.unwrap();
    until("up", || one.transport.is_up(9)).await;
    until("given up", || one.handler.count(&Event::Down(9)) == 1).await;
}

#[tokio::test]
async fn an_idle_link_stays_up() {
    let (one, two) = pair().await;
    sleep(quick().ping_after * (quick().silent_intervals_max + 4)).await;
    assert!(one.transport.is_up(2) && two.transport.is_up(1));
    assert_eq!(one.handler.events(), [Event::Up(2)]);
}

#[tokio::test]
async fn a_refused_peer_is_not_linked_until_it_is_accepted() {
    for (refusing_side_dials, for_good) in [(true, false), (false, false), (true, true), (false, true)] {
        let (one, two) = (node("one", 1), node("two", 2));
        *one.handler.refuse.lock() = Some(Refusal { why: "stale".to_owned(), for_good });
        let (from, to) = if refusing_side_dials { (&one, &two) } else { (&two, &one) };
        from.transport.set_targets(vec![target("peer", to.addr)]);
        sleep(Duration::from_millis(150)).await;
        assert!(from.transport.peers().is_empty());
        assert!(one.handler.events().is_empty());
        let banned = two.handler.events();
        assert_eq!(!banned.is_empty(), for_good, "{banned:?}");
        assert!(banned.iter().all(|event| *event == Event::Banned("stale".to_owned())), "{banned:?}");
        *one.handler.refuse.lock() = None;
        until("accepted", || from.transport.peers().len() == 1).await;
    }
}

#[tokio::test]
async fn one_link_per_node_however_many_targets_lead_there() {
    let (one, two) = (node("one", 1), node("two", 2));
    let seeds = vec![target("seed-a", two.addr), target("seed-b", two.addr), target("me", one.addr)];
    one.transport.set_targets(seeds);
    until("up", || one.transport.is_up(2)).await;
    sleep(Duration::from_millis(200)).await;
    assert_eq!(one.handler.events(), [Event::Up(2)]);
    // Whichever seed holds the link, the catalogue's name takes it over.
    one.transport.set_targets(vec![target("two", two.addr)]);
    sleep(Duration::from_millis(200)).await;
    assert_eq!(one.handler.events(), [Event::Up(2)]);
    one.transport.set_targets(vec![]);
    until("removed", || one.handler.count(&Event::Down(2)) == 1).await;
}

#[tokio::test]
async fn bulk_connections_carry_a_header_and_raw_bytes() {
    let (one, two) = pair().await;
    let mut bulk = one.transport.open_bulk(2, Bytes::from_static(b"blocks 7")).await.unwrap();
    bulk.write_all(b"raw bytes").await.unwrap();
    bulk.shutdown().await.unwrap();
    let mut back = Vec::new();
    bulk.read_to_end(&mut back).await.unwrap();
    assert_eq!(back, b"raw bytes");
    assert_eq!(two.handler.count(&Event::Bulk(1, Bytes::from_static(b"blocks 7"))), 1);
    let missing = one.transport.open_bulk(5, Bytes::new()).await;
    assert_eq!(missing.unwrap_err().kind(), io::ErrorKind::NotConnected);
}

#[tokio::test]
async fn garbage_on_the_cluster_port_ends_only_its_own_connection() {
    let (one, two) = pair().await;
    for garbage in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], b"HWP2\x00\x00\x00\x00\xff\xff\xff\xff", b"HWP2\x09\0\0\0\x02\0\0\0{}"]
    {
        let mut stream = TcpStream::connect(one.addr).await.unwrap();
        stream.write_all(garbage).await.unwrap();
        let mut rest = Vec::new();
        let ended = timeout(PATIENCE, stream.read_to_end(&mut rest)).await;
        assert!(ended.is_ok(), "connection still open");
    }
    two.transport.send(1, 3, &[Bytes::from_static(b"still here")]).unwrap();
    until("message", || one.handler.messages().len() == 1).await;
}

#[tokio::test]
async fn a_new_link_from_a_peer_replaces_its_old_one() {
    let one = node("one", 1);
    let hello = LocalHello { node_id: 5, node_name: "five".to_owned(), ..one.handler.local_hello() };
    let dial = || async {
        let mut stream = TcpStream::connect(one.addr).await.unwrap();
        hello::introduce(&mut stream, hello::Purpose::Link, &hello).await.unwrap();
        hello::confirm(&mut stream).await.unwrap();
        stream
    };
    let message = |text: &[u8]| {
        let mut bytes = frame::header(Role::OneWay, 1, 0, text.len()).unwrap().to_vec();
        bytes.extend_from_slice(text);
        bytes
    };
    let mut old = dial().await;
    old.write_all(&message(b"old")).await.unwrap();
    until("old link works", || one.handler.messages().len() == 1).await;
    let mut new = dial().await;
    new.write_all(&message(b"new")).await.unwrap();
    until("new link works", || one.handler.messages().len() == 2).await;
    let mut rest = Vec::new();
    // Closed or reset, either way the old link is over.
    let _ = timeout(PATIENCE, old.read_to_end(&mut rest)).await.expect("old link still open");
    assert_eq!(one.handler.messages(), ["old", "new"]);
}
