use super::*;
use crate::api::stream_config::StreamConfigRequest;

const ALONE: Context = Context { clustered: false, nodes: 1, pedantic: false };
const CLUSTER: Context = Context { clustered: true, nodes: 3, pedantic: false };

fn parse(json: &str) -> StreamConfig {
    StreamConfigRequest::parse(json.as_bytes()).unwrap().config
}

fn created(json: &str) -> StreamConfig {
    validate_stream_config(parse(json), &ALONE).unwrap_or_else(|error| panic!("{json}: {error}"))
}

fn refused(json: &str, context: &Context) -> (u16, String) {
    let error = validate_stream_config(parse(json), context).unwrap_err();
    (error.err_code, error.description.into_owned())
}

#[test]
fn defaults() {
    let config = created(r#"{"name":"x","max_msgs":0,"max_bytes":-7,"max_msg_size":-9,"max_msgs_per_subject":-4}"#);
    assert_eq!(config.subjects, ["x"]);
    assert_eq!((config.max_msgs, config.max_bytes, config.max_msg_size), (-1, -1, -1));
    assert_eq!((config.max_msgs_per_subject, config.max_consumers), (-1, -1));
    assert_eq!((config.num_replicas, config.duplicate_window), (1, 120_000_000_000));
    assert_eq!(config.metadata.get("_nats.req.level").map(String::as_str), Some("0"));
    assert_eq!(created(r#"{"name":"x","max_age":1000000000}"#).duplicate_window, 1_000_000_000);
    // Validating again changes nothing: stored configurations are fixed points.
    assert_eq!(validate_stream_config(config.clone(), &ALONE), Ok(config));
}

#[test]
fn what_nats_bench_creates_is_accepted() {
    let config = created(
        r#"{"name":"benchstream","subjects":["benchsubject"],"retention":"limits","max_consumers":-1,"max_msgs":-1,
            "max_bytes":1073741824,"discard":"new","max_age":0,"max_msgs_per_subject":-1,"max_msg_size":-1,
            "storage":"file","num_replicas":1,"duplicate_window":120000000000,"allow_direct":true,"allow_atomic":true,
            "allow_batched":true}"#,
    );
    assert!(config.allow_atomic && config.allow_batched && config.allow_direct);
    assert_eq!(config.metadata.get("_nats.req.level").map(String::as_str), Some("4"));
}

#[test]
fn refusals_of_create() {
    let long_name = format!(r#"{{"name":"{}"}}"#, "x".repeat(256));
    let long_description = format!(r#"{{"name":"x","description":"{}"}}"#, "x".repeat(5000));
    let long_metadata = format!(r#"{{"name":"x","metadata":{{"a":"{}"}}}}"#, "b".repeat(140_000));
    for (json, code, text) in [
        (r#"{"name":""}"#, 10052, "stream name is required and can not contain '.', '*', '>', '\\', '/'"),
        (r#"{"name":"a*"}"#, 10052, "stream name is required and can not contain '.', '*', '>', '\\', '/'"),
        (r#"{"name":"a b"}"#, 10052, "stream name is required and can not contain '.', '*', '>', '\\', '/'"),
        (r#"{"name":"a/b"}"#, 10128, "Stream name can not contain path separators"),
        (&long_name, 10052, "stream name is too long, maximum allowed is 255"),
        (&long_description, 10052, "stream description is too long, maximum allowed is 4096"),
        (&long_metadata, 10052, "stream metadata exceeds maximum size of 131072 bytes"),
        (r#"{"name":"x","subjects":["a..b"]}"#, 10052, "invalid subject"),
        (r#"{"name":"x","subjects":["q","q"]}"#, 10052, "subject \"q\" overlaps with \"q\""),
        (r#"{"name":"x","subjects":["q.>","q.*"]}"#, 10052, "subject \"q.>\" overlaps with \"q.*\""),
        (
            r#"{"name":"x","subjects":["$JS.API.>"]}"#,
            10052,
            "subjects that overlap with jetstream api require no-ack to be true",
        ),
        (
            r#"{"name":"x","subjects":["$JSC.x"]}"#,
            10052,
            "subjects that overlap with jetstream api require no-ack to be true",
        ),
        (
            r#"{"name":"x","subjects":["$SYS.>"]}"#,
            10052,
            "subjects that overlap with system api require no-ack to be true",
        ),
        (r#"{"name":"x","subjects":[">"]}"#, 10052, "capturing all subjects requires no-ack to be true"),
        (r#"{"name":"x","num_replicas":-1}"#, 10133, "replicas count cannot be negative"),
        (r#"{"name":"x","num_replicas":3}"#, 10074, "replicas > 1 not supported in non-clustered mode"),
        (r#"{"name":"x","num_replicas":6}"#, 10052, "maximum replicas is 5"),
        (r#"{"name":"x","max_age":1}"#, 10052, "max age needs to be >= 100ms"),
        (r#"{"name":"x","max_age":-1}"#, 10052, "max age can not be negative"),
        (r#"{"name":"x","duplicate_window":99999999}"#, 10052, "duplicates window needs to be >= 100ms"),
        (r#"{"name":"x","duplicate_window":-1}"#, 10052, "duplicates window can not be negative"),
        (
            r#"{"name":"x","max_age":1000000000,"duplicate_window":2000000000}"#,
            10052,
            "duplicates window can not be larger then max age",
        ),
        (
            r#"{"name":"x","discard":"new","discard_new_per_subject":true}"#,
            10052,
            "discard new per subject requires max msgs per subject > 0",
        ),
        (
            r#"{"name":"x","discard_new_per_subject":true,"max_msgs_per_subject":1}"#,
            10052,
            "discard new per subject requires discard new policy to be set",
        ),
        (r#"{"name":"x","deny_purge":true,"allow_rollup_hdrs":true}"#, 10052, "roll-ups require the purge permission"),
        (r#"{"name":"x","sealed":true}"#, 10052, "stream configuration for create can not be sealed"),
        (r#"{"name":"x","mirror_direct":true}"#, 10052, "stream has no mirror but does have mirror direct"),
        (
            r#"{"name":"x","persist_mode":"async","allow_atomic":true}"#,
            10052,
            "async persist mode is not supported with atomic batch publish",
        ),
        (
            r#"{"name":"x","persist_mode":"async","storage":"memory"}"#,
            10052,
            "async persist mode is only supported on file storage",
        ),
        (
            r#"{"name":"x","persist_mode":"async","num_replicas":3}"#,
            10052,
            "async persist mode is not supported on replicated streams",
        ),
        (r#"{"name":"x","mirror":{"name":"y"}}"#, 10052, "mirror is not supported by this server"),
        (r#"{"name":"x","retention":"workqueue"}"#, 10052, "retention: workqueue is not supported by this server"),
    ] {
        assert_eq!(refused(json, &ALONE), (code, text.to_owned()), "{json:.80}");
    }
    assert_eq!(refused(r#"{"name":"x","num_replicas":5}"#, &CLUSTER).0, 10005);
    assert!(validate_stream_config(parse(r#"{"name":"x","num_replicas":3}"#), &CLUSTER).is_ok());
    let pedantic = Context { pedantic: true, ..ALONE };
    assert_eq!(
        refused(r#"{"name":"x","max_msgs":-5}"#, &pedantic),
        (10157, "pedantic mode: max_msgs must be set to -1".into())
    );
    assert!(validate_stream_config(parse(r#"{"name":"x","max_msgs":0}"#), &pedantic).is_ok());
}

#[test]
fn reserved_subjects_that_are_allowed() {
    for subject in ["$JS.EVENT.>", "$SYS.ACCOUNT.>", "*", "$KV.b.>", "$O.b.C.>"] {
        created(&format!(r#"{{"name":"x","subjects":["{subject}"]}}"#));
    }
    created(r#"{"name":"x","subjects":[">"],"no_ack":true}"#);
}

fn update(current: &str, wanted: &str) -> Result<StreamConfig, String> {
    validate_stream_update(&created(current), parse(wanted), &ALONE).map_err(|error| error.description.into_owned())
}

#[test]
fn refusals_of_update() {
    let base = r#"{"name":"s","subjects":["a.>"],"deny_delete":true,"deny_purge":true}"#;
    for (wanted, text) in [
        (
            r#"{"name":"s","storage":"memory","deny_delete":true,"deny_purge":true}"#,
            "stream configuration update can not change storage type",
        ),
        (
            r#"{"name":"s","persist_mode":"async","deny_delete":true,"deny_purge":true}"#,
            "stream configuration update can not change persist mode",
        ),
        (r#"{"name":"s","deny_purge":true}"#, "stream configuration update can not cancel deny message deletes"),
        (r#"{"name":"s","deny_delete":true}"#, "stream configuration update can not cancel deny purge"),
        (
            r#"{"name":"s","deny_delete":true,"deny_purge":true,"allow_rollup_hdrs":true}"#,
            "roll-ups require the purge permission",
        ),
        (
            r#"{"name":"s","deny_delete":true,"deny_purge":true,"first_seq":10}"#,
            "first_seq is not supported by this server",
        ),
    ] {
        assert_eq!(update(base, wanted), Err(text.to_owned()), "{wanted}");
    }
}

#[test]
fn sealing_is_one_way() {
    let sealed =
        update(r#"{"name":"s","max_age":5000000000}"#, r#"{"name":"s","max_age":5000000000,"sealed":true}"#).unwrap();
    assert!(sealed.sealed && sealed.deny_delete && sealed.deny_purge);
    assert_eq!((sealed.max_age, sealed.discard), (0, Discard::New));
    for (current, wanted, text) in [
        (r#"{"name":"s","deny_purge":true}"#, r#"{"name":"s","sealed":true}"#, "cancel deny purge"),
        (r#"{"name":"s","deny_delete":true}"#, r#"{"name":"s","sealed":true}"#, "cancel deny message deletes"),
    ] {
        assert_eq!(update(current, wanted), Err(format!("stream configuration update can not {text}")));
        let kept = wanted.replace('}', r#","deny_purge":true,"deny_delete":true}"#);
        assert!(update(current, &kept).unwrap().sealed, "{kept}");
    }
    let unseal = validate_stream_update(&sealed, parse(r#"{"name":"s","deny_delete":true,"deny_purge":true}"#), &ALONE);
    assert_eq!(unseal.unwrap_err().description, "stream configuration update can not unseal a sealed stream");
}

#[test]
fn pedantic_mode_does_not_shorten_the_duplicate_window() {
    let pedantic = Context { pedantic: true, ..ALONE };
    let short = r#"{"name":"x","max_age":1000000000}"#;
    let text = "pedantic mode: duplicate window cannot be bigger than max age";
    assert_eq!(refused(short, &pedantic), (10157, text.to_owned()));
    for fits in [
        r#"{"name":"x","max_age":1000000000,"duplicate_window":1000000000}"#,
        r#"{"name":"x","max_age":120000000000}"#,
        r#"{"name":"x"}"#,
    ] {
        assert!(validate_stream_config(parse(fits), &pedantic).is_ok(), "{fits}");
    }
}

#[test]
fn absent_durability_settings_stay() {
    let current = r#"{"name":"s","metadata":{"headwater.sync_mode":"noWait","team":"a"}}"#;
    let next = update(current, r#"{"name":"s","metadata":{"headwater.sync_interval":"1s"}}"#).unwrap();
    let user: Vec<_> = level::user_entries(&next.metadata).collect();
    assert_eq!(user, [("headwater.sync_interval", "1s"), ("headwater.sync_mode", "noWait")]);
    let with_interval = r#"{"name":"s","metadata":{"headwater.sync_mode":"interval","headwater.sync_interval":"1s"}}"#;
    let next = update(with_interval, r#"{"name":"s","metadata":{"headwater.sync_mode":"always"}}"#).unwrap();
    let user: Vec<_> = level::user_entries(&next.metadata).collect();
    assert_eq!(user, [("headwater.sync_mode", "always")]);
    let next = update(with_interval, r#"{"name":"s","metadata":{"team":"a"}}"#).unwrap();
    assert_eq!(level::user_entries(&next.metadata).count(), 3);
}

#[test]
fn settings_that_do_not_exist_are_refused_by_name() {
    for key in ["headwater.sync-mode", "headwater.syncMode", "headwater.bogus", "headwater.", "Headwater.sync_mode"] {
        let config = format!(r#"{{"name":"s","metadata":{{"team":"a","{key}":"noWait"}}}}"#);
        let known = "headwater.allow_async_flush, headwater.sync_interval, headwater.sync_mode";
        let text = format!("metadata key \"{key}\" is not known; there are {known}");
        let create = validate_stream_config(parse(&config), &ALONE).unwrap_err();
        assert_eq!((create.err_code, create.description.as_ref()), (10052, text.as_str()));
        assert_eq!(update(r#"{"name":"s"}"#, &config), Err(text));
    }
    assert!(
        validate_stream_config(parse(r#"{"name":"s","metadata":{"headwater":"a","x.headwater.y":"b"}}"#), &ALONE)
            .is_ok()
    );
}

#[test]
fn a_key_that_was_once_let_in_does_not_stick() {
    let mut current = created(r#"{"name":"s"}"#);
    current.metadata.insert("headwater.bogus".to_owned(), "1".to_owned());
    let next = validate_stream_update(&current, parse(r#"{"name":"s","max_msgs":5}"#), &ALONE).unwrap();
    assert!(!next.metadata.contains_key("headwater.bogus"));
}

#[test]
fn the_name_in_the_subject_must_be_the_configured_one() {
    assert_eq!(check_subject_name("a", &parse(r#"{"name":"b"}"#)), Err(error::STREAM_MISMATCH));
}

/// Compared each with each, these would keep a node busy for minutes.
#[test]
fn very_many_subjects_are_checked_in_time_with_their_number() {
    let stream = |subjects: Vec<String>| StreamConfig { name: "s".into(), subjects, ..parse(r#"{"name":"s"}"#) };
    let kinds: [fn(usize) -> String; 3] = [|i| format!("a.{i}"), |i| format!("x.*.b{i}"), |i| format!("c.{i}.>")];
    let mut subjects: Vec<String> = (0..60_000).map(|i| kinds[i % 3](i)).collect();
    assert!(validate_stream_config(stream(subjects.clone()), &ALONE).is_ok());
    subjects.push("c.5.x".into());
    let refused = validate_stream_config(stream(subjects), &ALONE).unwrap_err();
    assert_eq!(refused.description, "subject \"c.5.>\" overlaps with \"c.5.x\"");
}

#[test]
fn subjects_that_only_comparing_each_with_each_could_tell_apart_are_refused() {
    // Each has its wildcards somewhere else; the number at the end keeps them apart.
    let spread = |count: u32| {
        let tokens = |i: u32| (0..14).map(move |bit| if i >> bit & 1 == 0 { "*".to_owned() } else { "a".to_owned() });
        let subject =
            |i| ["p".to_owned()].into_iter().chain(tokens(i)).chain([i.to_string()]).collect::<Vec<_>>().join(".");
        StreamConfig { name: "s".into(), subjects: (0..count).map(subject).collect(), ..parse(r#"{"name":"s"}"#) }
    };
    assert!(validate_stream_config(spread(400), &ALONE).is_ok());
    let refused = validate_stream_config(spread(9_000), &ALONE).unwrap_err();
    assert_eq!(
        (refused.err_code, refused.description.as_ref()),
        (10052, "9000 subjects have their wildcards in too many different places to be compared")
    );
}
