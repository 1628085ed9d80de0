use super::*;
use crate::api::stream_config::ConsumerLimits;

fn stream() -> StreamConfig {
    StreamConfig { name: "s1".into(), subjects: vec!["a.>".into()], num_replicas: 1, ..StreamConfig::default() }
}

fn parse(config: &str) -> ConsumerConfig {
    crate::json::from_slice(config.as_bytes()).unwrap_or_else(|error| panic!("{config}: {error}"))
}

fn accepted(config: &str) -> ConsumerConfig {
    validate_consumer_config(parse(config), &stream(), false).unwrap_or_else(|error| panic!("{config}: {error}"))
}

fn refused_on(stream: &StreamConfig, config: &str) -> (u16, String) {
    let error = validate_consumer_config(parse(config), stream, false).unwrap_err();
    (error.err_code, error.description.into_owned())
}

#[test]
fn defaults() {
    let config = accepted(r#"{"name":"c"}"#);
    assert_eq!((config.ack_wait, config.max_deliver, config.max_waiting), (0, -1, 512));
    assert_eq!((config.max_ack_pending, config.inactive_threshold), (0, 5_000_000_000));
    let config = accepted(r#"{"name":"c","durable_name":"c","ack_policy":"explicit","max_batch":-1,"max_expires":-1}"#);
    assert_eq!((config.ack_wait, config.max_ack_pending, config.inactive_threshold), (30_000_000_000, 1000, 0));
    assert_eq!((config.max_batch, config.max_expires), (0, 0));
    let config = accepted(r#"{"name":"c","ack_policy":"explicit","backoff":[1000000000,2000000000],"max_deliver":2}"#);
    assert_eq!(config.ack_wait, 1_000_000_000);
    assert_eq!(accepted(r#"{"name":"c","ack_policy":"explicit","max_ack_pending":-5}"#).max_ack_pending, -1);
    assert_eq!(validate_consumer_config(config.clone(), &stream(), false), Ok(config));
}

#[test]
fn refusals() {
    let long_description = format!(r#"{{"description":"{}"}}"#, "x".repeat(5000));
    let long_metadata = format!(r#"{{"metadata":{{"a":"{}"}}}}"#, "b".repeat(140_000));
    for (config, code, text) in [
        (long_description.as_str(), 10107, "consumer description is too long, maximum allowed is 4096"),
        (long_metadata.as_str(), 10135, "consumer metadata exceeds maximum size of 128KB"),
        (
            r#"{"metadata":{"headwater.sync_mode":"noWait"}}"#,
            10012,
            "metadata key \"headwater.sync_mode\" is not known: consumers have no settings of that kind",
        ),
        (r#"{"ack_policy":"all","ack_wait":-1}"#, 10183, "consumer ack wait needs to be positive"),
        (r#"{"backoff":[-1]}"#, 10184, "consumer backoff needs to be positive"),
        (r#"{"max_deliver":1,"backoff":[1,2]}"#, 10116, "max deliver is required to be > length of backoff values"),
        (
            r#"{"deliver_policy":"by_start_sequence"}"#,
            10094,
            "consumer delivery policy is deliver by start sequence, but optional start sequence is not set",
        ),
        (
            r#"{"deliver_policy":"by_start_time"}"#,
            10094,
            "consumer delivery policy is deliver by start time, but optional start time is not set",
        ),
        (
            r#"{"deliver_policy":"by_start_time","opt_start_seq":5}"#,
            10094,
            "consumer delivery policy is deliver by start time, but optional start time is not set",
        ),
        (
            r#"{"opt_start_seq":5}"#,
            10094,
            "consumer delivery policy is deliver all, but optional start sequence is also set",
        ),
        (
            r#"{"deliver_policy":"new","opt_start_time":"2020-01-01T00:00:00Z"}"#,
            10094,
            "consumer delivery policy is deliver new, but optional start time is also set",
        ),
        (
            r#"{"deliver_policy":"by_start_sequence","opt_start_seq":5,"opt_start_time":"2020-01-01T00:00:00Z"}"#,
            10094,
            "consumer delivery policy is deliver by start sequence, but optional start time is also set",
        ),
        (
            r#"{"deliver_policy":"last_per_subject"}"#,
            10094,
            "consumer delivery policy is deliver last per subject, but optional filter subject is not set",
        ),
        (
            r#"{"filter_subject":"a.1","filter_subjects":["a.2"]}"#,
            10136,
            "consumer cannot have both FilterSubject and FilterSubjects specified",
        ),
        (r#"{"filter_subjects":["a.1",""]}"#, 10139, "consumer filter in FilterSubjects cannot be empty"),
        (r#"{"filter_subjects":["a.1","a.*"]}"#, 10138, "consumer subject filters cannot overlap"),
        (r#"{"filter_subject":"a..b"}"#, 10052, "invalid subject"),
        (r#"{"rate_limit_bps":5}"#, 10086, "consumer in pull mode can not have rate limit set"),
        (r#"{"flow_control":true}"#, 10089, "consumer flow control requires a push based consumer"),
        (r#"{"idle_heartbeat":1000000000}"#, 10088, "consumer idle heartbeat requires a push based consumer"),
        (r#"{"direct":true}"#, 10090, "consumer direct requires a push based consumer"),
        (r#"{"max_expires":5}"#, 10115, "consumer max request expires needs to be >= 1ms"),
        (r#"{"num_replicas":3}"#, 10074, "replicas > 1 not supported in non-clustered mode"),
        (r#"{"num_replicas":-1}"#, 10133, "replicas count cannot be negative"),
        (
            r#"{"sample_freq":"x"}"#,
            10095,
            "failed to parse consumer sampling configuration: strconv.Atoi: parsing \"x\": invalid syntax",
        ),
        (r#"{"priority_groups":["a"]}"#, 10196, "consumer can not have priority groups when policy is none"),
        (
            r#"{"priority_policy":"overflow"}"#,
            10159,
            "Setting PriorityPolicy requires at least one PriorityGroup to be set",
        ),
        (r#"{"priority_timeout":5}"#, 10197, "PinnedTTL cannot be set when PriorityPolicy is none"),
        (r#"{"deliver_subject":"q.*"}"#, 10079, "consumer deliver subject has wildcards"),
        (r#"{"deliver_subject":"a.1"}"#, 10081, "consumer deliver subject forms a cycle"),
        (r#"{"deliver_subject":"q.."}"#, 10112, "invalid push consumer deliver subject"),
        (r#"{"deliver_subject":"q","max_waiting":5}"#, 10080, "consumer in push mode can not set max waiting"),
        (r#"{"deliver_subject":"q","max_ack_pending":5}"#, 10082, "consumer requires ack policy for max ack pending"),
        (r#"{"deliver_subject":"q","flow_control":true}"#, 10108, "consumer with flow control also needs heartbeats"),
        (r#"{"deliver_subject":"q","idle_heartbeat":5}"#, 10083, "consumer idle heartbeat needs to be >= 100ms"),
        (r#"{"deliver_subject":"q"}"#, 10012, "deliver_subject is not supported by this server"),
        (
            r#"{"priority_groups":["a"],"priority_policy":"overflow"}"#,
            10012,
            "priority_groups is not supported by this server",
        ),
        (r#"{"replay_policy":"original"}"#, 10012, "replay_policy: original is not supported by this server"),
    ] {
        assert_eq!(refused_on(&stream(), config), (code, text.to_owned()), "{config:.80}");
    }
    let replicated = validate_consumer_config(parse(r#"{"num_replicas":3}"#), &stream(), true);
    assert_eq!(replicated, Err(error::CONSUMER_REPLICAS_EXCEEDS_STREAM));
}

#[test]
fn stream_limits_bound_and_default() {
    let limited = StreamConfig {
        consumer_limits: ConsumerLimits { max_ack_pending: 10, inactive_threshold: 1_000_000_000 },
        ..stream()
    };
    assert_eq!(
        refused_on(&limited, r#"{"ack_policy":"explicit","max_ack_pending":20}"#),
        (10121, "consumer max ack pending exceeds system limit of 10".into())
    );
    assert_eq!(
        refused_on(&limited, r#"{"ack_policy":"explicit","inactive_threshold":2000000000}"#),
        (10153, "consumer inactive threshold exceeds system limit of 1s".into())
    );
    let config = validate_consumer_config(parse(r#"{"ack_policy":"explicit"}"#), &limited, false).unwrap();
    assert_eq!((config.max_ack_pending, config.inactive_threshold), (10, 1_000_000_000));
}

#[test]
fn work_queues_want_explicit_acks_from_the_start() {
    let queue = StreamConfig { retention: Retention::WorkQueue, ..stream() };
    assert_eq!(refused_on(&queue, "{}").0, 10084);
    assert_eq!(refused_on(&queue, r#"{"ack_policy":"all"}"#).0, 10098);
    assert_eq!(refused_on(&queue, r#"{"ack_policy":"explicit","deliver_policy":"new"}"#).0, 10101);
    assert!(validate_consumer_config(parse(r#"{"ack_policy":"explicit"}"#), &queue, false).is_ok());
}

fn named(subject: &str, config: &str) -> Result<String, u16> {
    let request = CreateConsumerRequest { stream_name: "s1".into(), config: parse(config), ..Default::default() };
    let subject = format!("$JS.API.CONSUMER.{subject}");
    let route = ApiRoute::parse(subject.as_bytes()).unwrap();
    named_config(&route, request, "gen").map(|config| config.name).map_err(|error| error.err_code)
}

#[test]
fn names_come_from_the_subject() {
    assert_eq!(named("CREATE.s1", "{}"), Ok("gen".into()));
    assert_eq!(named("CREATE.s1", r#"{"name":"d"}"#), Ok("d".into()));
    assert_eq!(named("CREATE.s1", r#"{"durable_name":"d"}"#), Err(10020));
    assert_eq!(named("CREATE.s1.c1", r#"{"name":"c2"}"#), Ok("c1".into()));
    assert_eq!(named("CREATE.s1.c1", "{}"), Ok("c1".into()));
    assert_eq!(named("CREATE.s1.c1", r#"{"durable_name":"c2"}"#), Err(10017));
    assert_eq!(named("CREATE.s2.c1", "{}"), Err(10056));
    assert_eq!(named("DURABLE.CREATE.s1.d", "{}"), Err(10018));
    assert_eq!(named("DURABLE.CREATE.s1.d", r#"{"durable_name":"e"}"#), Err(10017));
    assert_eq!(named("DURABLE.CREATE.s1.d", r#"{"durable_name":"d","name":"z"}"#), Ok("d".into()));
    assert_eq!(named("CREATE.s1.f1.a.1", "{}"), Err(10131));
    assert_eq!(named("CREATE.s1.f1.a.1", r#"{"filter_subject":"a.2"}"#), Err(10131));
    assert_eq!(named("CREATE.s1.f1.a.1", r#"{"filter_subject":"a.1"}"#), Ok("f1".into()));
    assert_eq!(named("CREATE.s1.f1.a.1", r#"{"filter_subjects":["a.1"]}"#), Err(10137));
    assert_eq!(named("CREATE.s1.a/b", "{}"), Err(10127));
    assert_eq!(named(&format!("CREATE.s1.{}", "x".repeat(256)), "{}"), Err(10102));
    for unnameable in ["a b", "a*", "a>", "a.b"] {
        let body = |field: &str| format!(r#"{{"{field}":"{unnameable}"}}"#);
        assert_eq!(named("CREATE.s1", &body("name")), Err(10052), "{unnameable}");
    }
    assert_eq!(named("INFO.s1.c1", "{}"), Err(10003));
}

#[test]
fn changes() {
    let current = accepted(r#"{"name":"c","durable_name":"c","ack_policy":"explicit"}"#);
    let decide = |wanted: &str, action| {
        decide_consumer_change(Some(&current), &accepted(wanted), action)
            .map_err(|error| error.description.into_owned())
    };
    let same = r#"{"name":"c","durable_name":"c","ack_policy":"explicit"}"#;
    assert_eq!(decide(same, ConsumerAction::Create), Ok(ConsumerChange::Unchanged));
    let deliver_four = r#"{"name":"c","durable_name":"c","ack_policy":"explicit","max_deliver":4}"#;
    assert_eq!(decide(deliver_four, ConsumerAction::CreateOrUpdate), Ok(ConsumerChange::Update));
    assert_eq!(decide(deliver_four, ConsumerAction::Create), Err("consumer already exists".into()));
    for (field, text) in [
        (r#""ack_policy":"none""#, "ack policy can not be updated"),
        (r#""ack_policy":"explicit","deliver_policy":"new""#, "deliver policy can not be updated"),
        (r#""ack_policy":"explicit","max_waiting":9"#, "max waiting can not be updated"),
        (r#""ack_policy":"explicit","mem_storage":true"#, "storage type can not be updated"),
    ] {
        let wanted = format!(r#"{{"name":"c","durable_name":"c",{field}}}"#);
        assert_eq!(decide(&wanted, ConsumerAction::Update), Err(text.to_owned()));
    }
    assert_eq!(decide_consumer_change(None, &current, ConsumerAction::Update), Err(error::CONSUMER_DOES_NOT_EXIST));
    assert_eq!(decide_consumer_change(None, &current, ConsumerAction::Create), Ok(ConsumerChange::Create));
    let push = ConsumerConfig { deliver_subject: "q".into(), ..current.clone() };
    let error = decide_consumer_change(Some(&current), &push, ConsumerAction::Update).unwrap_err();
    assert_eq!(error.description, "can not update pull consumer to push based");
}
