//! JSON that clients send: CONNECT, bodies of the JetStream API, pull requests and direct gets, and the rules that
//! judge what was read.

use headwater_core::consumer as core;
use headwater_core::durability::Durability;
use headwater_protocol::api::consumer::{CreateConsumerRequest, PauseRequest};
use headwater_protocol::api::consumer_config::ConsumerConfig;
use headwater_protocol::api::consumer_rules::{decide_consumer_change, named_config, validate_consumer_config};
use headwater_protocol::api::message::{self, MsgDeleteRequest};
use headwater_protocol::api::page::{ConsumerListRequest, Page, StreamListRequest};
use headwater_protocol::api::route::ApiRoute;
use headwater_protocol::api::stream::{PeerRequest, PurgeRequest, StepdownRequest, StreamInfoRequest};
use headwater_protocol::api::stream_config::{StreamConfig, StreamConfigRequest};
use headwater_protocol::api::stream_rules::{self, validate_stream_config, validate_stream_update};
use headwater_protocol::api::{expect_no_body, parse_optional_body, unsupported};
use headwater_protocol::connect::ConnectOptions;
use headwater_protocol::direct::DirectGet;
use headwater_protocol::json;
use headwater_protocol::pull::PullRequest;

const KINDS: u8 = 14;

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let bodies: [(u8, &str); 24] = [
        (
            0,
            r#"{"verbose":false,"pedantic":false,"protocol":1,"headers":true,"no_responders":true,"name":"x","lang":"rust","version":"1","user":"u","pass":"p","echo":true}"#,
        ),
        (
            1,
            r#"{"name":"ORDERS","subjects":["orders.>","a.*"],"retention":"workqueue","max_consumers":-1,"max_msgs":5,"max_bytes":-1,"max_age":3600000000000,"max_msg_size":-1,"storage":"file","discard":"new","num_replicas":3,"duplicate_window":120000000000,"metadata":{"headwater.sync":"always"}}"#,
        ),
        (
            1,
            r#"{"name":"KV_x","subjects":["$KV.x.>"],"max_msgs_per_subject":1,"discard":"new","allow_rollup_hdrs":true,"deny_delete":true,"allow_direct":true,"allow_msg_ttl":true,"subject_delete_marker_ttl":1000000000,"placement":{"cluster":"c","tags":["ssd"]},"republish":{"src":"a","dest":"b"},"pedantic":true}"#,
        ),
        (
            1,
            r#"{"name":"S","mirror":{"name":"T","opt_start_seq":3,"filter_subject":"x","external":{"api":"a","deliver":"d"}},"sources":[{"name":"U","subject_transforms":[{"src":">","dest":"x.>"}]}]}"#,
        ),
        (
            1,
            r#"{"name":"S","subjects":["s"],"compression":"s2","first_seq":100,"consumer_limits":{"inactive_threshold":5,"max_ack_pending":7},"sealed":false,"template_owner":""}"#,
        ),
        (
            2,
            r#"{"stream_name":"ORDERS","config":{"durable_name":"worker","ack_policy":"explicit","ack_wait":30000000000,"max_deliver":5,"backoff":[1000000000,2000000000],"filter_subject":"orders.>","replay_policy":"instant","deliver_policy":"all"},"action":"create"}"#,
        ),
        (
            2,
            r#"{"stream_name":"ORDERS","config":{"name":"w","deliver_policy":"by_start_sequence","opt_start_seq":7,"filter_subjects":["a","b.*"],"max_waiting":512,"max_batch":10,"max_expires":1000000000,"max_bytes":1000,"headers_only":true,"inactive_threshold":5000000000,"mem_storage":true,"num_replicas":1,"metadata":{"a":"b"}},"pedantic":true}"#,
        ),
        (
            2,
            r#"{"stream_name":"ORDERS","config":{"name":"w","deliver_policy":"by_start_time","opt_start_time":"2026-01-02T03:04:05Z","pause_until":"2030-01-01T00:00:00Z","deliver_subject":"d","deliver_group":"g","flow_control":true,"idle_heartbeat":5000000000,"sample_freq":"100%","rate_limit_bps":7,"priority_groups":["a"],"priority_policy":"overflow"}}"#,
        ),
        (3, r#"{"seq":7,"next_by_subj":"a.>"}"#),
        (3, r#"{"last_by_subj":"orders.new","no_hdr":true}"#),
        (4, r#"{"seq":5,"no_erase":true}"#),
        (5, r#"{"offset":10,"subject":"a.>"}"#),
        (6, r#"{"pause_until":"2030-01-01T00:00:00Z"}"#),
        (7, r#"{"filter":"orders.>","keep":5}"#),
        (7, r#"{"seq":100}"#),
        (8, r#"{"placement":{"preferred":"n2"}}"#),
        (9, r#"{"peer":"n3"}"#),
        (10, r#"{"deleted_details":true,"subjects_filter":">","offset":3}"#),
        (
            11,
            r#"{"batch":10,"expires":5000000000,"idle_heartbeat":1000000000,"no_wait":true,"max_bytes":1000,"group":"g","min_pending":0,"min_ack_pending":0,"id":"","priority":3}"#,
        ),
        (11, "10"),
        (
            12,
            r#"{"seq":1,"batch":10,"max_bytes":100,"multi_last":["a.*"],"up_to_seq":4,"up_to_time":"2026-01-02T03:04:05Z"}"#,
        ),
        (12, r#"{"start_time":"2026-01-02T03:04:05Z","next_by_subj":"x","batch":3}"#),
        (13, r#"{"offset":0}"#),
        (13, ""),
    ];
    bodies.iter().map(|(kind, body)| [&[*kind], body.as_bytes()].concat()).collect()
}

pub(crate) fn run(data: &[u8]) {
    let Some((kind, body)) = data.split_first() else { return };
    match kind % KINDS {
        0 => {
            let _ = ConnectOptions::parse(body).map(|options| format!("{options:?}"));
        }
        1 => stream(body),
        2 => consumer(body),
        3 => {
            let _ = message::parse_msg_get(body);
        }
        4 => {
            let _ = MsgDeleteRequest::parse(body).map(|request| request.not_there(3, 9));
        }
        5 => {
            if let Ok(request) = parse_optional_body::<ConsumerListRequest>(body) {
                page(request.offset);
            }
        }
        6 => {
            let _ = parse_optional_body::<PauseRequest>(body);
        }
        7 => {
            let _ = PurgeRequest::parse(body);
        }
        8 => {
            let _ = StepdownRequest::parse(body).map(|request| request.preferred().map(str::len));
        }
        9 => {
            let _ = PeerRequest::parse(body);
        }
        10 => {
            let _ = StreamInfoRequest::parse(body);
        }
        11 => {
            if let Ok(request) = PullRequest::parse(body) {
                assert!(request.batch >= 1);
                let _ = request.over_before_it_began();
            }
        }
        12 => {
            let _ = DirectGet::parse(None, body).is_ok() || DirectGet::parse(Some("a.b"), body).is_ok();
        }
        _ => {
            if let Ok(request) = parse_optional_body::<StreamListRequest>(body) {
                page(request.offset);
            }
            let _ = expect_no_body(body).is_ok() || json::is_empty_request(body);
        }
    }
}

fn page(offset: i64) {
    for page in [Page::new(7, offset, 3), Page::of_subjects(7, offset)] {
        assert!(page.of(&[1, 2, 3, 4, 5, 6, 7]).len() <= 7);
    }
}

fn stream(body: &[u8]) {
    let Ok(StreamConfigRequest { config, pedantic }) = StreamConfigRequest::parse(body) else { return };
    let written = json::to_string(&config);
    let read: StreamConfig = json::from_slice_strict(written.as_bytes()).expect("what was written can be read");
    assert_eq!(json::to_string(&read), written);
    let _ = (config.required_level(), unsupported::check_stream(&config), config.for_response());
    let _ = stream_rules::check_subject_name("ORDERS", &config);
    let get = |key: &str| config.metadata.get(key).map(String::as_str);
    if let Ok(durability) = Durability::default().with_metadata(get) {
        let again = durability.to_metadata();
        let get = |key: &str| again.iter().find(|(name, _)| *name == key).map(|(_, value)| value.as_str());
        assert_eq!(Durability::default().with_metadata(get), Ok(durability));
    }
    let context = stream_rules::Context { clustered: true, nodes: 3, pedantic };
    let Ok(created) = validate_stream_config(config.clone(), &context) else { return };
    let again = validate_stream_config(created.clone(), &context);
    assert_eq!(again.as_ref(), Ok(&created), "a valid configuration stays as it is");
    assert!(created.is_same_request(&created));
    let changed = StreamConfig { max_msgs: 3, ..config };
    let _ = validate_stream_update(&created, changed, &context);
}

fn consumer(body: &[u8]) {
    let Ok(request) = CreateConsumerRequest::parse(body) else { return };
    let written = json::to_string(&request);
    let read: CreateConsumerRequest =
        json::from_slice_strict(written.as_bytes()).expect("what was written can be read");
    assert_eq!(json::to_string(&read), written);
    let action = request.action;
    let stream_name = request.stream_name.clone();
    let route = ApiRoute::ConsumerCreate { stream: &stream_name, consumer: None, filter: None };
    let Ok(named) = named_config(&route, request, "generated") else { return };
    let _ = (unsupported::check_consumer(&named), named.required_level(), named.for_response());
    let stream = StreamConfig { name: "ORDERS".into(), subjects: vec!["orders.>".into()], ..StreamConfig::default() };
    let Ok(valid) = validate_consumer_config(named, &stream, true) else { return };
    let again = validate_consumer_config(valid.clone(), &stream, true);
    assert_eq!(again.as_ref(), Ok(&valid), "a valid configuration stays as it is");
    assert!(valid.is_same_request(&valid));
    let _ = core::ConsumerConfig::from_api(&valid);
    let current = ConsumerConfig { max_deliver: 2, ..valid.clone() };
    let _ = decide_consumer_change(Some(&current), &valid, action);
}
