//! API requests with an answer: executed where they must be, whichever node the client is on.

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use headwater_protocol::api::envelope;
use headwater_protocol::api::error::{self, ApiError};
use headwater_protocol::api::level;
use headwater_protocol::api::route::ApiRoute;

use super::{account, consumers, kind, messages, streams};
use crate::broker::Inbound;
use crate::node::{Context, Owner};
use crate::transport::NodeId;

/// A request is passed on at most so often: leadership may move while it travels.
const HOPS_MAX: u8 = 3;
/// How long a request looks for a leader before it is told that there is none.
const LEADER_PATIENCE: Duration = Duration::from_secs(4);
/// How long a node waits for another node's answer.
const CALL_PATIENCE: Duration = Duration::from_secs(15);
const RETRY: Duration = Duration::from_millis(50);

/// The result of one request: the JSON after `type`, or an error.
pub(crate) type Answer = Result<String, ApiError>;

/// Success as an answer.
pub(crate) fn ok<T: serde::Serialize>(route: &ApiRoute<'_>, payload: &T) -> Answer {
    Ok(envelope::success(route.response_type(), payload))
}

/// A request from a client, or from inside (a stream that captures API subjects never answers).
pub(crate) fn serve_client(context: &Arc<Context>, msg: &Inbound<'_>) {
    let (subject, headers) = (Bytes::copy_from_slice(msg.subject), Bytes::copy_from_slice(msg.headers));
    let (payload, reply) = (Bytes::copy_from_slice(msg.payload), msg.reply.map(Bytes::copy_from_slice));
    let context = Arc::clone(context);
    tokio::spawn(async move {
        let body = api_call(&context, &subject, &headers, &payload).await;
        if let Some(reply) = reply {
            context.broker.publish(&Inbound { subject: &reply, reply: None, headers: &[], payload: &body });
        }
    });
}

/// Executes a request here or where it belongs, and returns the response body.
pub(crate) async fn api_call(context: &Arc<Context>, subject: &[u8], headers: &[u8], payload: &[u8]) -> Bytes {
    context.api_requests(1);
    let body = call(context, 0, subject, headers, payload).await;
    if body.len() < 1024 && body.windows(9).any(|w| w == b"\"error\":{") {
        context.api_errors(1);
    }
    body
}

async fn call(context: &Arc<Context>, hops: u8, subject: &[u8], headers: &[u8], payload: &[u8]) -> Bytes {
    let Some(route) = ApiRoute::parse(subject) else { return Bytes::new() };
    let fail = |e: &ApiError| Bytes::from(envelope::failure(route.response_type(), e));
    if let Err(e) = level::check(headers) {
        return fail(&e);
    }
    // Nobody can tell when such a node joins, and a request that is carried out long after its sender gave up helps nobody.
    if context.is_clustered() && context.identity.cluster_id().is_none() {
        return fail(&error::CLUSTER_NOT_AVAILABLE);
    }
    let deadline = tokio::time::Instant::now() + LEADER_PATIENCE;
    loop {
        match place(context, &route) {
            Place::Here => match execute(context, &route, payload).await {
                // Leadership moved while it was handled, and nothing was done: look again.
                Err(e) if e == error::CLUSTER_NOT_AVAILABLE && hops == 0 && tokio::time::Instant::now() < deadline => {}
                Ok(body) => return Bytes::from(body),
                Err(e) => return fail(&e),
            },
            Place::Node(node) if hops < HOPS_MAX => {
                let request = encode(hops + 1, subject, headers, payload);
                match context.transport.request(node, kind::API_CALL, &[request], CALL_PATIENCE).await {
                    Ok(body) if !body.is_empty() => return body,
                    Ok(_) => {}
                    Err(error) => tracing::debug!(%error, node, "api call to a peer failed"),
                }
            }
            Place::Node(_) | Place::Nobody => {}
        }
        // A relayed request goes back to where it came from, which looks again.
        if hops > 0 {
            return Bytes::new();
        }
        if tokio::time::Instant::now() >= deadline {
            return fail(&error::CLUSTER_NOT_AVAILABLE);
        }
        tokio::time::sleep(RETRY).await;
    }
}

enum Place {
    Here,
    Node(NodeId),
    Nobody,
}

fn meta_leader(context: &Context) -> Place {
    match context.meta.leader() {
        Some(node) if node == context.node_id => Place::Here,
        Some(node) => Place::Node(node),
        None => Place::Nobody,
    }
}

fn place(context: &Arc<Context>, route: &ApiRoute<'_>) -> Place {
    use ApiRoute as R;
    let stream = match route {
        R::StreamCreate { .. } | R::StreamUpdate { .. } | R::StreamDelete { .. } | R::MetaLeaderStepdown => {
            return meta_leader(context);
        }
        R::StreamInfo { stream }
        | R::StreamPurge { stream }
        | R::StreamMsgGet { stream }
        | R::StreamMsgDelete { stream }
        | R::StreamLeaderStepdown { stream }
        | R::ConsumerCreate { stream, .. }
        | R::ConsumerDurableCreate { stream, .. }
        | R::ConsumerNames { stream }
        | R::ConsumerList { stream }
        | R::ConsumerInfo { stream, .. }
        | R::ConsumerDelete { stream, .. }
        | R::ConsumerPause { stream, .. }
        | R::ConsumerReset { stream, .. }
        | R::ConsumerLeaderStepdown { stream, .. } => stream,
        _ => return Place::Here,
    };
    match context.streams.id_of(stream) {
        Some(id) => match context.streams.owner(id) {
            Owner::Here(replica) if replica.leads_alone() => Place::Here,
            // It may have been stopped while another one was elected: it is looked again.
            Owner::Here(_) => Place::Nobody,
            Owner::Node(node) => Place::Node(node),
            Owner::Nobody => Place::Nobody,
        },
        // This node's catalogue may be behind: the leader's is not.
        None => meta_leader(context),
    }
}

async fn execute(context: &Arc<Context>, route: &ApiRoute<'_>, payload: &[u8]) -> Answer {
    use ApiRoute as R;
    match route {
        R::Info => account::info(context, route).await,
        R::StreamCreate { stream } => streams::create(context, route, stream, payload).await,
        R::StreamUpdate { stream } => streams::update(context, route, stream, payload).await,
        R::StreamDelete { stream } => streams::delete(context, route, stream, payload).await,
        R::StreamNames => streams::names(context, route, payload),
        R::StreamList => streams::list(context, route, payload).await,
        R::StreamInfo { stream } => streams::info(context, route, stream, payload),
        R::StreamPurge { stream } => streams::purge(context, route, stream, payload).await,
        R::StreamLeaderStepdown { stream } => streams::stepdown(context, route, stream, payload).await,
        R::StreamMsgGet { stream } => messages::get(context, route, stream, payload),
        R::StreamMsgDelete { stream } => messages::delete(context, route, stream, payload).await,
        R::ConsumerCreate { stream, .. } | R::ConsumerDurableCreate { stream, .. } => {
            consumers::create(context, route, stream, payload).await
        }
        R::ConsumerNames { stream } => consumers::names(context, route, stream, payload),
        R::ConsumerList { stream } => consumers::list(context, route, stream, payload),
        R::ConsumerInfo { stream, consumer } => consumers::info(context, route, stream, consumer, payload),
        R::ConsumerDelete { stream, consumer } => consumers::delete(context, route, stream, consumer, payload).await,
        R::ConsumerPause { stream, consumer } => consumers::pause(context, route, stream, consumer, payload).await,
        R::ConsumerLeaderStepdown { stream, .. } => streams::stepdown(context, route, stream, payload).await,
        R::MetaLeaderStepdown => account::meta_stepdown(context, route).await,
        R::Unknown => Err(error::BAD_REQUEST),
        // Endpoints that are known and not served: said plainly, so that nobody takes it for a typing error.
        _ => Err(not_served(route)),
    }
}

fn not_served(route: &ApiRoute<'_>) -> ApiError {
    let name = format!("{route:?}");
    let name = name.split([' ', '{']).next().unwrap_or_default().to_owned();
    ApiError {
        code: 501,
        err_code: error::BAD_REQUEST.err_code,
        description: format!("{name} is not supported by this server").into(),
    }
}

fn encode(hops: u8, subject: &[u8], headers: &[u8], payload: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(8 + subject.len() + headers.len() + payload.len());
    out.put_u8(hops);
    out.put_u16_le(u16::try_from(subject.len()).expect("a control line is at most 4 KiB"));
    out.put_u32_le(u32::try_from(headers.len()).expect("bounded by max_payload"));
    for part in [subject, headers, payload] {
        out.extend_from_slice(part);
    }
    out.freeze()
}

/// A request as it travels between nodes.
struct Call<'a> {
    hops: u8,
    subject: &'a [u8],
    headers: &'a [u8],
    payload: &'a [u8],
}

/// Reads what [`encode`] wrote.
fn decode(body: &[u8]) -> Option<Call<'_>> {
    let hops = *body.first()?;
    let s = usize::from(u16::from_le_bytes(body.get(1..3)?.try_into().ok()?));
    let h = u32::from_le_bytes(body.get(3..7)?.try_into().ok()?) as usize;
    let (subject, rest) = body.get(7..)?.split_at_checked(s)?;
    let (headers, payload) = rest.split_at_checked(h)?;
    Some(Call { hops, subject, headers, payload })
}

/// Any bytes as an API_CALL: see [`crate::decoders`].
///
/// # Panics
/// If the decoder contradicts itself.
pub(super) fn decode_any(body: &[u8]) {
    if let Some(Call { hops, subject, headers, payload }) = decode(body) {
        assert_eq!(encode(hops, subject, headers, payload), body);
    }
}

/// An API_CALL from another node; an empty answer means "not here, look again".
pub(crate) async fn serve_api_call(context: &Arc<Context>, body: Bytes) -> Result<Vec<Bytes>, String> {
    let Some(Call { hops, subject, headers, payload }) = decode(&body) else {
        return Err("api call does not parse".to_owned());
    };
    Ok(vec![call(context, hops, subject, headers, payload).await])
}
