//! Consumers at the stream's leader: pulls and acks in, deliveries out.

use std::sync::Arc;
use std::time::Duration;

use headwater_core::consumer::{
    Ack, AckPolicy, AckVerb, ConsumerEvent, ConsumerId, ConsumerPump, Delivery, EndReason, PullRequest, PumpAction,
    StreamTraits, Tracking, encode_ops,
};
use headwater_core::ids::Timestamp;
use headwater_core::stream::{Command, Damaged, Records, Retention, StreamEvent, StreamView};
use headwater_protocol::ack::AckSubject;
use headwater_protocol::headers::{HeaderBuilder, name as header_name};
use headwater_protocol::rfc3339::ApiTime;

use super::replica::{Inner, StreamReplica};
use crate::broker::Inbound;
use crate::broker::route::Reach;

/// Bytes that one consumer hands out in one turn, by the stream's mean message size.
const TURN_BYTES: u64 = 1 << 20;
/// From so many bytes on that wait for a client, its consumer pauses.
const CROWDED_BYTES: usize = 8 << 20;
/// Until a leader looks again whether it still leads.
const LEASE_PAUSE_NS: u64 = 20_000_000;
/// Until a message is read again that could not be, as this process had too many files open, for one.
const READ_AGAIN_NS: u64 = 1_000_000_000;
/// The pause, by how many times [`CROWDED_BYTES`] wait.
const CROWDED_PAUSE_NS: u64 = 5_000_000;

impl StreamReplica {
    fn tracking(&self, inner: &Inner, config: &headwater_core::consumer::ConsumerConfig) -> Tracking {
        let traits = StreamTraits {
            replicated: self.is_replicated(),
            limits_retention: inner.state.settings().retention == Retention::Limits,
        };
        Tracking::of(config, traits)
    }

    /// Starts a pump for every consumer that has none, and drops those of consumers that are gone.
    pub(crate) fn start_pumps(&self, inner: &mut Inner) {
        let now = crate::clock::now();
        let missing: Vec<ConsumerId> = match &inner.leading {
            None => return,
            Some(l) => {
                inner.state.consumers().iter().map(|(id, _)| id).filter(|id| !l.pumps.contains_key(id)).collect()
            }
        };
        for id in missing {
            let Some(state) = inner.state.consumers().get(id) else { continue };
            let tracking = self.tracking(inner, state.config());
            let pump = ConsumerPump::start(id, tracking, state, now);
            if let Some(leading) = &mut inner.leading {
                leading.pumps.insert(id, pump);
            }
        }
    }

    /// What a `Consumers` entry changed, for the pumps.
    pub(crate) fn consumers_changed(&self, inner: &mut Inner, events: &[StreamEvent]) {
        let mut actions = Vec::new();
        for event in events {
            let StreamEvent::Consumers(effects) = event else { continue };
            if inner.leading.is_none() {
                continue;
            }
            self.start_pumps(inner);
            let Inner { state, leading: Some(leading), .. } = inner else { continue };
            for id in &effects.updated {
                if let (Some(pump), Some(consumer)) = (leading.pumps.get_mut(id), state.consumers().get(*id)) {
                    pump.config_changed(consumer);
                }
            }
            for id in &effects.reset {
                if let (Some(pump), Some(consumer)) = (leading.pumps.get_mut(id), state.consumers().get(*id)) {
                    pump.position_reset(consumer);
                }
            }
            for (id, _) in &effects.deleted {
                if let Some(mut pump) = leading.pumps.remove(id) {
                    let mut ended = Vec::new();
                    pump.end(EndReason::ConsumerDeleted, &mut ended);
                    actions.extend(ended.into_iter().map(|action| (*id, action)));
                }
            }
        }
        self.perform(inner, actions);
    }

    /// A pull request; `false` if the consumer does not exist here.
    pub(crate) fn pull(&self, consumer: &str, request: PullRequest) -> bool {
        let mut guard = self.lock();
        let inner = &mut *guard;
        let Some(id) = inner.state.consumers().id_of(consumer) else { return false };
        let Some(pump) = inner.leading.as_mut().and_then(|l| l.pumps.get_mut(&id)) else { return false };
        pump.pull(request, crate::clock::now());
        drop(guard);
        self.pump_wake.notify_one();
        true
    }

    /// An acknowledgement.
    pub(crate) fn ack(&self, consumer: &str, ack: Ack) {
        let mut guard = self.lock();
        let inner = &mut *guard;
        let Some(id) = inner.state.consumers().id_of(consumer) else { return };
        let Some(pump) = inner.leading.as_mut().and_then(|l| l.pumps.get_mut(&id)) else { return };
        pump.on_ack(ack, crate::clock::now());
        drop(guard);
        self.pump_wake.notify_one();
    }

    /// Closes the requests of clients that are gone, so that messages go to those that are there.
    pub(crate) fn drop_unheard_requests(&self) {
        let now = crate::clock::now();
        let mut inner = self.lock();
        let Some(leading) = &mut inner.leading else { return };
        for pump in leading.pumps.values_mut() {
            pump.retain_requests(now, |inbox| self.context.broker.has_interest(inbox));
        }
    }

    /// Polls every pump once and returns when the next one has something to do.
    pub(crate) fn pump_once(self: &Arc<Self>) -> Option<Timestamp> {
        let now = crate::clock::now();
        if !self.leads() {
            return None;
        }
        if !self.leads_alone() {
            // Somebody else may have delivered what is due here.
            return Some(now.plus_ns(LEASE_PAUSE_NS));
        }
        let mut guard = self.lock();
        let mut actions = Vec::new();
        let mut ended = Vec::new();
        {
            let Inner { state, store, leading: Some(leading), .. } = &mut *guard else { return None };
            let view = StreamView { state, records: store, has_peers: self.is_replicated() };
            let mut decided = Vec::new();
            let mean = (state.bytes() / state.messages().max(1)).max(1);
            let turn = usize::try_from(TURN_BYTES / mean).unwrap_or(usize::MAX);
            for (id, pump) in &mut leading.pumps {
                pump.limit_turn(turn);
                match state.consumers().get(*id) {
                    Some(consumer) => pump.poll(consumer, &view, now, &mut decided),
                    None => ended.push(*id),
                }
                actions.extend(decided.drain(..).map(|action| (*id, action)));
            }
            for id in ended {
                leading.pumps.remove(&id);
            }
        }
        let proposed = self.perform(&mut guard, actions);
        let deadline = {
            let Inner { state, leading: Some(leading), .. } = &mut *guard else { return None };
            let of = |(id, pump): (&ConsumerId, &ConsumerPump)| pump.next_deadline(state.consumers().get(*id)?);
            leading.pumps.iter().filter_map(of).min()
        };
        drop(guard);
        if proposed {
            self.wake.notify_one();
        }
        deadline
    }

    /// The task beside each replica that runs its consumers.
    pub(crate) async fn run_pumps(self: Arc<Self>) {
        while !self.pumps_stopped() {
            let deadline = self.pump_once();
            let now = crate::clock::now();
            match deadline {
                // More is ready, but others on this thread go first.
                Some(at) if at <= now => tokio::task::yield_now().await,
                Some(at) => {
                    let wait = Duration::from_nanos(at.since_ns(now)).min(Duration::from_secs(30));
                    tokio::select! {
                        () = self.pump_wake.notified() => {}
                        () = tokio::time::sleep(wait) => {}
                    }
                }
                None => self.pump_wake.notified().await,
            }
        }
    }

    /// Carries out what pumps decided; whether something was proposed.
    pub(crate) fn perform(&self, inner: &mut Inner, actions: Vec<(ConsumerId, PumpAction)>) -> bool {
        let mut proposed = false;
        for (consumer, action) in actions {
            match action {
                PumpAction::Propose { token, ops } => {
                    let mut body = Vec::with_capacity(64);
                    encode_ops(&ops, &mut body);
                    let Inner { state, leading: Some(leading), .. } = &mut *inner else { continue };
                    match leading.admission.propose(state, Command::Consumers(body.into()), crate::clock::now()) {
                        Ok(p) => {
                            leading.waiters(p.ordinal).tokens.push((consumer, token));
                            proposed = true;
                        }
                        Err(_) => {
                            if let Some(pump) = leading.pumps.get_mut(&consumer) {
                                pump.refused(token);
                            }
                        }
                    }
                }
                PumpAction::Deliver(delivery) => {
                    let Some(state) = inner.state.consumers().get(consumer) else { continue };
                    let config = state.config();
                    let reach = match self.deliver(inner, &config.name, config.headers_only, &delivery) {
                        Ok(Some(reach)) => reach,
                        Ok(None) => continue,
                        Err(_) => {
                            self.deliver_nothing(inner, consumer, &delivery);
                            if inner.leading.is_none() {
                                break;
                            }
                            continue;
                        }
                    };
                    let pump = inner.leading.as_mut().and_then(|l| l.pumps.get_mut(&consumer));
                    let Some(pump) = pump else { continue };
                    let now = crate::clock::now();
                    if !reach.any {
                        // Its client is gone: the next one gets the message.
                        pump.retain_requests(now, |inbox| self.context.broker.has_interest(inbox));
                        let verb = AckVerb::Nak { delay_ns: None };
                        pump.on_ack(Ack { seq: delivery.seq, cseq: delivery.cseq, verb, reply: None }, now);
                    } else if reach.pending_bytes >= CROWDED_BYTES {
                        let times = (reach.pending_bytes / CROWDED_BYTES) as u64;
                        pump.pause(now.plus_ns(times * CROWDED_PAUSE_NS));
                    }
                }
                PumpAction::Status { to, status } => {
                    let block = status.header_block();
                    self.context.broker.publish(&Inbound {
                        subject: &to,
                        reply: None,
                        headers: block.as_bytes(),
                        payload: &[],
                    });
                }
                PumpAction::AckReply { to } => {
                    self.context.broker.publish(&Inbound { subject: &to, reply: None, headers: &[], payload: &[] });
                }
                PumpAction::Event(event) => {
                    if let Some(state) = inner.state.consumers().get(consumer) {
                        self.advise(&state.config().name, &event);
                    }
                }
            }
        }
        proposed
    }

    /// A message that was to be delivered cannot be read. With peers this replica stops, and whoever leads next delivers
    /// it; of the only copy a consumer goes on around it, and hears of it by the advisory of a terminated message.
    fn deliver_nothing(&self, inner: &mut Inner, consumer: ConsumerId, delivery: &Delivery) {
        let verb = match self.met_damage(inner) {
            Some(met) if !met.passes && self.is_replicated() => return self.fail(inner, met.why),
            // A later acknowledgement settles it, and must not come from here: it would settle what came before, too.
            Some(met) if !met.passes && self.acks_all(inner, consumer) => return,
            Some(met) if !met.passes => AckVerb::Term { reason: Some("it cannot be read".into()) },
            _ => AckVerb::Nak { delay_ns: Some(READ_AGAIN_NS) },
        };
        if let Some(pump) = inner.leading.as_mut().and_then(|l| l.pumps.get_mut(&consumer)) {
            pump.on_ack(Ack { seq: delivery.seq, cseq: delivery.cseq, verb, reply: None }, crate::clock::now());
        }
    }

    fn acks_all(&self, inner: &Inner, consumer: ConsumerId) -> bool {
        inner.state.consumers().get(consumer).is_some_and(|state| state.config().ack_policy == AckPolicy::All)
    }

    /// Sends one message to a consumer's inbox. The client sees the message's own subject. `None`: the message was
    /// removed since the pump decided, and the consumer's state says so too, by the same entry.
    fn deliver(
        &self,
        inner: &Inner,
        consumer: &str,
        headers_only: bool,
        delivery: &Delivery,
    ) -> Result<Option<Reach>, Damaged> {
        let Some(record) = inner.store.record(delivery.seq)? else { return Ok(None) };
        let mut ack = Vec::with_capacity(96);
        AckSubject {
            domain: None,
            stream: &self.spec.name,
            consumer,
            delivered: u64::from(delivery.deliveries),
            stream_seq: delivery.seq.get(),
            consumer_seq: delivery.cseq.get(),
            timestamp_ns: record.ts().get(),
            pending: delivery.pending,
        }
        .write(&mut ack);
        if headers_only {
            let mut headers = HeaderBuilder::from_block(record.headers());
            headers.add_number(header_name::MSG_SIZE, record.payload().len() as u64);
            let block = headers.finish();
            let msg = Inbound { subject: record.subject(), reply: Some(&ack), headers: &block, payload: &[] };
            return Ok(Some(self.context.broker.deliver(&delivery.to, &msg)));
        }
        let msg = Inbound {
            subject: record.subject(),
            reply: Some(&ack),
            headers: record.headers(),
            payload: record.payload(),
        };
        Ok(Some(self.context.broker.deliver(&delivery.to, &msg)))
    }

    /// Advisories, for whoever listens.
    fn advise(&self, consumer: &str, event: &ConsumerEvent) {
        let (kind, subject, mut body) = match event {
            ConsumerEvent::MaxDeliveries { seq, deliveries } => (
                "max_deliver",
                "MAX_DELIVERIES",
                serde_json::json!({"stream_seq": seq.get(), "deliveries": deliveries}),
            ),
            ConsumerEvent::Naked { seq, cseq, deliveries } => (
                "nak",
                "MSG_NAKED",
                serde_json::json!({"consumer_seq": cseq.get(), "stream_seq": seq.get(), "deliveries": deliveries}),
            ),
            ConsumerEvent::Terminated { seq, cseq, deliveries, reason } => (
                "terminated",
                "MSG_TERMINATED",
                serde_json::json!({"consumer_seq": cseq.get(), "stream_seq": seq.get(), "deliveries": deliveries, "reason": reason}),
            ),
        };
        let subject = format!("$JS.EVENT.ADVISORY.CONSUMER.{subject}.{}.{consumer}", self.spec.name);
        if !self.context.broker.has_interest(subject.as_bytes()) {
            return;
        }
        body["type"] = format!("io.nats.jetstream.advisory.v1.{kind}").into();
        body["id"] = self.context.random_name().into();
        body["timestamp"] = ApiTime::from_ns(crate::clock::now().get()).to_string().into();
        body["stream"] = self.spec.name.clone().into();
        body["consumer"] = consumer.into();
        let payload = body.to_string();
        self.context.broker.publish(&Inbound {
            subject: subject.as_bytes(),
            reply: None,
            headers: &[],
            payload: payload.as_bytes(),
        });
    }
}
