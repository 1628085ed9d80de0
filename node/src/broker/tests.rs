//! Brokers joined by transports, with real clients on both sides.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::client::tests::{Client, Server, server};
use crate::transport::tests::{listener, target, until};
use crate::transport::{BulkStream, LocalHello, NodeId, PeerHandler, PeerHello, Refusal, Respond, Timing, Transport};

/// What the node's own handler does with the broker's share of peer traffic.
struct Glue {
    hello: LocalHello,
    broker: Broker,
}

impl PeerHandler for Glue {
    fn local_hello(&self) -> LocalHello {
        self.hello.clone()
    }
    fn on_hello(&self, _: &PeerHello) -> Result<(), Refusal> {
        Ok(())
    }
    fn on_banned(&self, _: &str) {}
    fn on_up(&self, peer: &PeerHello) {
        self.broker.peer_up(peer.node_id);
    }
    fn on_down(&self, node_id: NodeId) {
        self.broker.peer_down(node_id);
    }
    fn on_message(&self, from: NodeId, kind: u8, body: Bytes) {
        self.broker.on_peer_message(from, kind, body);
    }
    fn on_request(&self, _: NodeId, _: u8, _: Bytes, respond: Respond) {
        respond.send(Err("no requests here".to_owned()));
    }
    fn on_turn_end(&self, _: NodeId) {}
    fn on_bulk(&self, _: NodeId, _: BulkStream) {}
}

struct Node {
    id: NodeId,
    cluster_addr: SocketAddr,
    server: Server,
    transport: Transport,
}

fn cluster(size: usize) -> Vec<Node> {
    let listeners: Vec<_> = (0..size).map(|_| listener()).collect();
    let targets: Vec<_> = listeners.iter().enumerate().map(|(n, (_, addr))| target(&format!("n{n}"), *addr)).collect();
    let start = |(n, (listener, addr)): (usize, (std::net::TcpListener, SocketAddr))| {
        let server = server();
        let id = n as NodeId + 1;
        let hello = LocalHello {
            cluster_id: None,
            node_name: format!("n{n}"),
            node_id: id,
            boot_epoch: 1,
            last_boot_epoch: None,
            log_end: None,
            client_addr: String::new(),
            cluster_addr: addr.to_string(),
            http_addr: String::new(),
            empty: false,
            version: String::new(),
        };
        let timing = Timing { ping_after: Duration::from_millis(100), ..Timing::default() };
        let glue = Arc::new(Glue { hello, broker: server.broker.clone() });
        let transport = Transport::start_with(listener, glue, timing);
        server.broker.set_transport(transport.clone());
        transport.set_targets(targets.clone());
        Node { id, cluster_addr: addr, server, transport }
    };
    listeners.into_iter().enumerate().map(start).collect()
}

async fn joined(size: usize) -> Vec<Node> {
    let nodes = cluster(size);
    for node in &nodes {
        until("links", || node.server.broker.peer_interest_counts().len() == size - 1).await;
    }
    nodes
}

async fn interest_everywhere(nodes: &[Node], subject: &str) {
    for node in nodes {
        until(subject, || node.server.broker.has_interest(subject.as_bytes())).await;
    }
}

async fn interest_nowhere(nodes: &[Node], subject: &str) {
    for node in nodes {
        until(subject, || !node.server.broker.has_interest(subject.as_bytes())).await;
    }
}

#[tokio::test]
async fn interest_travels_and_so_do_messages() {
    let nodes = joined(3).await;
    let (mut one, mut two) = (Client::new(&nodes[0].server).await, Client::new(&nodes[1].server).await);
    one.send("SUB far.> 1\r\nSUB far.a 2\r\n").await;
    interest_everywhere(&nodes, "far.a").await;
    two.send("HPUB far.b _R 12 14\r\nNATS/1.0\r\n\r\nhi\r\n").await;
    one.expect("HMSG far.b 1 _R 12 14\r\nNATS/1.0\r\n\r\nhi\r\n").await;
    // Two filters match, yet the message crosses once and reaches each subscription once.
    two.send("PUB far.a 1\r\nx\r\n").await;
    let mut lines = [one.line().await, {
        one.line().await;
        one.line().await
    }];
    one.line().await;
    lines.sort();
    assert_eq!(lines, ["MSG far.a 1 1\r\n", "MSG far.a 2 1\r\n"]);
    one.expect_nothing().await;
    // A large payload takes the path that does not copy.
    let body = "z".repeat(200_000);
    two.send(&format!("PUB far.b {}\r\n{body}\r\n", body.len())).await;
    one.expect(&format!("MSG far.b 1 {}\r\n{body}\r\n", body.len())).await;
    one.send("UNSUB 1\r\nUNSUB 2\r\n").await;
    interest_nowhere(&nodes, "far.a").await;
}

#[tokio::test]
async fn late_links_learn_what_is_wanted_already() {
    let nodes = cluster(2);
    let mut one = Client::new(&nodes[0].server).await;
    for n in 0..50 {
        one.send(&format!("SUB early.{n} {n}\r\n")).await;
    }
    one.expect_nothing().await;
    interest_everywhere(&nodes, "early.49").await;
    assert_eq!(nodes[1].server.broker.peer_interest_counts(), [(1, 50)]);
}

#[tokio::test]
async fn a_request_is_answered_across_nodes_without_waiting_for_its_inbox() {
    let nodes = joined(2).await;
    let (mut asker, mut answerer) = (Client::new(&nodes[0].server).await, Client::new(&nodes[1].server).await);
    answerer.send("SUB service 5\r\n").await;
    interest_everywhere(&nodes, "service").await;
    for n in 0..20 {
        // A fresh inbox each time: its interest must reach the other node before the request does.
        asker.send(&format!("SUB _INBOX.{n} {n}\r\nUNSUB {n} 1\r\nPUB service _INBOX.{n} 1\r\n?\r\n")).await;
        answerer.expect(&format!("MSG service 5 _INBOX.{n} 1\r\n?\r\n")).await;
        answerer.send(&format!("PUB _INBOX.{n} 1\r\n!\r\n")).await;
        asker.expect(&format!("MSG _INBOX.{n} {n} 1\r\n!\r\n")).await;
    }
    asker.expect_nothing().await;
    until("inboxes gone", || nodes[1].server.broker.peer_interest_counts() == [(1, 0)]).await;
    // Nobody left to answer: the asker is told at once.
    answerer.send("UNSUB 5\r\n").await;
    interest_nowhere(&nodes, "service").await;
    asker.send("SUB _INBOX.x x\r\nPUB service _INBOX.x 0\r\n\r\n").await;
    assert!(asker.line().await.starts_with("HMSG _INBOX.x x "));
}

#[tokio::test]
async fn a_queue_group_spans_nodes_and_prefers_its_own() {
    let nodes = joined(3).await;
    let mut members = Vec::new();
    for node in &nodes[..2] {
        let mut member = Client::new(&node.server).await;
        member.send("SUB job group 1\r\n").await;
        member.expect_nothing().await;
        members.push(member);
    }
    for node in &nodes {
        let expected = nodes.iter().take(2).filter(|other| other.id != node.id).count();
        until("interest", || {
            node.server.broker.peer_interest_counts().iter().map(|(_, wants)| wants).sum::<usize>() == expected
        })
        .await;
    }
    // Where a member is at home, it gets everything.
    let mut local = Client::new(&nodes[0].server).await;
    local.send(&"PUB job 1\r\na\r\n".repeat(20)).await;
    members[0].expect(&"MSG job 1 1\r\na\r\n".repeat(20)).await;
    members[0].expect_nothing().await;
    members[1].expect_nothing().await;
    // From elsewhere, each message reaches exactly one, and both nodes get some.
    let mut remote = Client::new(&nodes[2].server).await;
    remote.send(&"PUB job 1\r\nb\r\n".repeat(60)).await;
    remote.expect_nothing().await;
    let delivered = |at: usize| nodes[at].server.broker.stats().out_msgs;
    until("all delivered", || delivered(0) + delivered(1) == 80).await;
    assert!(delivered(0) > 20 && delivered(1) > 0, "{} {}", delivered(0), delivered(1));
}

#[tokio::test]
async fn a_lost_peer_takes_its_interest_along_and_brings_it_back() {
    let nodes = joined(2).await;
    let mut one = Client::new(&nodes[0].server).await;
    one.send("SUB gone q 1\r\n").await;
    interest_everywhere(&nodes, "gone").await;
    // The link from node 1 to node 0 alone goes: what node 0 wants must not count there, and be learnt anew later.
    nodes[1].transport.set_targets(vec![]);
    until("lost", || !nodes[1].server.broker.has_interest(b"gone")).await;
    let mut asker = Client::new(&nodes[1].server).await;
    asker.send("SUB _INBOX.1 1\r\nPUB gone _INBOX.1 0\r\n\r\n").await;
    assert!(asker.line().await.starts_with("HMSG _INBOX.1 1 "));
    // A change while the link is down.
    one.send("SUB new 2\r\n").await;
    one.expect_nothing().await;
    assert!(nodes[1].transport.peers().is_empty());
    assert!(nodes[0].transport.is_up(2));
    nodes[1].transport.set_targets(vec![target("n0", nodes[0].cluster_addr)]);
    interest_everywhere(&nodes, "gone").await;
    interest_everywhere(&nodes, "new").await;
    asker.send("PUB new 1\r\nx\r\n").await;
    one.expect("MSG new 2 1\r\nx\r\n").await;
    // The whole node goes.
    nodes[0].transport.shutdown();
    interest_nowhere(&nodes[1..], "new").await;
}

#[tokio::test]
async fn deliveries_go_to_the_inbox_and_show_the_subject_of_the_message() {
    let nodes = joined(2).await;
    let mut client = Client::new(&nodes[0].server).await;
    client.send("SUB _INBOX.pull.* 4\r\n").await;
    interest_everywhere(&nodes, "_INBOX.pull.1").await;
    let msg = Inbound { subject: b"orders.1", reply: Some(b"$JS.ACK.x"), headers: b"", payload: b"hi" };
    for node in &nodes {
        let reach = node.server.broker.deliver(b"_INBOX.pull.1", &msg);
        assert!(reach.any && reach.pending_bytes > 0);
        client.expect("MSG orders.1 4 $JS.ACK.x 2\r\nhi\r\n").await;
    }
    assert!(!nodes[0].server.broker.deliver(b"_INBOX.none", &msg).any);
}

#[tokio::test]
async fn direct_replies_are_exact_under_changing_interest() {
    let server = server();
    let mut client = Client::new(&server).await;
    client.send("SUB _INBOX.a.* 1\r\nUNSUB 9\r\n").await;
    client.expect_nothing().await;
    let conn = ConnHandle(Arc::clone(server.broker.inner.conns.lock().values().next().unwrap()));
    for n in 0..3 {
        assert!(conn.reply_direct(format!("_INBOX.a.{n}").as_bytes(), b"", b"x"));
        client.expect(&format!("MSG _INBOX.a.{n} 1 1\r\nx\r\n")).await;
    }
    // Not below the inbox, nobody's, another's.
    for other in [&b"_INBOX.a"[..], b"_INBOX.a.b.c", b"_INBOX.b.1"] {
        assert!(!conn.reply_direct(other, b"", b"x"));
    }
    // One reply is singled out by another subscription: it has two takers, its neighbours still one.
    client.send("SUB _INBOX.a.7 2\r\n").await;
    client.expect_nothing().await;
    assert!(!conn.reply_direct(b"_INBOX.a.7", b"", b"x"));
    assert!(conn.reply_direct(b"_INBOX.a.8", b"", b"x"));
    assert!(!conn.reply_direct(b"_INBOX.a.7", b"", b"x"));
    client.expect("MSG _INBOX.a.8 1 1\r\nx\r\n").await;
    client.send("UNSUB 2\r\n").await;
    client.expect_nothing().await;
    {
        let mut batch = conn.batch();
        for n in 0..100 {
            let subject = format!("_INBOX.a.{n}");
            let reply =
                Inbound { subject: subject.as_bytes(), reply: None, headers: b"NATS/1.0\r\n\r\n", payload: b"" };
            assert!(batch.deliver(subject.as_bytes(), &reply));
        }
    }
    for n in 0..100 {
        client.expect(&format!("HMSG _INBOX.a.{n} 1 12 12\r\nNATS/1.0\r\n\r\n\r\n")).await;
    }
    // A maximum set meanwhile counts.
    client.send("UNSUB 1 105\r\n").await;
    client.expect_nothing().await;
    assert!(conn.reply_direct(b"_INBOX.a.1", b"", b"x"));
    client.expect("MSG _INBOX.a.1 1 1\r\nx\r\n").await;
    assert!(!conn.reply_direct(b"_INBOX.a.2", b"", b"x"));
    assert!(!server.broker.has_interest(b"_INBOX.a.2"));
    client.send("SUB _INBOX.a.* 1\r\n").await;
    client.expect_nothing().await;
    assert!(conn.reply_direct(b"_INBOX.a.3", b"", b"x"));
    drop(client);
    until("closed", || !conn.reply_direct(b"_INBOX.a.3", b"", b"x")).await;
}
