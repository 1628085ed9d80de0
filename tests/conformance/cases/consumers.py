"""Pull consumers: creation, pulls and their statuses, every kind of ack, redelivery."""

import json
import time

from harness import case

NS = 1_000_000_000
X = {"durable_name": "X", "ack_policy": "explicit"}


def create(t, stream, name, config, action=None, suffix="", log=True):
    body = {"stream_name": stream, "config": config}
    if action is not None:
        body["action"] = action
    return t.api(f"CONSUMER.CREATE.{stream}.{name}{suffix}", body, log=log)


def ask_and_wait(conn, stream, body):
    """Sends consumer C a pull request that waits; returns the inbox for its answers."""
    reply = conn.new_reply()
    conn.pub(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.C", json.dumps(body), reply)
    conn.flush()
    return reply


def delete_under_a_request(t, stream, what):
    """Logs what a waiting pull request is told when what it waits for is deleted."""
    t.stream(stream)
    t.consumer(stream, "C")
    reply = ask_and_wait(t.c, stream, {"batch": 5, "expires": 10 * NS})
    time.sleep(0.3)
    t.connect(1).request(f"$JS.API.{what}")
    t.answers(t.c.collect(1.0, most=1), reply)


@case("consumer/create")
def _(t):
    t.stream("CC")
    t.fill("CC.x", 3)
    t.settle("CC")
    create(t, "CC", "A", {"durable_name": "A", "ack_policy": "explicit"})
    create(t, "CC", "B", {"name": "B", "durable_name": "B"})
    create(t, "CC", "N", {"name": "N", "ack_policy": "none", "deliver_policy": "last", "inactive_threshold": 30 * NS})
    create(t, "CC", "F", {"durable_name": "F", "ack_policy": "all", "filter_subject": "CC.x"}, suffix=".CC.x")
    create(t, "CC", "M", {"durable_name": "M", "ack_policy": "explicit", "filter_subjects": ["CC.x", "CC.y"], "max_deliver": 3, "backoff": [NS, 2 * NS], "metadata": {"k": "v"}, "description": "d"})
    t.api("CONSUMER.INFO.CC.A")
    t.state("CC")


@case("consumer/create-legacy-subjects")
def _(t):
    t.stream("CL")
    t.api("CONSUMER.DURABLE.CREATE.CL.D", {"stream_name": "CL", "config": {"durable_name": "D", "ack_policy": "explicit"}})
    answer = t.api("CONSUMER.CREATE.CL", {"stream_name": "CL", "config": {"ack_policy": "none"}}, log=False)
    t.hide(answer.get("name", "?"), "<generated>")
    t.json("< ", answer)
    t.api("CONSUMER.DURABLE.CREATE.CL.X", {"stream_name": "CL", "config": {"durable_name": "Y", "ack_policy": "explicit"}})
    t.api("CONSUMER.DURABLE.CREATE.CL.X", {"stream_name": "CL", "config": {"ack_policy": "explicit"}})
    t.api("CONSUMER.CREATE.CL", {"stream_name": "CL", "config": {"durable_name": "Z", "ack_policy": "explicit"}})


@case("consumer/create-actions")
def _(t):
    t.stream("CA")
    config = {"durable_name": "A", "ack_policy": "explicit", "max_deliver": 5}
    create(t, "CA", "A", config, "update")
    create(t, "CA", "A", config, "create", log=False)
    for action, change in (("create", {}), ("", {}), ("create", {"max_deliver": 6}), ("update", {"max_deliver": 7}), ("", {"max_deliver": 8}), ("nonsense", {})):
        answer = create(t, "CA", "A", {**config, **change}, action, log=False)
        t.log(f"> {action!r} {change}")
        t.json("< ", answer.get("error") or answer["config"])


@case("consumer/create-errors")
def _(t):
    t.stream("CE")
    for name, config, suffix in [
        ("X", {"durable_name": "Y", "ack_policy": "explicit"}, ""),
        ("X", {"durable_name": "X", "name": "Y", "ack_policy": "explicit"}, ""),
        ("X", {"durable_name": "X", "ack_policy": "nonsense"}, ""),
        ("X", {**X, "deliver_policy": "nonsense"}, ""),
        ("X", {**X, "deliver_policy": "by_start_sequence"}, ""),
        ("X", {**X, "deliver_policy": "by_start_time"}, ""),
        ("X", {**X, "deliver_policy": "all", "opt_start_seq": 3}, ""),
        ("X", {**X, "deliver_policy": "last_per_subject"}, ""),
        ("X", {**X, "filter_subject": "CE.a", "filter_subjects": ["CE.b"]}, ""),
        ("X", {**X, "filter_subjects": ["CE.b", ""]}, ""),
        ("X", {**X, "filter_subjects": ["CE.*", "CE.a"]}, ""),
        ("X", {**X, "filter_subject": "CE.a"}, ".CE.b"),
        ("X", X, ".CE.b"),
        ("X", {**X, "filter_subjects": ["CE.a", "CE.b"]}, ".CE.a"),
        ("X", {**X, "max_waiting": -1}, ""),
        ("X", {**X, "rate_limit_bps": 100}, ""),
        ("X", {**X, "idle_heartbeat": NS}, ""),
        ("X", {**X, "flow_control": True}, ""),
        ("X", {**X, "backoff": [NS, NS], "max_deliver": 1}, ""),
        ("X", {**X, "backoff": [-NS]}, ""),
        ("X", {**X, "ack_wait": -1}, ""),
        ("X", {**X, "replay_policy": "nonsense"}, ""),
        ("X", {**X, "num_replicas": 5}, ""),
        ("X", {**X, "description": "d" * 5000}, ""),
        ("X/Y", {"durable_name": "X/Y", "ack_policy": "explicit"}, ""),
        ("a*", {"name": "a*", "ack_policy": "explicit"}, ""),
        ("a>", {"name": "a>", "ack_policy": "explicit"}, ""),
        ("X", {**X, "deliver_policy": "by_start_time", "opt_start_seq": 2}, ""),
        ("N" * 256, {"durable_name": "N" * 256, "ack_policy": "explicit"}, ""),
    ]:
        answer = create(t, "CE", name, config, suffix=suffix, log=False)
        text = json.dumps(config)
        t.log(f"> {name if len(name) < 50 else 'N*256'}{suffix} {text if len(text) < 200 else text[:60] + '...'}")
        t.json("< ", answer.get("error", "created"))
        if "error" not in answer:
            t.api(f"CONSUMER.DELETE.CE.{name}", log=False)
    create(t, "NOSUCH", "X", X)


@case("consumer/update")
def _(t):
    t.stream("CU")
    base = {"durable_name": "A", "ack_policy": "explicit"}
    create(t, "CU", "A", base, log=False)
    for change in (
        {"max_deliver": 4}, {"ack_wait": 5 * NS}, {"max_ack_pending": 7}, {"description": "d"}, {"filter_subject": "CU.a"}, {"metadata": {"a": "b"}},
        {"ack_policy": "none"}, {"deliver_policy": "new"}, {"replay_policy": "original"}, {"max_waiting": 9}, {"deliver_subject": "push"},
    ):
        answer = create(t, "CU", "A", {**base, **change}, "update", log=False)
        t.log(f"> update {change}")
        t.json("< ", answer.get("error") or answer["config"])


@case("consumer/info-names-list-delete")
def _(t):
    t.stream("CI")
    for name in ("A", "B", "C"):
        t.consumer("CI", name)
    t.api("CONSUMER.NAMES.CI")
    listed = t.api("CONSUMER.LIST.CI", {"offset": 1}, log=False)
    t.log(f"LIST: {listed['total']} {listed['offset']} {listed['limit']} {[c['name'] for c in listed['consumers']]}")
    t.api("CONSUMER.INFO.CI.NONE")
    t.api("CONSUMER.INFO.NOSUCH.A")
    t.api("CONSUMER.DELETE.CI.B")
    t.api("CONSUMER.DELETE.CI.B")
    t.api("CONSUMER.NAMES.CI")
    t.api("CONSUMER.NAMES.NOSUCH")


@case("pull/one")
def _(t):
    t.stream("P1")
    t.fill("P1.{n}", 3)
    t.consumer("P1", "C")
    for body in ("", "1", {"batch": 1}):
        for op in t.pull("P1", "C", body, timeout=1.0, most=1):
            t.ack(op)
    t.consumer_state("P1", "C")


@case("pull/no-wait")
def _(t):
    t.stream("NW")
    t.consumer("NW", "C")
    t.pull("NW", "C", {"batch": 5, "no_wait": True})
    t.fill("NW.x", 3)
    t.settle("NW")
    for op in t.pull("NW", "C", {"batch": 5, "no_wait": True}):
        t.ack(op)
    t.pull("NW", "C", {"batch": 5, "no_wait": True})
    t.fill("NW.x", 2)
    t.settle("NW")
    t.pull("NW", "C", {"batch": 2, "no_wait": True}, timeout=1.0)


@case("pull/expires")
def _(t):
    t.stream("EX")
    t.consumer("EX", "C")
    started = time.monotonic()
    t.pull("EX", "C", {"batch": 5, "expires": NS})
    t.took("expired", started, 0.9, 2.0)
    t.fill("EX.x", 2)
    t.settle("EX")
    started = time.monotonic()
    t.pull("EX", "C", {"batch": 5, "expires": NS})
    t.took("expired", started, 0.9, 2.0)


@case("pull/no-wait-with-expires")
def _(t):
    t.stream("NWE")
    t.consumer("NWE", "C")
    t.pull("NWE", "C", {"batch": 5, "no_wait": True, "expires": NS})
    t.fill("NWE.x", 3)
    t.settle("NWE")
    started = time.monotonic()
    t.pull("NWE", "C", {"batch": 5, "no_wait": True, "expires": 2 * NS})
    t.took("ended", started, 0.0, 1.0)


@case("pull/waits-for-messages")
def _(t):
    t.stream("WF")
    t.consumer("WF", "C")
    other = t.connect(1)
    reply = ask_and_wait(t.c, "WF", {"batch": 2, "expires": 5 * NS})
    time.sleep(0.3)
    for n in range(3):
        other.request("WF.x", f"m{n}")
        # Each is delivered before the next is stored, so that what is left behind it does not depend on chance.
        time.sleep(0.3)
    t.answers(t.c.collect(1.0), reply)
    t.consumer_state("WF", "C")


@case("pull/heartbeats")
def _(t):
    t.stream("HB")
    t.consumer("HB", "C")
    t.fill("HB.x", 1)
    t.settle("HB")
    t.pull("HB", "C", {"batch": 3, "expires": NS + NS // 4, "idle_heartbeat": NS // 2}, timeout=3)
    t.pull("HB", "C", {"batch": 1, "expires": NS, "idle_heartbeat": NS}, timeout=2)
    t.pull("HB", "C", {"batch": 1, "idle_heartbeat": NS}, timeout=2)


@case("pull/max-bytes")
def _(t):
    t.stream("MB")
    t.consumer("MB", "C")
    for n in range(4):
        t.publish("MB.x", "x" * 100, log=False)
    t.settle("MB")
    t.pull("MB", "C", {"batch": 10, "max_bytes": 50, "expires": NS})
    got = t.pull("MB", "C", {"batch": 10, "max_bytes": 400, "expires": NS}, log=False)
    t.log(f"with 400 bytes: {len(got)} messages")
    t.consumer_state("MB", "C")


@case("pull/max-bytes-to-the-byte", modes=("single",))
def _(t):
    t.stream("MBB")
    t.fill("MBB.x", 12)
    # 12 messages: one digit less of those behind from the third on.
    for most in range(44, 54):
        t.consumer("MBB", f"C{most}", ack_policy="none")
        got = t.pull("MBB", f"C{most}", {"batch": 4, "max_bytes": most, "no_wait": True}, log=False)
        t.log(f"{most} bytes: {len(got)}")
    t.consumer("MBB", "H", ack_policy="none", headers_only=True)
    for most in (70, 74, 78, 82, 86, 90):
        t.log(f"{most} bytes of headers only: {len(t.pull('MBB', 'H', {'batch': 1, 'max_bytes': most, 'no_wait': True}, log=False))}")


@case("pull/needs-more-than-there-is")
def _(t):
    t.stream("NEED")
    t.fill("NEED.x", 8)
    t.consumer("NEED", "C")
    for field in ({"id": "x"}, {"min_pending": 3}, {"min_ack_pending": 3}, {"group": "g"}, {"priority": 3}):
        t.pull("NEED", "C", {"batch": 1, "no_wait": True, **field}, timeout=0.7)
    for level in ("4", "99"):
        reply = t.c.new_reply()
        t.c.pub("$JS.API.CONSUMER.MSG.NEXT.NEED.C", '{"batch":1,"no_wait":true}', reply, {"Nats-Required-Api-Level": level})
        t.log(f"> pull C, level {level}")
        t.answers(t.c.collect(0.7, most=1), reply)


@case("pull/bad-requests")
def _(t):
    t.stream("BR")
    t.consumer("BR", "C")
    for body in ('{"batch":', '{"batch":-1}', "x", '{"nonsense":1,"no_wait":true}', {"batch": 0, "no_wait": True}, {"batch": 1, "expires": -1}, {"batch": 2, "max_bytes": -1, "no_wait": True}):
        t.pull("BR", "C", body, timeout=0.7)
    t.ask("$JS.API.CONSUMER.MSG.NEXT.BR.NONE", "1")


@case("pull/over-before-it-came")
def _(t):
    t.stream("OB")
    t.fill("OB.x", 3)
    t.consumer("OB", "C")
    for body in (
        {"expires": -1}, {"expires": -NS, "batch": 2}, {"expires": -1, "no_wait": True}, {"expires": -1, "batch": -3, "max_bytes": -4}, {"expires": -1, "max_bytes": 100},
        {"expires": -1, "idle_heartbeat": 5}, {"expires": -1, "priority": 12},
    ):
        t.pull("OB", "C", body, timeout=0.7)
    t.ask("$JS.API.CONSUMER.MSG.NEXT.OB.NONE", '{"expires":-1}')
    t.ask("$JS.API.CONSUMER.MSG.NEXT.OB.NONE", '{"batch":')
    got = t.pull("OB", "C", {"batch": 3, "no_wait": True}, most=3)
    t.ask(got[0][3], '+NXT {"expires":-1,"batch":2}')
    t.consumer_state("OB", "C")


@case("pull/limits-of-requests")
def _(t):
    t.stream("LR")
    t.consumer("LR", "C", max_batch=5, max_expires=2 * NS, max_bytes=1000)
    for body in ({"batch": 6, "no_wait": True}, {"batch": 1, "expires": 3 * NS}, {"batch": 1, "no_wait": True, "max_bytes": 2000}, {"batch": 5, "no_wait": True}):
        t.pull("LR", "C", body, timeout=1.0)


@case("pull/max-waiting")
def _(t):
    t.stream("MW")
    t.consumer("MW", "C", max_waiting=2)
    held = [t.connect() for _ in range(2)]
    for conn in held:
        ask_and_wait(conn, "MW", {"batch": 1, "expires": 10 * NS})
    time.sleep(0.3)
    t.pull("MW", "C", {"batch": 1, "expires": NS}, timeout=2)
    t.log(f"waiting: {t.api('CONSUMER.INFO.MW.C', log=False)['num_waiting']}")
    t.fill("MW.x", 2)
    t.log(f"each waiting request got one: {[len([o for o in conn.collect(1.0, most=1)]) for conn in held]}")


@case("pull/waiting-served-in-turn")
def _(t):
    t.stream("RR")
    t.consumer("RR", "C")
    conns = [t.connect() for _ in range(3)]
    for conn in conns:
        ask_and_wait(conn, "RR", {"batch": 2, "expires": 10 * NS})
        time.sleep(0.1)
    t.fill("RR.x", 6)
    t.log(f"deliveries per request: {[len(conn.collect(0.7)) for conn in conns]}")


@case("pull/gone-client-is-passed-over")
def _(t):
    t.stream("GC")
    t.consumer("GC", "C")
    gone = t.connect()
    ask_and_wait(gone, "GC", {"batch": 10, "expires": 20 * NS})
    time.sleep(0.2)
    gone.close()
    time.sleep(0.5)
    t.fill("GC.x", 2)
    got = t.pull("GC", "C", {"batch": 2, "expires": 2 * NS}, log=False)
    t.log(f"the next request got {[op[5] for op in got]}")


@case("pull/consumer-deleted")
def _(t):
    delete_under_a_request(t, "CD", "CONSUMER.DELETE.CD.C")


@case("pull/stream-deleted")
def _(t):
    delete_under_a_request(t, "SD", "STREAM.DELETE.SD")


@case("ack/explicit-out-of-order")
def _(t):
    t.stream("AE")
    t.fill("AE.x", 5)
    t.consumer("AE", "C")
    got = t.pull("AE", "C", {"batch": 5, "expires": NS}, most=5)
    for i in (1, 3):
        t.ack(got[i])
    t.consumer_state("AE", "C")
    t.ack(got[0])
    t.consumer_state("AE", "C")
    t.ack(got[2])
    t.ack(got[2])
    t.ack(got[4])
    t.consumer_state("AE", "C")


@case("ack/all")
def _(t):
    t.stream("AA")
    t.fill("AA.x", 5)
    t.consumer("AA", "C", ack_policy="all")
    got = t.pull("AA", "C", {"batch": 5, "expires": NS}, most=5)
    t.ack(got[2])
    t.consumer_state("AA", "C")
    t.ack(got[4])
    t.consumer_state("AA", "C")
    t.fill("AA.x", 5)
    got = t.pull("AA", "C", {"batch": 5, "expires": NS}, most=5, log=False)
    t.ack(got[3], "+TERM")
    t.consumer_state("AA", "C")


@case("ack/none")
def _(t):
    t.stream("AN")
    t.fill("AN.x", 3)
    t.consumer("AN", "C", ack_policy="none")
    t.pull("AN", "C", {"batch": 2, "expires": NS}, most=2)
    t.consumer_state("AN", "C")
    t.pull("AN", "C", {"batch": 5, "no_wait": True})
    t.consumer_state("AN", "C")


@case("ack/verbs")
def _(t):
    t.stream("AV")
    t.fill("AV.x", 6)
    t.consumer("AV", "C", ack_wait=30 * NS)
    got = t.pull("AV", "C", {"batch": 6, "expires": NS}, most=6, log=False)
    for op, verb in zip(got, ("", "+ACK", "+OK", "+TERM", "+TERM because", "+WPI")):
        answer = t.c.request(op[3], verb)
        t.log(f"{verb!r}: {answer[4]!r} {answer[5]!r}")
    t.consumer_state("AV", "C")


@case("ack/unknown-payloads")
def _(t):
    t.stream("AU")
    t.fill("AU.x", 2)
    t.consumer("AU", "C")
    got = t.pull("AU", "C", {"batch": 2, "expires": NS}, most=2, log=False)
    t.c.request(got[0][3], "+ACK")
    for payload in ("nonsense", "+NONSENSE", "ack", "+ACK ", "+ACKx", "+OK ", "+wpi", "+WPIx", " "):
        for op in got:
            answer = t.c.request(op[3], payload)
            t.log(f"{payload!r}: {answer[4]!r} {answer[5]!r}")
    t.consumer_state("AU", "C")


@case("ack/nobody-takes-it")
def _(t):
    t.stream("AG")
    t.fill("AG.x", 2)
    t.consumer("AG", "C")
    t.consumer("AG", "N", ack_policy="none")
    got = t.pull("AG", "C", {"batch": 2, "expires": NS}, most=2, log=False)
    none = t.pull("AG", "N", {"batch": 1, "expires": NS}, most=1, log=False)
    t.ask(none[0][3], "+ACK")
    t.api("CONSUMER.DELETE.AG.C", log=False)
    time.sleep(0.5)
    for payload in ("", "+ACK", "-NAK", "+NXT", "nonsense"):
        t.log(f"> {payload!r}")
        t.ask(got[0][3], payload)


@case("ack/nak")
def _(t):
    t.stream("NK")
    t.fill("NK.x", 2)
    t.consumer("NK", "C")
    got = t.pull("NK", "C", {"batch": 2, "expires": NS}, most=2)
    t.ack(got[0], "-NAK")
    t.consumer_state("NK", "C")
    again = t.pull("NK", "C", {"batch": 1, "expires": NS}, most=1)
    for payload in ('-NAK {"delay": 600000000}', "-NAK 600ms"):
        t.ack(again[0], payload)
        started = time.monotonic()
        again = t.pull("NK", "C", {"batch": 1, "expires": 3 * NS}, most=1)
        t.took("redelivered", started, 0.4, 2.0)
    t.ack(again[0])
    t.consumer_state("NK", "C")


@case("ack/wait-and-redelivery")
def _(t):
    t.stream("AW")
    t.fill("AW.x", 3)
    t.consumer("AW", "C", ack_wait=NS // 2)
    got = t.pull("AW", "C", {"batch": 3, "expires": NS}, most=3)
    t.ack(got[1])
    started = time.monotonic()
    got = t.pull("AW", "C", {"batch": 2, "expires": 3 * NS}, most=2)
    t.took("redelivered", started, 0.2, 2.0)
    for op in got:
        t.ack(op)
    t.consumer_state("AW", "C")


@case("ack/in-progress")
def _(t):
    t.stream("WP")
    t.fill("WP.x", 1)
    t.consumer("WP", "C", ack_wait=NS)
    got = t.pull("WP", "C", {"batch": 1, "expires": NS}, most=1)
    for _ in range(3):
        time.sleep(0.6)
        t.ack(got[0], "+WPI")
    t.pull("WP", "C", {"batch": 1, "no_wait": True})
    t.pull("WP", "C", {"batch": 1, "expires": 3 * NS}, most=1)


@case("ack/next")
def _(t):
    t.stream("NX")
    t.fill("NX.x", 3)
    t.consumer("NX", "C")
    got = t.pull("NX", "C", "1", timeout=1, most=1)
    for body in ("+NXT", "+NXT 1", '+NXT {"batch":1,"no_wait":true}', '+NXT {"batch":1,"no_wait":true}'):
        reply = t.c.new_reply()
        t.c.pub(got[0][3], body, reply)
        ops = t.c.collect(1.5, most=1)
        t.log(f"> {body}")
        t.answers(ops, reply)
        got = [op for op in ops if op[3].startswith("$JS.ACK")]
        if not got:
            break
    t.consumer_state("NX", "C")


@case("ack/late-and-foreign")
def _(t):
    t.stream("LF")
    t.fill("LF.x", 2)
    t.consumer("LF", "C")
    got = t.pull("LF", "C", {"batch": 2, "expires": NS}, most=2, log=False)
    t.api("STREAM.MSG.DELETE.LF", {"seq": 1}, log=False)
    t.ack(got[0])
    t.consumer_state("LF", "C")
    foreign = ".".join(got[1][3].split(".")[:4] + ["1", "77", "77", "1600000000000000000", "0"])
    t.c.pub(foreign, "+ACK")
    t.c.flush()
    time.sleep(0.3)
    t.consumer_state("LF", "C")


@case("consumer/max-deliver")
def _(t):
    t.stream("MD1")
    t.fill("MD1.x", 2)
    advisories = t.connect()
    advisories.sub("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.MD1.*")
    advisories.flush()
    t.consumer("MD1", "C", ack_wait=NS // 2, max_deliver=2)
    for _ in range(3):
        t.pull("MD1", "C", {"batch": 2, "expires": NS + NS // 2}, timeout=3, most=2)
    t.consumer_state("MD1", "C")
    for op in advisories.collect(0.5):
        advice = json.loads(op[5])
        t.log(f"advisory {op[1]} {advice.get('type')} {sorted(advice)} stream_seq {advice.get('stream_seq')} deliveries {advice.get('deliveries')}")
    t.fill("MD1.x", 1, start=3)
    t.pull("MD1", "C", {"batch": 1, "expires": NS}, most=1)


@case("consumer/backoff")
def _(t):
    t.stream("BO")
    t.fill("BO.x", 1)
    t.consumer("BO", "C", backoff=[NS // 2, NS + NS // 2], max_deliver=4)
    t.pull("BO", "C", {"batch": 1, "expires": NS}, most=1)
    for low, high in ((0.3, 1.3), (1.2, 2.8)):
        started = time.monotonic()
        t.pull("BO", "C", {"batch": 1, "expires": 4 * NS}, timeout=5, most=1)
        t.took("redelivered", started, low, high)


@case("consumer/max-ack-pending")
def _(t):
    t.stream("MAP")
    t.fill("MAP.x", 5)
    t.consumer("MAP", "C", max_ack_pending=2)
    got = t.pull("MAP", "C", {"batch": 5, "expires": NS})
    t.consumer_state("MAP", "C")
    t.ack(got[0])
    t.pull("MAP", "C", {"batch": 5, "expires": NS})
    t.consumer_state("MAP", "C")


@case("consumer/pending-follows-deletes")
def _(t):
    t.stream("PFD")
    t.fill("PFD.{n}", 10)
    t.consumer("PFD", "C", max_ack_pending=3)
    t.consumer("PFD", "F", filter_subject="PFD.7")
    t.pull("PFD", "C", {"batch": 3, "expires": NS}, most=3, log=False)
    t.api("STREAM.MSG.DELETE.PFD", {"seq": 7}, log=False)
    t.consumer_state("PFD", "C")
    t.consumer_state("PFD", "F")
    t.api("STREAM.PURGE.PFD", {"seq": 6}, log=False)
    t.consumer_state("PFD", "C")
    t.pull("PFD", "C", {"batch": 2, "expires": NS}, most=2)
    t.api("STREAM.PURGE.PFD", log=False)
    t.consumer_state("PFD", "C")


@case("consumer/deliver-policies")
def _(t):
    t.stream("DP")
    for n in range(1, 10):
        t.publish(f"DP.{'abc'[n % 3]}", f"m{n}", log=False)
    time.sleep(0.2)
    when = json.loads(t.c.request("$JS.API.STREAM.MSG.GET.DP", '{"seq":7}')[5])["message"]["time"]
    for name, config in (
        ("ALL", {}), ("LAST", {"deliver_policy": "last"}), ("NEW", {"deliver_policy": "new"}), ("SEQ", {"deliver_policy": "by_start_sequence", "opt_start_seq": 8}),
        ("FAR", {"deliver_policy": "by_start_sequence", "opt_start_seq": 50}), ("TIME", {"deliver_policy": "by_start_time", "opt_start_time": when}),
        ("LPS", {"deliver_policy": "last_per_subject", "filter_subject": "DP.>"}), ("LASTF", {"deliver_policy": "last", "filter_subject": "DP.b"}),
    ):
        t.consumer("DP", name, ack_policy="none", **config)
        t.log(f"{name}:")
        t.consumer_state("DP", name)
        t.pull("DP", name, {"batch": 20, "no_wait": True})


@case("consumer/filters")
def _(t):
    t.stream("FI", subjects=["FI.>", "other.*"])
    for n in range(1, 13):
        t.publish(("FI.a", "FI.b.c", "other.x", "FI.b.d")[n % 4], f"m{n}", log=False)
    for name, config in (
        ("ONE", {"filter_subject": "FI.a"}), ("WILD", {"filter_subject": "FI.b.*"}), ("MANY", {"filter_subjects": ["FI.a", "other.>"]}), ("NONE", {"filter_subject": "nothing"}),
    ):
        t.consumer("FI", name, ack_policy="none", **config)
        t.log(f"{name}:")
        t.consumer_state("FI", name)
        t.pull("FI", name, {"batch": 20, "no_wait": True})


@case("consumer/headers-only")
def _(t):
    t.stream("HO")
    t.publish("HO.x", "body", headers={"K": "v"}, log=False)
    t.publish("HO.x", "no headers", log=False)
    t.consumer("HO", "C", ack_policy="none", headers_only=True)
    t.pull("HO", "C", {"batch": 2, "no_wait": True})


@case("consumer/ephemeral-goes-away")
def _(t):
    t.stream("EP")
    create(t, "EP", "E", {"name": "E", "ack_policy": "none", "inactive_threshold": NS // 2}, log=False)
    t.log(f"names: {t.api('CONSUMER.NAMES.EP', log=False)['consumers']}")
    deadline = time.monotonic() + 8
    while time.monotonic() < deadline and t.api("CONSUMER.NAMES.EP", log=False)["consumers"]:
        time.sleep(0.1)
    t.log(f"names: {t.api('CONSUMER.NAMES.EP', log=False)['consumers']}")


@case("consumer/ephemeral-of-a-nanosecond")
def _(t):
    t.stream("EN")
    answer = create(t, "EN", "E", {"name": "E", "ack_policy": "none", "inactive_threshold": 1}, log=False)
    t.json("< ", answer.get("error") or answer["config"]["inactive_threshold"])


@case("consumer/ephemeral-stays-while-used")
def _(t):
    t.stream("ES2")
    create(t, "ES2", "E", {"name": "E", "ack_policy": "none", "inactive_threshold": NS}, log=False)
    for _ in range(4):
        t.pull("ES2", "E", {"batch": 1, "expires": 700_000_000}, log=False)
    t.log(f"names: {t.api('CONSUMER.NAMES.ES2', log=False)['consumers']}")


@case("consumer/memory-and-one-replica")
def _(t):
    t.stream("MR")
    t.fill("MR.x", 3)
    t.settle("MR")
    create(t, "MR", "O", {"name": "O", "ack_policy": "none", "mem_storage": True, "num_replicas": 1, "max_deliver": 1, "inactive_threshold": 60 * NS})
    t.pull("MR", "O", {"batch": 5, "no_wait": True})


@case("consumer/workqueue")
def _(t):
    t.stream("WQ", retention="workqueue")
    t.fill("WQ.{n}", 3)
    t.consumer("WQ", "C")
    for config in ({"ack_policy": "none"}, {"ack_policy": "explicit", "deliver_policy": "new"}, {"ack_policy": "explicit"}):
        t.json("< ", create(t, "WQ", "D", {"durable_name": "D", **config}, log=False).get("error", "created"))
    for op in t.pull("WQ", "C", {"batch": 2, "expires": NS}, most=2):
        t.ack(op)
    t.state("WQ")


@case("consumer/interest")
def _(t):
    t.stream("IN", retention="interest")
    t.fill("IN.x", 2)
    t.state("IN")
    t.consumer("IN", "A")
    t.consumer("IN", "B")
    t.fill("IN.x", 2)
    for name in "AB":
        for op in t.pull("IN", name, {"batch": 2, "expires": NS}, most=2, log=False):
            t.ack(op)
        t.state("IN")


@case("consumer/many-messages")
def _(t):
    t.stream("MM")
    inbox = t.c.inbox + ".p"
    t.c.sub(inbox)
    for n in range(3000):
        t.c.pub("MM.x", f"m{n}", reply=inbox)
    t.c.collect(3, most=3000)
    t.consumer("MM", "C", max_ack_pending=5000)
    seen = []
    while len(seen) < 3000:
        got = t.pull("MM", "C", {"batch": 500, "expires": 2 * NS}, most=500, log=False)
        if not got:
            break
        seen.extend(int(op[3].split(".")[5]) for op in got)
        for op in got:
            t.ack(op, confirm=False)
    t.log(f"{len(seen)} deliveries, in order: {seen == list(range(1, 3001))}")
    t.consumer_state("MM", "C")


@case("consumer/from-another-node", modes=("cluster",))
def _(t):
    t.stream("AN1")
    t.fill("AN1.x", 6)
    t.consumer("AN1", "C")
    for node in (1, 2):
        conn = t.connect(node)
        got = t.pull("AN1", "C", {"batch": 3, "expires": 2 * NS}, conn=conn, most=3)
        for op in got:
            conn.request(op[3], "+ACK")
    t.consumer_state("AN1", "C")
