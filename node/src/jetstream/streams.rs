//! Streams through the API: created and changed in the catalogue, described and purged by their leader.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use headwater_core::catalog::placement::{PlacementRequest, place};
use headwater_core::catalog::{
    CatalogCommand, CatalogRefusal, CatalogResponse, FenceNumber, NodeEntry, NodeName, Owner, Replica, StreamEntry,
    StreamKey,
};
use headwater_core::ids::{Generation, StreamSeq};
use headwater_core::stream::{Command, Purge, Records, Rejection};
use headwater_protocol::api::envelope::Success;
use headwater_protocol::api::error::{self, ApiError};
use headwater_protocol::api::page::{
    LIST_LIMIT, NAMES_LIMIT, Page, StreamListRequest, StreamListResponse, StreamNamesResponse,
};
use headwater_protocol::api::route::ApiRoute;
use headwater_protocol::api::stream::{
    ClusterInfo, PeerInfo, PurgeRequest, PurgeResponse, StepdownRequest, StreamCreateResponse, StreamInfo,
    StreamInfoRequest, StreamInfoResponse, StreamState,
};
use headwater_protocol::api::stream_config::{StreamConfig, StreamConfigRequest};
use headwater_protocol::api::stream_rules::{self, Context as Rules};
use headwater_protocol::api::{expect_no_body, level, parse_optional_body};
use headwater_protocol::rfc3339::ApiTime;
use headwater_protocol::subject;

use super::api::{Answer, ok};
use super::convert;
use crate::meta::MetaError;
use crate::node::{ACCOUNT, Context, Owner as Place};
use crate::stream::StreamReplica;
use crate::stream::commands::CommandError;

/// How long a create or update waits for the stream to be ready.
const READY_PATIENCE: Duration = Duration::from_secs(10);

/// Why a stream could not be created, changed or deleted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChangeError {
    #[error("{}", .0.description)]
    Api(ApiError),
    #[error(transparent)]
    Refused(#[from] CatalogRefusal),
    #[error(transparent)]
    Meta(#[from] MetaError),
}

impl From<ApiError> for ChangeError {
    fn from(e: ApiError) -> Self {
        Self::Api(e)
    }
}

impl From<ChangeError> for ApiError {
    fn from(e: ChangeError) -> Self {
        match e {
            ChangeError::Api(e) => e,
            ChangeError::Refused(CatalogRefusal::StreamExists) => error::STREAM_NAME_EXISTS,
            ChangeError::Refused(CatalogRefusal::StreamNotFound) => error::STREAM_NOT_FOUND,
            ChangeError::Refused(CatalogRefusal::SubjectsOverlap { .. }) => error::STREAM_SUBJECT_OVERLAP,
            ChangeError::Refused(CatalogRefusal::BadReplica { .. } | CatalogRefusal::NoReplicas) => {
                error::CLUSTER_NO_PEERS
            }
            ChangeError::Refused(why) => error::stream_invalid_config(why),
            ChangeError::Meta(_) => error::CLUSTER_NOT_AVAILABLE,
        }
    }
}

/// The leader of a stream, which is here; otherwise why it is not.
pub(crate) fn leader_of(context: &Arc<Context>, stream: &str) -> Result<Arc<StreamReplica>, ApiError> {
    let id = context.streams.id_of(stream).ok_or(error::STREAM_NOT_FOUND)?;
    match context.streams.owner(id) {
        Place::Here(replica) => Ok(replica),
        Place::Node(_) | Place::Nobody => Err(error::CLUSTER_NOT_AVAILABLE),
    }
}

/// A command's failure in the API's words.
pub(crate) fn command_error(e: &CommandError) -> ApiError {
    match e {
        CommandError::NotLeader => error::CLUSTER_NOT_AVAILABLE,
        CommandError::Unknown => error::outcome_unknown(),
        CommandError::Rejected(Rejection::Sealed) => error::STREAM_SEALED,
        CommandError::Rejected(Rejection::PurgeDenied) => error::STREAM_PURGE_NOT_PERMITTED,
        CommandError::Rejected(Rejection::DeleteDenied) => error::MESSAGE_DELETE_NOT_PERMITTED,
        CommandError::Rejected(Rejection::Removed) => error::STREAM_NOT_FOUND,
        CommandError::Rejected(_) => error::CLUSTER_NOT_AVAILABLE,
    }
}

fn rules(context: &Context, pedantic: bool) -> Rules {
    let nodes = context.meta.read(|c| c.nodes().count());
    Rules { clustered: context.is_clustered(), nodes, pedantic }
}

pub(crate) fn config_of(entry: &StreamEntry) -> StreamConfig {
    serde_json::from_value(entry.config.clone()).unwrap_or_default()
}

/// What a create came to.
pub(crate) struct Created {
    pub(crate) entry: StreamEntry,
    pub(crate) is_new: bool,
}

/// Creates a stream in the catalogue; only at the catalogue's leader.
pub(crate) async fn create_in_catalogue(
    context: &Arc<Context>,
    config: StreamConfig,
    pedantic: bool,
    owner: Option<Owner>,
    fence: Option<FenceNumber>,
) -> Result<Created, ChangeError> {
    let config = stream_rules::validate_stream_config(config, &rules(context, pedantic))?;
    convert::durability(&config).map_err(error::stream_invalid_config)?;
    let key = StreamKey::new(ACCOUNT, config.name.clone());
    if let Some(entry) = context.meta.read(|c| c.stream_by_name(&key).cloned()) {
        return if config.is_same_request(&config_of(&entry)) {
            Ok(Created { entry, is_new: false })
        } else {
            Err(CatalogRefusal::StreamExists.into())
        };
    }
    let mut stored = config.clone();
    level::stamp_stored(&mut stored.metadata, config.required_level());
    let replicas = placed(context, &key, usize::try_from(config.num_replicas).unwrap_or(1))?;
    let command = CatalogCommand::CreateStream {
        key: key.clone(),
        subjects: stored.subjects.clone(),
        config: serde_json::to_value(&stored).expect("a configuration is plain data"),
        replicas,
        owner,
    };
    match context.meta.write(fence, command).await? {
        CatalogResponse::Created { .. } | CatalogResponse::Existing { .. } => {}
        CatalogResponse::Refused(why) => return Err(why.into()),
        other => return Err(MetaError::Unknown(format!("{other:?}")).into()),
    }
    let entry = context.meta.read(|c| c.stream_by_name(&key).cloned()).ok_or(CatalogRefusal::StreamNotFound)?;
    Ok(Created { entry, is_new: true })
}

/// Where a new stream goes: to nodes that are up and have room, else to nodes that have room.
fn placed(context: &Context, key: &StreamKey, replicas: usize) -> Result<Vec<Replica>, ChangeError> {
    let down = context.unreachable_nodes();
    let low: BTreeSet<NodeName> = context.meta.read(|c| {
        let lacks = |node: &&NodeEntry| context.space.lacks(context, node.incarnation.get());
        c.nodes().filter(lacks).map(|node| node.name.clone()).collect()
    });
    let with = |avoid: BTreeSet<NodeName>| {
        let request = PlacementRequest { replicas, avoid, preferred: None, ..PlacementRequest::default() };
        context.meta.read(|c| place(c, key, &request))
    };
    let found = with(down.union(&low).cloned().collect()).or_else(|_| with(low));
    // Without regard to room there are enough: then it is room that is missing.
    found.map_err(|_| match with(BTreeSet::new()) {
        Ok(_) => error::STORAGE_RESOURCES_EXCEEDED.into(),
        // The cluster has just been founded: the others are about to be written down.
        Err(_) if context.config.peers.len() >= replicas && context.meta.read(|c| c.nodes().count()) < replicas => {
            error::CLUSTER_NOT_AVAILABLE.into()
        }
        Err(_) => error::CLUSTER_NO_PEERS.into(),
    })
}

/// Changes a stream in the catalogue; only at the catalogue's leader. Returns the entry as it is then.
pub(crate) async fn update_in_catalogue(
    context: &Arc<Context>,
    config: StreamConfig,
    pedantic: bool,
    expected: Option<Generation>,
    owner: Option<Owner>,
    fence: Option<FenceNumber>,
) -> Result<StreamEntry, ChangeError> {
    let key = StreamKey::new(ACCOUNT, config.name.clone());
    let entry = context.meta.read(|c| c.stream_by_name(&key).cloned()).ok_or(error::STREAM_NOT_FOUND)?;
    let current = config_of(&entry);
    let next = stream_rules::validate_stream_update(&current, config, &rules(context, pedantic))?;
    convert::durability(&next).map_err(error::stream_invalid_config)?;
    if next.num_replicas != current.num_replicas {
        return Err(error::stream_invalid_config("changing num_replicas is not supported yet").into());
    }
    if next == current && owner.as_ref().is_none_or(|o| entry.owner.as_ref() == Some(o)) {
        return Ok(entry);
    }
    let mut stored = next.clone();
    level::stamp_stored(&mut stored.metadata, next.required_level());
    let command = CatalogCommand::UpdateStream {
        id: entry.id,
        subjects: stored.subjects.clone(),
        config: serde_json::to_value(&stored).expect("a configuration is plain data"),
        expected_generation: expected,
        owner,
    };
    match context.meta.write(fence, command).await? {
        CatalogResponse::Updated { .. } | CatalogResponse::Done => {}
        CatalogResponse::Refused(why) => return Err(why.into()),
        other => return Err(MetaError::Unknown(format!("{other:?}")).into()),
    }
    context.meta.read(|c| c.stream_by_name(&key).cloned()).ok_or_else(|| CatalogRefusal::StreamNotFound.into())
}

/// Removes a stream from the catalogue; nodes remove the data when they see that record.
pub(crate) async fn delete_in_catalogue(
    context: &Arc<Context>,
    stream: &str,
    expected_owner: Option<Owner>,
    fence: Option<FenceNumber>,
) -> Result<(), ChangeError> {
    let key = StreamKey::new(ACCOUNT, stream);
    let entry = context.meta.read(|c| c.stream_by_name(&key).cloned()).ok_or(error::STREAM_NOT_FOUND)?;
    match context.meta.write(fence, CatalogCommand::RemoveStream { id: entry.id, expected_owner }).await? {
        CatalogResponse::Refused(why) => Err(why.into()),
        _ => Ok(()),
    }
}

/// Waits until the stream's leader has this generation, and describes it.
pub(crate) async fn ready_info(context: &Arc<Context>, entry: &StreamEntry) -> Result<StreamInfo, ApiError> {
    let deadline = tokio::time::Instant::now() + READY_PATIENCE;
    loop {
        if let Some(info) = ask(context, &entry.key.name).await
            && Generation::new(generation_of(&info)) >= entry.generation
        {
            return Ok(without_generation(info));
        }
        if tokio::time::Instant::now() >= deadline {
            return Err(error::CLUSTER_NOT_AVAILABLE);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Internal key by which a leader says which generation its description has; never shown to clients.
const GENERATION_KEY: &str = "_headwater.generation";

fn generation_of(info: &StreamInfo) -> u64 {
    info.config.metadata.get(GENERATION_KEY).and_then(|g| g.parse().ok()).unwrap_or(0)
}

fn without_generation(mut info: StreamInfo) -> StreamInfo {
    info.config.metadata.remove(GENERATION_KEY);
    info
}

/// The description of a stream from its leader, with its generation in it.
async fn ask(context: &Arc<Context>, stream: &str) -> Option<StreamInfo> {
    let id = context.streams.id_of(stream)?;
    match context.streams.owner(id) {
        Place::Here(replica) => describe(context, &replica, &StreamInfoRequest::default()).map(|(info, _)| info),
        Place::Node(node) => context.ask_stream_info(node, stream).await,
        Place::Nobody => None,
    }
}

/// A peer asks for a stream that is led here.
pub(crate) fn serve_info(context: &Arc<Context>, stream: &str) -> Option<StreamInfo> {
    let replica = leader_of(context, stream).ok()?;
    describe(context, &replica, &StreamInfoRequest::default()).map(|(info, _)| info)
}

/// Describes a stream that is led here; `None` before its configuration is applied.
fn describe(
    context: &Context,
    replica: &Arc<StreamReplica>,
    request: &StreamInfoRequest,
) -> Option<(StreamInfo, Page)> {
    let raft = replica.raft_state();
    let inner = replica.lock();
    let state = &inner.state;
    if state.generation().get() == 0 {
        return None;
    }
    let config: StreamConfig = serde_json::from_str(state.config_json()).ok()?;
    let mut config = config.for_response();
    config.metadata.insert(GENERATION_KEY.to_owned(), state.generation().get().to_string());
    let counts = state.counts();
    let time = |seq: StreamSeq| {
        // One that cannot be read is told of by the replica's phase.
        let record = inner.store.record(seq).ok().flatten();
        record.map_or(ApiTime::default(), |r| ApiTime::from_ns(r.ts().get()))
    };
    let mut subjects = BTreeMap::new();
    let mut page = Page::new(0, 0, 0);
    if !request.subjects_filter.is_empty() {
        let all: Vec<(String, u64)> = state
            .subjects()
            .subjects_matching(request.subjects_filter.as_bytes())
            .into_iter()
            .map(|(subject, count)| (String::from_utf8_lossy(&subject).into_owned(), count))
            .collect::<BTreeMap<_, _>>()
            .into_iter()
            .collect();
        page = Page::of_subjects(all.len(), request.offset);
        subjects = page.of(&all).iter().cloned().collect();
    }
    let first_ts = if counts.messages == 0 { ApiTime::default() } else { time(StreamSeq::new(counts.first_seq)) };
    let last_ts = if counts.last_ts.get() == 0 { ApiTime::default() } else { ApiTime::from_ns(counts.last_ts.get()) };
    let api_state = StreamState {
        messages: counts.messages,
        bytes: counts.bytes,
        first_seq: counts.first_seq,
        first_ts,
        last_seq: counts.last_seq,
        last_ts,
        num_subjects: counts.num_subjects,
        subjects,
        num_deleted: counts.num_deleted,
        deleted: if request.deleted_details { state.deleted().iter().collect() } else { Vec::new() },
        consumer_count: state.consumers().len() as u64,
    };
    let cluster = context.is_clustered().then(|| cluster_info(context, replica, raft.as_ref()));
    let info = StreamInfo {
        config,
        created: ApiTime::from_ns(state.created().get()),
        state: api_state,
        domain: String::new(),
        cluster,
        ts: ApiTime::from_ns(crate::clock::now().get()),
    };
    Some((info, page))
}

/// A follower that is at most this many entries behind counts as current.
const LAG_ENTRIES_MAX: u64 = 256;
/// And has answered within this time; heartbeats go out every 400 ms.
const SILENT_MS_MAX: u64 = 3_000;

/// Leader and followers, with how far each is behind.
pub(crate) fn cluster_info(
    context: &Context,
    replica: &StreamReplica,
    raft: Option<&crate::raft::GroupState>,
) -> ClusterInfo {
    let names = context.node_names();
    let mut replicas = Vec::new();
    if let Some(state) = raft {
        for id in state.members.nodes.iter().filter(|id| **id != replica.spec.raft_id.get()) {
            let matched = state.matched.iter().find(|(m, _)| m == id).map_or(0, |(_, at)| *at);
            let lag = state.accepted.saturating_sub(matched);
            let offline = !context.transport.is_up(context.node_of(*id));
            let heard = state.heard_ms.iter().find(|(m, _)| m == id).map(|(_, ms)| *ms);
            replicas.push(PeerInfo {
                name: names.get(id).cloned().unwrap_or_else(|| id.to_string()),
                current: !offline && lag <= LAG_ENTRIES_MAX && heard.is_some_and(|ms| ms <= SILENT_MS_MAX),
                offline,
                active: i64::try_from(heard.unwrap_or(0).saturating_mul(1_000_000)).unwrap_or(i64::MAX),
                lag,
                peer: format!("{id:x}"),
            });
        }
        replicas.sort_by(|a, b| a.name.cmp(&b.name));
    }
    ClusterInfo {
        name: context.cluster_name(),
        raft_group: format!("S-{}", replica.spec.group),
        leader: context.config.name.clone(),
        leader_since: None,
        replicas,
    }
}

pub(crate) async fn create(context: &Arc<Context>, route: &ApiRoute<'_>, stream: &str, payload: &[u8]) -> Answer {
    let request = StreamConfigRequest::parse(payload)?;
    stream_rules::check_subject_name(stream, &request.config)?;
    let created = create_in_catalogue(context, request.config, request.pedantic, None, None).await?;
    let info = ready_info(context, &created.entry).await?;
    ok(route, &StreamCreateResponse { info, did_create: created.is_new })
}

pub(crate) async fn update(context: &Arc<Context>, route: &ApiRoute<'_>, stream: &str, payload: &[u8]) -> Answer {
    let request = StreamConfigRequest::parse(payload)?;
    stream_rules::check_subject_name(stream, &request.config)?;
    let entry = update_in_catalogue(context, request.config, request.pedantic, None, None, None).await?;
    let info = ready_info(context, &entry).await?;
    ok(route, &StreamCreateResponse { info, did_create: false })
}

pub(crate) async fn delete(context: &Arc<Context>, route: &ApiRoute<'_>, stream: &str, payload: &[u8]) -> Answer {
    expect_no_body(payload)?;
    delete_in_catalogue(context, stream, None, None).await?;
    ok(route, &Success::YES)
}

fn entries(context: &Context, filter: &str) -> Vec<StreamEntry> {
    context.meta.read(|c| {
        let wanted = |e: &&StreamEntry| {
            filter.is_empty() || e.subjects.iter().any(|s| subject::overlaps(s.as_bytes(), filter.as_bytes()))
        };
        c.streams_of(ACCOUNT).filter(wanted).cloned().collect()
    })
}

pub(crate) fn names(context: &Arc<Context>, route: &ApiRoute<'_>, payload: &[u8]) -> Answer {
    let request: StreamListRequest = parse_optional_body(payload)?;
    let all: Vec<String> = entries(context, &request.subject).into_iter().map(|e| e.key.name).collect();
    let page = Page::new(all.len(), request.offset, NAMES_LIMIT);
    let streams = page.of(&all).to_vec();
    ok(route, &StreamNamesResponse { page, streams })
}

/// Descriptions of all streams (or those of `page`), and the names of those whose leader did not answer.
pub(crate) async fn gather(context: &Arc<Context>, only: Option<&[StreamEntry]>) -> (Vec<StreamInfo>, Vec<String>) {
    let all = only.map_or_else(|| entries(context, ""), <[StreamEntry]>::to_vec);
    let asked = all.into_iter().map(|entry| async move {
        let info = ask(context, &entry.key.name).await.map(without_generation);
        (entry.key.name, info)
    });
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for (name, info) in futures::future::join_all(asked).await {
        match info {
            Some(info) => found.push(info),
            None => missing.push(name),
        }
    }
    (found, missing)
}

pub(crate) async fn list(context: &Arc<Context>, route: &ApiRoute<'_>, payload: &[u8]) -> Answer {
    let request: StreamListRequest = parse_optional_body(payload)?;
    let all = entries(context, &request.subject);
    let page = Page::new(all.len(), request.offset, LIST_LIMIT);
    let (streams, missing) = gather(context, Some(page.of(&all))).await;
    ok(route, &StreamListResponse { page, streams, missing })
}

pub(crate) fn info(context: &Arc<Context>, route: &ApiRoute<'_>, stream: &str, payload: &[u8]) -> Answer {
    let request = StreamInfoRequest::parse(payload)?;
    let replica = leader_of(context, stream)?;
    let (info, page) = describe(context, &replica, &request).ok_or(error::CLUSTER_NOT_AVAILABLE)?;
    ok(route, &StreamInfoResponse { page, info: without_generation(info) })
}

pub(crate) async fn purge(context: &Arc<Context>, route: &ApiRoute<'_>, stream: &str, payload: &[u8]) -> Answer {
    let request = PurgeRequest::parse(payload)?;
    let replica = leader_of(context, stream)?;
    let command = Command::Purge(Purge {
        filter: Some(request.filter).filter(|f| !f.is_empty()),
        seq: Some(request.seq).filter(|s| *s > 0).map(StreamSeq::new),
        keep: Some(request.keep).filter(|k| *k > 0),
        up_to_last: StreamSeq::ZERO,
    });
    let applied = replica.command(command).await.map_err(|e| command_error(&e))?;
    ok(route, &PurgeResponse { success: true, purged: applied.removed_count })
}

pub(crate) async fn stepdown(context: &Arc<Context>, route: &ApiRoute<'_>, stream: &str, payload: &[u8]) -> Answer {
    let request = StepdownRequest::parse(payload)?;
    let replica = leader_of(context, stream)?;
    let preferred = request.preferred().map(NodeName::new);
    if replica.raft().is_none() {
        return Err(error::CLUSTER_REQUIRED);
    }
    match replica.hand_over(context, preferred.as_ref()).await {
        Ok(()) => ok(route, &Success::YES),
        Err(_) => Err(error::CLUSTER_NO_PEERS),
    }
}
