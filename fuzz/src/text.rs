//! Text that clients send: headers, subjects, durations, times, acks.

use headwater_core::interest::{CountedSublist, Sublist};
use headwater_core::stream::Ttl;
use headwater_protocol::ack::{self, AckSubject};
use headwater_protocol::api::route::ApiRoute;
use headwater_protocol::headers::{HeaderBlock, HeaderBuilder};
use headwater_protocol::rfc3339::ApiTime;
use headwater_protocol::subject::{self, FilterSet};
use headwater_protocol::{api::level, duration};

use crate::input::Input;

pub(crate) fn header_seeds() -> Vec<Vec<u8>> {
    let blocks: [&[u8]; 5] = [
        b"NATS/1.0\r\nNats-Msg-Id: 7\r\nNats-TTL: 1h\r\n\r\n",
        b"NATS/1.0 503\r\n\r\n",
        b"NATS/1.0 409 Consumer Deleted\r\nA:b\r\n\r\n",
        b"NATS/1.0\r\nNats-Required-Api-Level: 2\r\nNats-Expected-Last-Sequence:   4\r\nno colon\r\n\r\n",
        b"NATS/1.0\r\n\r\n",
    ];
    blocks.iter().map(|block| block.to_vec()).collect()
}

pub(crate) fn headers(data: &[u8]) {
    let block = HeaderBlock(data);
    let lines: Vec<_> = block.iter().collect();
    assert!(lines.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() <= data.len());
    for (name, _) in &lines {
        if let Ok(name) = std::str::from_utf8(name) {
            assert!(block.get(name).is_some());
        }
    }
    let _ = (block.status(), block.is_well_formed());
    let _ = level::check(data).is_ok() == level::is_supported(data);
    let kept = HeaderBuilder::from_block(data).finish();
    assert!(HeaderBlock(&kept).is_well_formed());
    if block.is_well_formed() {
        assert!(HeaderBlock(&kept).iter().eq(lines.iter().copied()), "lines are kept as they are");
    }
    let again = HeaderBuilder::from_block(&kept).finish();
    assert_eq!(again, kept);
    let mut changed = HeaderBuilder::from_block(data);
    changed.set("Fuzz", data).remove("A");
    let changed = changed.finish();
    assert!(HeaderBlock(&changed).is_well_formed());
    assert!(HeaderBlock(&changed).get("A").is_none());
}

pub(crate) fn subject_seeds() -> Vec<Vec<u8>> {
    let lists: [&[u8]; 8] = [
        b"orders.>\norders.new\norders.*.eu\n>",
        b"*.*\na.b\na.*\n*.b\na.b.c.>\n*.b.*",
        b"$JS.API.STREAM.CREATE.ORDERS\n$JS.API.STREAM.INFO.A",
        b"$JS.API.CONSUMER.CREATE.ORDERS.worker.orders.>\n$JS.API.CONSUMER.MSG.NEXT.A.B\n$JS.API.DIRECT.GET.A.b.c",
        b"$JS.ACK.ORDERS.worker.1.2.3.1700000000000000000.5\n$JS.ACK.dom.hash.ORDERS.worker.1.2.3.4.5",
        b"$JS.ACK._.hash.ORDERS.worker.1.2.3.4.5.more\n$JS.API.INFO",
        b"a..b\n.\na b\na.>.b\n\n*",
        b"foo*\n>x\n*a.b\na.>",
    ];
    lists.iter().map(|list| list.to_vec()).collect()
}

pub(crate) fn subjects(data: &[u8]) {
    let list: Vec<&[u8]> = data.split(|byte| *byte == b'\n').take(24).collect();
    for &one in &list {
        let tokens = subject::tokens(one).count();
        assert!(!subject::is_valid_literal(one) || subject::is_valid(one));
        assert_eq!(subject::has_wildcards(one), subject::is_valid(one) && !subject::is_valid_literal(one));
        assert!(tokens > 0);
        let _ = ApiRoute::parse(one).map(|route| route.response_type().schema());
        if let Some(ack) = AckSubject::parse(one) {
            let mut written = Vec::new();
            ack.write(&mut written);
            assert_eq!(AckSubject::parse(&written), Some(AckSubject { domain: None, ..ack }));
        }
        if let Ok(name) = std::str::from_utf8(one) {
            assert!(!subject::is_valid_name(name) || !subject::has_wildcards(one));
        }
        for &other in &list {
            let matched = subject::matches(one, other);
            assert_eq!(subject::overlaps(one, other), subject::overlaps(other, one));
            let inside = subject::is_subset(other, one);
            if subject::is_valid(one) && subject::is_valid_literal(other) {
                assert_eq!(matched, subject::overlaps(one, other));
                assert_eq!(matched, inside);
            }
        }
    }
    let valid: Vec<&[u8]> = list.iter().copied().filter(|filter| subject::is_valid(filter)).collect();
    let mut set = FilterSet::of(valid.iter().copied());
    assert_eq!((set.len(), set.is_empty()), (valid.len(), valid.is_empty()));
    for filter in &valid {
        let first = valid.iter().position(|other| subject::overlaps(other, filter));
        assert_eq!(set.overlapping(filter), first);
    }
    interest(&list);
}

/// What brokers make of filters, which a peer names unchecked.
fn interest(list: &[&[u8]]) {
    let mut sublist = Sublist::new();
    let mut counted = CountedSublist::default();
    for (nth, filter) in list.iter().enumerate() {
        let queue = (nth % 3 == 0).then_some(*filter);
        assert_eq!(sublist.insert(filter, queue, nth).is_ok(), subject::is_valid(filter));
        let _ = counted.add(filter, queue, nth % 4, 1);
    }
    for literal in list.iter().filter(|literal| subject::is_valid_literal(literal)) {
        let is_met = list.iter().any(|filter| subject::is_valid(filter) && subject::matches(filter, literal));
        assert_eq!(sublist.has_interest(literal), is_met);
        assert_eq!(!sublist.matches(literal).is_empty(), is_met);
        assert_eq!(counted.has_interest(literal), is_met);
    }
    for (nth, filter) in list.iter().enumerate() {
        let queue = (nth % 3 == 0).then_some(*filter);
        sublist.remove(filter, queue, &nth);
        let _ = counted.sub(filter, queue, nth % 4, 1);
    }
    assert!(sublist.is_empty() && counted.is_empty());
}

pub(crate) fn scalar_seeds() -> Vec<Vec<u8>> {
    let texts: [&[u8]; 14] = [
        b"1h30m",
        b"-1.5h2us",
        b"9223372036854775807ns",
        b"-9223372036854775808ns",
        b"2562047h47m16.854775807s",
        b"never",
        b"1700000000",
        b"2026-11-30T17:12:37.024082469Z",
        b"0001-01-01T00:00:00Z",
        b"1969-12-31T23:59:59-23:59",
        b"-NAK {\"delay\": 1000000}",
        b"+NXT {\"batch\":3}",
        b"+TERM no use",
        b"+WPI",
    ];
    texts.iter().map(|text| text.to_vec()).collect()
}

pub(crate) fn scalars(data: &[u8]) {
    let _ = ack::parse_kind(data);
    let _ = Ttl::parse(data);
    let mut input = Input::new(data);
    let number = input.u64();
    let shown = duration::format(number as i64);
    assert_eq!(duration::parse(&shown), Ok(number as i64), "{shown}");
    assert_eq!(ApiTime::from_ns(number).to_string().parse(), Ok(ApiTime::from_ns(number)));
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(ns) = duration::parse(text) {
        assert_eq!(duration::parse(&duration::format(ns)), Ok(ns));
        assert_eq!(duration::parse_unsigned(text), u64::try_from(ns).ok());
    }
    if let Ok(time) = text.parse::<ApiTime>() {
        assert_eq!(time.to_string().parse(), Ok(time));
    }
}
