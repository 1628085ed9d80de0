//! Sequences never go back: purges, deletes and retries around kills.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::ensure;
use async_nats::HeaderMap;
use headwater_audit::{Ledger, Publisher, Until, Verifier};
use headwater_cluster_tests::{Cluster, DIRECT_VIEWS, Load, LoadOptions, api};
use serde_json::{Value, json};

use crate::{RECOVERED, run, sleep};

const PURGED: u64 = 400;

/// What a purge leaves: messages, first sequence.
fn purges() -> [(&'static str, Value, u64, u64); 4] {
    [
        ("ALL", json!({}), 0, PURGED + 1),
        ("SEQ", json!({ "seq": 301 }), 100, 301),
        ("KEEP", json!({ "keep": 7 }), 7, PURGED - 6),
        // Sixteen subjects by turns: one of them is every sixteenth message, from the first on.
        ("SUBJ", json!({ "filter": "SUBJ-R.0" }), PURGED - PURGED / 16, 2),
    ]
}

/// B14, B24, B55, B68: streams with 1 and 3 replicas, purged in every way, everything killed right
/// after the answer. The purge stays done, and the next message takes the next sequence.
#[test]
fn b14_purge_then_kill() {
    run(async |cluster| {
        let (client, mut ledgers) = (cluster.any_client().await?, BTreeMap::new());
        for replicas in [1, 3] {
            for (kind, ..) in purges() {
                let name = format!("{kind}{replicas}");
                let mut config = Cluster::stream_config(&name, replicas);
                config.subjects = vec![format!("{name}-R.*")];
                cluster.create_stream(config).await?;
                let ledger = Ledger::new();
                let subject = |n: u64| format!("{name}-R.{}", n % 16);
                Publisher::new(1).run(&client, &name, &ledger, subject, &Until::count(PURGED)).await?;
                ledgers.insert(name, ledger);
            }
        }
        for replicas in [1, 3] {
            for (kind, body, ..) in purges() {
                let name = format!("{kind}{replicas}");
                let body = match body.get("filter") {
                    Some(_) => json!({ "filter": format!("{name}-R.0") }),
                    None => body,
                };
                let answer = api(&client, &format!("STREAM.PURGE.{name}"), &body).await?;
                ensure!(answer["success"] == true, "{name}: {answer}");
            }
        }
        cluster.kill_all()?;
        cluster.start_all().await?;
        cluster.wait_all_recovered(RECOVERED).await?;
        for replicas in [1, 3] {
            for (kind, _, messages, first) in purges() {
                let name = format!("{kind}{replicas}");
                let info = cluster.stream_info(&name).await?;
                let state = (info.state.messages, info.state.first_sequence, info.state.last_sequence);
                ensure!(
                    state == (messages, first, PURGED),
                    "{name} after the kill: {state:?}, expected {:?}",
                    (messages, first, PURGED)
                );
                let ledger = &ledgers[&name];
                let client = cluster.any_client().await?;
                Publisher::new(2).run(&client, &name, ledger, |_| format!("{name}-R.1"), &Until::count(1)).await?;
                ensure!(
                    ledger.highest_confirmed() == PURGED + 1,
                    "{name}: the next message got {}",
                    ledger.highest_confirmed()
                );
                if replicas == 3 {
                    cluster.wait_replicas(&name).await?;
                }
                let verifier = Verifier::new().ways(&DIRECT_VIEWS).removed(1..=PURGED);
                cluster.audit_with(verifier, &name, ledger).await?;
            }
        }
        Ok(())
    });
}

/// B24: deleted messages, the first and the last among them, stay deleted through a kill of
/// everything; first and last sequence stay.
#[test]
fn b24_deletes_stay_deleted() {
    run(async |cluster| {
        let (client, mut ledgers) = (cluster.any_client().await?, Vec::new());
        let deleted = [1, 2, 50, 77, 99, 100];
        for replicas in [1, 3] {
            let name = format!("DEL{replicas}");
            cluster.create_stream(Cluster::stream_config(&name, replicas)).await?;
            let ledger = Ledger::new();
            Publisher::new(1).run(&client, &name, &ledger, |n| format!("{name}.{}", n % 5), &Until::count(100)).await?;
            for seq in deleted {
                let body = json!({ "seq": seq, "no_erase": seq % 2 == 0 });
                let answer = api(&client, &format!("STREAM.MSG.DELETE.{name}"), &body).await?;
                ensure!(answer["success"] == true, "{name} {seq}: {answer}");
            }
            ledgers.push((name, replicas, ledger));
        }
        cluster.kill_all()?;
        cluster.start_all().await?;
        cluster.wait_all_recovered(RECOVERED).await?;
        for (name, replicas, ledger) in ledgers {
            let info = cluster.stream_info(&name).await?;
            let state = (info.state.messages, info.state.first_sequence, info.state.last_sequence);
            ensure!(state == (94, 3, 100), "{name}: {state:?}");
            if replicas == 3 {
                cluster.wait_replicas(&name).await?;
            }
            let verifier = deleted.into_iter().fold(Verifier::new(), |verifier, seq| verifier.removed(seq..=seq));
            cluster.audit_with(verifier, &name, &ledger).await?;
            let client = cluster.any_client().await?;
            Publisher::new(2).run(&client, &name, &ledger, |_| format!("{name}.x"), &Until::count(1)).await?;
            ensure!(ledger.highest_confirmed() == 101, "{name}: the next message got {}", ledger.highest_confirmed());
        }
        Ok(())
    });
}

/// B66: impatient publishers that retry while the leader is killed twice; then every id once more,
/// to the new leader, which must know each and name the sequence it is really at.
#[test]
fn b66_retries_are_stored_once_over_leader_changes() {
    run(async |cluster| {
        cluster.create_stream(Cluster::stream_config("DEDUPE", 3)).await?;
        let ledger = Ledger::new();
        let options = LoadOptions { ack_timeout: Duration::from_millis(150), ..LoadOptions::on("DEDUPE") };
        let load = Load::start(cluster, "DEDUPE", &ledger, options).await?;
        for _ in 0..2 {
            sleep(700).await;
            let leader = cluster.leader_of("DEDUPE").await?;
            cluster.kill9(leader)?;
            sleep(1500).await;
            cluster.restart(leader)?;
            cluster.wait_recovered(leader, RECOVERED).await?;
        }
        load.finish().await?;
        cluster.wait_replicas("DEDUPE").await?;
        let before = cluster.stream_info("DEDUPE").await?.state.last_sequence;

        let client = cluster.any_client().await?;
        for entry in ledger.entries().iter().filter(|entry| entry.id.number % 20 == 0) {
            let headwater_audit::Outcome::Acked { seq, .. } = entry.outcome else {
                continue;
            };
            let mut headers = HeaderMap::new();
            headers.insert("Nats-Msg-Id", ledger.msg_id(entry.id).as_str());
            let request = async_nats::Request::new().headers(headers).payload("again".into());
            let answer = client.send_request(entry.subject.clone(), request).await?;
            let answer: Value = serde_json::from_slice(&answer.payload)?;
            ensure!(
                answer["duplicate"] == true && answer["seq"] == seq,
                "{} was confirmed at {seq}, sent again: {answer}",
                entry.id
            );
        }
        ensure!(
            cluster.stream_info("DEDUPE").await?.state.last_sequence == before,
            "a recognised retry took a sequence"
        );
        cluster.audit_with(Verifier::new().ways(&DIRECT_VIEWS), "DEDUPE", &ledger).await?;
        Ok(())
    });
}
