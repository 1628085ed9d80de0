use super::*;
use crate::stream::{Discard, Storage};

fn spec(value: Value) -> StreamSpec {
    serde_json::from_value(value).unwrap()
}

fn fields(changes: &[FieldChange]) -> Vec<&str> {
    changes.iter().map(|c| c.field.as_str()).collect()
}

#[test]
fn a_minimal_spec_yields_the_whole_default_configuration() {
    let config = stream_config("orders", &StreamSpec::default()).unwrap();
    assert_eq!(
        config,
        json!({
            "name": "orders", "description": "", "subjects": ["orders"], "storage": "file",
            "retention": "limits", "num_replicas": 1, "max_msgs": -1, "max_bytes": -1,
            "max_msg_size": -1, "max_msgs_per_subject": -1, "max_age": 0, "discard": "old",
            "discard_new_per_subject": false, "duplicate_window": 120_000_000_000_i64,
            "deny_delete": false, "deny_purge": false, "allow_rollup_hdrs": false,
            "allow_direct": false,
            "metadata": {"headwater.allow_async_flush": "true", "headwater.sync_mode": "always"},
        })
    );
}

#[test]
fn set_fields_are_translated() {
    let config = stream_config(
        "orders",
        &spec(json!({
            "name": "ORDERS", "subjects": ["orders.>"], "maxAge": "1m", "maxMsgs": 0,
            "discard": "new", "storage": "memory", "replicas": 3, "syncMode": "interval",
            "syncInterval": "0.2s", "allowAsyncFlush": false, "metadata": {"team": "shop"},
        })),
    )
    .unwrap();
    assert_eq!(config["name"], "ORDERS");
    assert_eq!(config["max_age"], 60_000_000_000_i64);
    assert_eq!(config["duplicate_window"], 60_000_000_000_i64);
    assert_eq!(config["max_msgs"], -1);
    assert_eq!(
        config["metadata"],
        json!({
            "team": "shop", "headwater.allow_async_flush": "false",
            "headwater.sync_mode": "interval", "headwater.sync_interval": "200ms",
        })
    );
    assert_eq!(sync_mode(&config), SyncMode::Interval);
    assert_eq!(sync_interval_ms(&config), Some(200));
    assert!(!allow_async_flush(&config));
}

#[test]
fn what_the_server_adds_or_spells_otherwise_is_no_difference() {
    let spec = spec(json!({"subjects": ["b", "a"], "syncMode": "interval", "syncInterval": "1s"}));
    let wanted = stream_config("s", &spec).unwrap();
    let server = json!({
        "name": "s", "subjects": ["a", "b"], "storage": "file", "max_consumers": -1,
        "max_msgs": 0, "duplicate_window": 120_000_000_000_i64, "compression": "s2",
        "metadata": {
            "_nats.level": "1", "headwater.allow_async_flush": "true",
            "headwater.sync_mode": "interval", "headwater.sync_interval": "1000ms",
        },
    });
    assert_eq!(differences(&server, &wanted), []);
    // The key that the spec cannot express survives an update.
    assert_eq!(own_config("s", &spec, &server).unwrap()["compression"], "s2");
}

#[test]
fn an_unset_field_returns_to_its_default_on_an_own_stream() {
    let server = json!({
        "name": "s", "subjects": ["s"], "allow_direct": true, "max_age": 3_600_000_000_000_i64,
        "max_msgs_per_subject": 5, "description": "old",
        "metadata": {"team": "shop", "headwater.sync_mode": "always"},
    });
    let wanted = own_config("s", &StreamSpec::default(), &server).unwrap();
    assert_eq!(
        fields(&differences(&server, &wanted)),
        [
            "description",
            "max_msgs_per_subject",
            "max_age",
            "allow_direct",
            "metadata.headwater.allow_async_flush",
            "metadata.team",
        ]
    );
}

#[test]
fn an_unset_field_keeps_the_value_of_an_adopted_stream() {
    let server = json!({
        "name": "s", "subjects": ["x.>"], "allow_direct": true, "discard": "new",
        "metadata": {"team": "shop", "headwater.allow_async_flush": "false"},
    });
    let same = adopted_config(&StreamSpec::default(), &server).unwrap();
    assert_eq!(differences(&server, &same), []);
    let wish = StreamSpec {
        discard: Some(Discard::Old),
        metadata: Some([("owner".to_owned(), "me".to_owned())].into()),
        ..StreamSpec::default()
    };
    let wanted = adopted_config(&wish, &server).unwrap();
    assert_eq!(fields(&differences(&server, &wanted)), ["discard", "metadata.owner"]);
    assert_eq!(wanted["metadata"]["team"], "shop");
}

#[test]
fn an_interval_left_over_from_another_mode_is_no_difference() {
    let server = json!({"name": "s", "subjects": ["s"], "metadata": {
        "headwater.allow_async_flush": "true", "headwater.sync_mode": "always",
        "headwater.sync_interval": "1s",
    }});
    let wanted = stream_config("s", &StreamSpec::default()).unwrap();
    assert_eq!(differences(&server, &wanted), []);
}

#[test]
fn a_changed_storage_is_a_difference_although_it_cannot_be_applied() {
    let server = json!({"name": "s", "storage": "memory", "subjects": ["s"]});
    let wish = StreamSpec { storage: Some(Storage::File), ..StreamSpec::default() };
    let wanted = adopted_config(&wish, &server).unwrap();
    assert_eq!(fields(&differences(&server, &wanted)), ["storage"]);
}

#[test]
fn a_bad_duration_names_its_field() {
    let error = stream_config("s", &spec(json!({"maxAge": "1d"}))).unwrap_err();
    assert_eq!(error.field, "maxAge");
    assert!(error.to_string().contains("a day is 24h"), "{error}");
}
