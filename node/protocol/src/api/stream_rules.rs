//! What a stream configuration must satisfy, which values are put right silently, and which changes are allowed.
//!
//! The texts are nats-server's where it refuses the same thing.

use crate::api::error::{self, ApiError};
use crate::api::stream_config::{
    Discard, HEADWATER_KEYS, PersistMode, Retention, Storage, StreamConfig, keep_unnamed_settings, unknown_setting,
};
use crate::api::{level, unsupported};
use crate::subject::{self, FilterSet};

/// Most replicas of a stream.
pub const REPLICAS_MAX: i64 = 5;
/// Longest description, bytes.
pub const DESCRIPTION_BYTES_MAX: usize = 4096;
/// Shortest age limit and duplicate window, ns.
pub const SHORTEST_WINDOW_NS: i64 = 100_000_000;
/// Most steps that comparing a stream's subjects with each other may take ([`FilterSet::work`]): 60 000 subjects of
/// three tokens may have 16 layouts, 600 subjects any. Without a bound one request keeps every node busy for minutes,
/// now and whenever the catalogue's log is read again.
pub const SUBJECTS_WORK_MAX: usize = 4_000_000;
/// Duplicate window when none is asked for, ns.
pub const DEFAULT_DUPLICATE_WINDOW_NS: i64 = 120_000_000_000;

/// What the rules need to know about the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context {
    /// Whether replicas can exist at all.
    pub clustered: bool,
    /// Nodes that may hold a replica.
    pub nodes: usize,
    /// Refuse instead of correcting silently.
    pub pedantic: bool,
}

fn invalid<T>(why: impl std::fmt::Display) -> Result<T, ApiError> {
    Err(error::stream_invalid_config(why))
}

/// Checks that the name in the request's subject is the configuration's.
///
/// # Errors
/// `10056`.
pub fn check_subject_name(in_subject: &str, config: &StreamConfig) -> Result<(), ApiError> {
    if config.name == in_subject { Ok(()) } else { Err(error::STREAM_MISMATCH) }
}

/// Checks a configuration to be created and puts its defaults in.
///
/// # Errors
/// The first rule that is broken, mostly `10052`.
pub fn validate_stream_config(config: StreamConfig, context: &Context) -> Result<StreamConfig, ApiError> {
    if config.sealed {
        check_name(&config)?;
        return invalid("stream configuration for create can not be sealed");
    }
    if config.mirror_direct && config.mirror.is_none() {
        check_name(&config)?;
        return invalid("stream has no mirror but does have mirror direct");
    }
    normalized(config, context)
}

/// Checks a change of `current` to `wanted` and puts defaults in. `headwater.*` metadata that `wanted` does not name
/// stays as it is.
///
/// # Errors
/// The first rule that is broken, mostly `10052`.
pub fn validate_stream_update(
    current: &StreamConfig,
    wanted: StreamConfig,
    context: &Context,
) -> Result<StreamConfig, ApiError> {
    let mut wanted = wanted;
    if current.mirror != wanted.mirror && current.mirror.is_some() && wanted.mirror.is_some() {
        return Err(error::MIRROR_NOT_UPDATABLE);
    }
    keep_unnamed_settings(&mut wanted.metadata, &current.metadata);
    if wanted.first_seq == 0 {
        // It only had a meaning at creation; leaving it out is no wish to change it.
        wanted.first_seq = current.first_seq;
    }
    let mut next = normalized(wanted, context)?;
    if current.sealed && !next.sealed {
        return invalid("stream configuration update can not unseal a sealed stream");
    }
    // What was asked for is checked, not what sealing makes of it: it denies deletes and purges whatever was asked.
    check_transition(current, &next)?;
    if next.sealed {
        seal(&mut next);
    }
    Ok(next)
}

/// A sealed stream never changes again: nothing expires, nothing is taken in or out.
fn seal(config: &mut StreamConfig) {
    config.max_age = 0;
    config.discard = Discard::New;
    config.deny_delete = true;
    config.deny_purge = true;
    config.allow_rollup_hdrs = false;
}

fn check_transition(current: &StreamConfig, next: &StreamConfig) -> Result<(), ApiError> {
    let update = |what: &str| invalid(format_args!("stream configuration update can not {what}"));
    if current.name != next.name {
        return update("change the name");
    }
    if current.storage != next.storage {
        return update("change storage type");
    }
    if current.retention != next.retention
        && (current.retention == Retention::WorkQueue || next.retention == Retention::WorkQueue)
    {
        return update("change retention policy to/from workqueue");
    }
    if current.persist_mode != next.persist_mode {
        return update("change persist mode");
    }
    if current.allow_msg_counter != next.allow_msg_counter {
        return update("change message counter setting");
    }
    if current.deny_delete && !next.deny_delete {
        return update("cancel deny message deletes");
    }
    if current.deny_purge && !next.deny_purge {
        return update("cancel deny purge");
    }
    if current.allow_msg_ttl && !next.allow_msg_ttl {
        return invalid("message TTL status can not be disabled");
    }
    if current.allow_msg_schedules && !next.allow_msg_schedules {
        return invalid("message schedules can not be disabled");
    }
    if current.first_seq != next.first_seq {
        return update("change first sequence");
    }
    Ok(())
}

fn check_name(config: &StreamConfig) -> Result<(), ApiError> {
    let name = config.name.as_str();
    if name.len() > subject::NAME_BYTES_MAX {
        return invalid(format_args!("stream name is too long, maximum allowed is {}", subject::NAME_BYTES_MAX));
    }
    if name.contains(['/', '\\']) {
        return Err(error::STREAM_NAME_PATH_SEPARATORS);
    }
    if !subject::is_valid_name(name) {
        return invalid("stream name is required and can not contain '.', '*', '>', '\\', '/'");
    }
    Ok(())
}

fn normalized(mut config: StreamConfig, context: &Context) -> Result<StreamConfig, ApiError> {
    check_name(&config)?;
    unsupported::check_stream(&config)?;
    if config.description.len() > DESCRIPTION_BYTES_MAX {
        return invalid(format_args!("stream description is too long, maximum allowed is {DESCRIPTION_BYTES_MAX}"));
    }
    if level::size(&config.metadata) > level::METADATA_BYTES_MAX {
        return invalid(format_args!("stream metadata exceeds maximum size of {} bytes", level::METADATA_BYTES_MAX));
    }
    if let Some(key) = unknown_setting(&config.metadata, &HEADWATER_KEYS) {
        return invalid(format_args!("metadata key {key:?} is not known; there are {}", HEADWATER_KEYS.join(", ")));
    }
    put_limits_right(&mut config, context)?;
    put_windows_right(&mut config, context.pedantic)?;
    check_replicas(&mut config, context)?;
    check_policies(&config)?;
    check_subjects(&mut config)?;
    let required = config.required_level();
    level::stamp_stored(&mut config.metadata, required);
    Ok(config)
}

fn put_limits_right(config: &mut StreamConfig, context: &Context) -> Result<(), ApiError> {
    let mut size = i64::from(config.max_msg_size);
    let limits = [
        ("max_msgs", &mut config.max_msgs),
        ("max_msgs_per_subject", &mut config.max_msgs_per_subject),
        ("max_bytes", &mut config.max_bytes),
        ("max_msg_size", &mut size),
        ("max_consumers", &mut config.max_consumers),
    ];
    for (field, limit) in limits {
        if *limit < -1 && context.pedantic {
            return Err(error::pedantic(format_args!("{field} must be set to -1")));
        }
        if *limit < 1 {
            *limit = -1;
        }
    }
    // It came from an `i32` or is -1.
    config.max_msg_size = i32::try_from(size).unwrap_or(-1);
    Ok(())
}

fn put_windows_right(config: &mut StreamConfig, pedantic: bool) -> Result<(), ApiError> {
    if config.max_age < 0 {
        return invalid("max age can not be negative");
    }
    if config.max_age > 0 && config.max_age < SHORTEST_WINDOW_NS {
        return invalid("max age needs to be >= 100ms");
    }
    if config.duplicate_window < 0 {
        return invalid("duplicates window can not be negative");
    }
    if config.duplicate_window == 0 {
        let bounded_by_age = config.max_age > 0 && config.max_age < DEFAULT_DUPLICATE_WINDOW_NS;
        if bounded_by_age && pedantic {
            return Err(error::pedantic("duplicate window cannot be bigger than max age"));
        }
        config.duplicate_window = if bounded_by_age { config.max_age } else { DEFAULT_DUPLICATE_WINDOW_NS };
    }
    if config.max_age > 0 && config.duplicate_window > config.max_age {
        return invalid("duplicates window can not be larger then max age");
    }
    if config.duplicate_window < SHORTEST_WINDOW_NS {
        return invalid("duplicates window needs to be >= 100ms");
    }
    Ok(())
}

fn check_replicas(config: &mut StreamConfig, context: &Context) -> Result<(), ApiError> {
    match config.num_replicas {
        ..0 => return Err(error::REPLICAS_COUNT_NEGATIVE),
        0 => config.num_replicas = 1,
        _ => {}
    }
    if config.num_replicas > REPLICAS_MAX {
        return invalid(format_args!("maximum replicas is {REPLICAS_MAX}"));
    }
    if config.persist_mode == PersistMode::Async {
        check_async(config)?;
    }
    if config.num_replicas > 1 && !context.clustered {
        return Err(error::STREAM_REPLICAS_NOT_SUPPORTED);
    }
    if usize::try_from(config.num_replicas).is_ok_and(|replicas| replicas > context.nodes.max(1)) {
        return Err(error::CLUSTER_NO_PEERS);
    }
    Ok(())
}

fn check_async(config: &StreamConfig) -> Result<(), ApiError> {
    if config.storage != Storage::File {
        return invalid("async persist mode is only supported on file storage");
    }
    if config.num_replicas > 1 {
        return invalid("async persist mode is not supported on replicated streams");
    }
    if config.allow_atomic {
        return invalid("async persist mode is not supported with atomic batch publish");
    }
    Ok(())
}

fn check_policies(config: &StreamConfig) -> Result<(), ApiError> {
    if config.discard_new_per_subject {
        if config.discard != Discard::New {
            return invalid("discard new per subject requires discard new policy to be set");
        }
        if config.max_msgs_per_subject <= 0 {
            return invalid("discard new per subject requires max msgs per subject > 0");
        }
    }
    if config.deny_purge && config.allow_rollup_hdrs {
        return invalid("roll-ups require the purge permission");
    }
    Ok(())
}

fn check_subjects(config: &mut StreamConfig) -> Result<(), ApiError> {
    if config.subjects.is_empty() {
        config.subjects.push(config.name.clone());
    }
    let mut earlier = FilterSet::new();
    for wanted in &config.subjects {
        let bytes = wanted.as_bytes();
        if !subject::is_valid(bytes) {
            return invalid("invalid subject");
        }
        if !config.no_ack {
            check_reserved(bytes)?;
        } else if wanted == ">" && config.num_replicas > 1 {
            return invalid("capturing all subjects is not supported on replicated streams");
        }
        if let Some(other) = earlier.overlapping(bytes) {
            return invalid(format_args!("subject {:?} overlaps with {wanted:?}", config.subjects[other]));
        }
        earlier.insert(bytes);
        if earlier.work() > SUBJECTS_WORK_MAX {
            return invalid(format_args!(
                "{} subjects have their wildcards in too many different places to be compared",
                config.subjects.len()
            ));
        }
    }
    Ok(())
}

/// A stream that stores API traffic would answer requests with acknowledgements, so it must not acknowledge.
fn check_reserved(wanted: &[u8]) -> Result<(), ApiError> {
    if wanted == b">" {
        return invalid("capturing all subjects requires no-ack to be true");
    }
    let reserved =
        |filter: &[u8], allowed: &[u8]| subject::overlaps(wanted, filter) && !subject::is_subset(wanted, allowed);
    // A single `*` or similar overlaps formally with nothing here: these filters have at least two tokens.
    if reserved(b"$JS.>", b"$JS.EVENT.>") || reserved(b"$JSC.>", b"") || reserved(b"$NRG.>", b"") {
        return invalid("subjects that overlap with jetstream api require no-ack to be true");
    }
    if reserved(b"$SYS.>", b"$SYS.ACCOUNT.>") {
        return invalid("subjects that overlap with system api require no-ack to be true");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
