//! Core NATS between the nodes.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, ensure};
use async_nats::{Client, RequestErrorKind};
use futures::StreamExt;
use headwater_cluster_tests::Cluster;

use crate::{run, sleep};

async fn next(subscriber: &mut async_nats::Subscriber) -> anyhow::Result<String> {
    let message = tokio::time::timeout(Duration::from_secs(5), subscriber.next()).await.context("no message in 5 s")?;
    Ok(String::from_utf8(message.context("the subscription ended")?.payload.to_vec())?)
}

/// Waits until interest registered at one node is known at another: a message gets through.
async fn joined(from: &Client, subject: &str, subscriber: &mut async_nats::Subscriber) -> anyhow::Result<()> {
    for _ in 0..100 {
        from.publish(subject.to_owned(), "probe".into()).await?;
        if let Ok(Some(_)) = tokio::time::timeout(Duration::from_millis(50), subscriber.next()).await {
            sleep(200).await;
            while let Ok(Some(_)) = tokio::time::timeout(Duration::from_millis(50), subscriber.next()).await {}
            return Ok(());
        }
    }
    anyhow::bail!("nothing gets through on {subject}")
}

/// Core publish and subscribe across nodes: order, wildcards, headers, requests, queue groups,
/// and no responders.
#[test]
fn core_messages_cross_the_nodes() {
    run(async |cluster: &mut Cluster| {
        let clients = [cluster.client(0).await?, cluster.client(1).await?, cluster.client(2).await?];
        let mut wide = clients[0].subscribe("a.>").await?;
        joined(&clients[1], "a.probe", &mut wide).await?;
        for n in 0..500 {
            clients[1].publish(format!("a.{}", n % 7), n.to_string().into()).await?;
        }
        for n in 0..500 {
            let got = next(&mut wide).await?;
            ensure!(got == n.to_string(), "message {n} came as {got}");
        }

        let mut headers = async_nats::HeaderMap::new();
        headers.insert("X-Key", "some value");
        clients[2].publish_with_headers("a.h", headers, "with".into()).await?;
        let message = tokio::time::timeout(Duration::from_secs(5), wide.next()).await?.context("ended")?;
        let value = message.headers.and_then(|headers| headers.get("X-Key").map(ToString::to_string));
        ensure!(value.as_deref() == Some("some value"), "the header came as {value:?}");

        let mut service = clients[2].subscribe("svc").await?;
        clients[2].flush().await?;
        let responder = clients[2].clone();
        tokio::spawn(async move {
            while let Some(request) = service.next().await {
                if let Some(reply) = request.reply {
                    let _ = responder.publish(reply, request.payload).await;
                }
            }
        });
        sleep(300).await;
        let answer = clients[0].request("svc", "ping".into()).await?;
        ensure!(answer.payload == "ping", "{answer:?}");
        let nobody = clients[0].request("nobody.home", "".into()).await;
        ensure!(matches!(&nobody, Err(error) if error.kind() == RequestErrorKind::NoResponders), "{nobody:?}");

        // Two members on different nodes: each message reaches exactly one of them.
        let mut members = Vec::new();
        for client in &clients[1..] {
            members.push(client.queue_subscribe("q", "group".into()).await?);
            client.flush().await?;
        }
        sleep(500).await;
        for n in 0..200 {
            clients[0].publish("q", n.to_string().into()).await?;
        }
        let mut seen: HashMap<String, u32> = HashMap::new();
        for member in &mut members {
            while let Ok(Some(message)) = tokio::time::timeout(Duration::from_millis(500), member.next()).await {
                *seen.entry(String::from_utf8(message.payload.to_vec())?).or_default() += 1;
            }
        }
        ensure!(seen.len() == 200 && seen.values().all(|&times| times == 1), "{} messages, some not once", seen.len());
        Ok(())
    });
}

/// Clients learn of the other nodes, and go there when theirs dies.
#[test]
fn b60_clients_move_to_another_node() {
    run(async |cluster: &mut Cluster| {
        let url = cluster.nodes()[0].url();
        // The library takes the other addresses from the INFO it is greeted with, so it connects once all are known.
        cluster
            .until(Duration::from_secs(10), "INFO names the other nodes", async |_: &mut Cluster| {
                let known = async_nats::connect(&url).await?.server_info().connect_urls;
                ensure!(known.len() >= 3, "{known:?}");
                Ok(())
            })
            .await?;
        let client = async_nats::ConnectOptions::new()
            .reconnect_delay_callback(|_| Duration::from_millis(50))
            .connect(&url)
            .await?;
        let mut own = client.subscribe("mine").await?;
        client.flush().await?;
        cluster.kill9(0)?;
        let other = cluster.client(1).await?;
        for _ in 0..100 {
            other.publish("mine", "still here?".into()).await?;
            if let Ok(Some(_)) = tokio::time::timeout(Duration::from_millis(100), own.next()).await {
                return Ok(());
            }
        }
        anyhow::bail!("the client's subscription did not come back within 10 s")
    });
}
