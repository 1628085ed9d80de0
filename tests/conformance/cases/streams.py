"""Streams through the API: creation, limits, updates, purges, deletes, listings."""

import json
import time

from harness import Timeout, case

PICK = ("type", "config", "state", "did_create")


@case("api/info")
def _(t):
    info = t.api("INFO", log=False)
    t.log(f"keys: {sorted(k for k in info if k not in ('tiers', 'domain', 'ts'))}")
    t.json("limits: ", info.get("limits"))
    t.log(f"type: {info.get('type')}")
    t.log(f"api level at least 4: {info['api'].get('level', 0) >= 4}, total and errors counted: {'total' in info['api'] and 'errors' in info['api']}")
    before = info["streams"]
    t.stream("INFO")
    t.log(f"streams counted: {t.api('INFO', log=False)['streams'] - before}")


@case("api/unknown-subjects")
def _(t):
    for subject in ("NONSENSE", "STREAM", "STREAM.NONSENSE.X", "CONSUMER.NONSENSE.X.Y"):
        t.log(f"> {subject}")
        try:
            t.ask(f"$JS.API.{subject}", timeout=1.5)
        except Timeout:
            t.log("< (nothing)")


@case("stream/create")
def _(t):
    t.api("STREAM.CREATE.S1", {"name": "S1", "subjects": ["s1.>"], "num_replicas": t.replicas}, only=PICK)


@case("stream/create-defaults")
def _(t):
    t.api("STREAM.CREATE.S2", {"name": "S2"}, only=("config",))
    t.publish("S2", "to the default subject")
    t.api("STREAM.CREATE.S3", {"name": "S3", "max_age": 1_000_000_000, "num_replicas": 0}, only=("config",))


@case("stream/create-everything")
def _(t):
    t.api(
        "STREAM.CREATE.ALL",
        {
            "name": "ALL", "description": "d", "subjects": ["all.a", "all.b.*"], "retention": "limits", "max_consumers": 7, "max_msgs": 100,
            "max_bytes": 100_000, "discard": "new", "max_age": 3_600_000_000_000, "max_msgs_per_subject": 5, "discard_new_per_subject": True,
            "max_msg_size": 1000, "storage": "file", "num_replicas": t.replicas, "no_ack": False, "duplicate_window": 60_000_000_000,
            "sealed": False, "deny_delete": True, "deny_purge": True, "allow_rollup_hdrs": False, "allow_direct": True, "mirror_direct": False,
            "metadata": {"k": "v"}, "consumer_limits": {}, "allow_msg_ttl": False,
        },
        only=PICK,
    )


@case("stream/create-for-bench")
def _(t):
    body = {
        "name": "benchstream", "subjects": ["js.s"], "retention": "limits", "max_consumers": -1, "max_msgs": -1, "max_bytes": 1 << 30, "discard": "new",
        "max_age": 0, "max_msgs_per_subject": -1, "max_msg_size": -1, "storage": "file", "num_replicas": t.replicas, "duplicate_window": 120_000_000_000,
        "allow_direct": True, "allow_atomic": True, "allow_batched": True, "sealed": False, "deny_delete": False, "deny_purge": False,
        "allow_rollup_hdrs": False, "consumer_limits": {}, "mirror_direct": False,
    }
    t.api("STREAM.CREATE.benchstream", body, headers={"Nats-Required-Api-Level": "3"}, only=PICK)
    t.api("STREAM.INFO.benchstream", only=("config", "state"))


@case("stream/create-memory")
def _(t):
    t.api("STREAM.CREATE.MEM", {"name": "MEM", "subjects": ["mem"], "storage": "memory", "num_replicas": t.replicas}, only=("config",))
    t.publish("mem", "x")
    t.state("MEM")


@case("stream/create-idempotent")
def _(t):
    body = {"name": "IDEM", "subjects": ["idem.>"], "num_replicas": t.replicas, "max_msgs": 10, "metadata": {"a": "1"}}
    t.api("STREAM.CREATE.IDEM", body, only=("did_create",))
    t.api("STREAM.CREATE.IDEM", body, only=("did_create",))
    t.api("STREAM.CREATE.IDEM", {**body, "storage": "file", "max_bytes": -1, "duplicate_window": 120_000_000_000}, only=("did_create",))
    for change in ({"max_msgs": 11}, {"subjects": ["idem.>", "idem2"]}, {"metadata": {"a": "2"}}, {"metadata": {}}, {"description": "x"}):
        t.api("STREAM.CREATE.IDEM", {**body, **change}, only=("did_create",))


@case("stream/create-errors")
def _(t):
    t.stream("TAKEN", subjects=["taken.>"])
    r = t.replicas
    for name, body in [
        ("X", {}),
        ("X", {"name": "Y"}),
        ("X", {"name": "X", "subjects": ["taken.a"]}),
        ("X", {"name": "X", "subjects": ["*.a"]}),
        ("X", {"name": "X", "subjects": ["a", "a"]}),
        ("X", {"name": "X", "subjects": ["a.*", "a.b"]}),
        ("X", {"name": "X", "subjects": ["a..b"]}),
        ("X", {"name": "X", "subjects": [""]}),
        ("X", {"name": "X", "subjects": ["$JS.API.>"]}),
        ("X", {"name": "X", "subjects": ["$SYS.x"]}),
        ("X", {"name": "X", "subjects": [">"]}),
        ("X", {"name": "X", "subjects": ["x"], "num_replicas": 6}),
        ("X", {"name": "X", "subjects": ["x"], "num_replicas": -1}),
        ("X", {"name": "X", "subjects": ["x"], "num_replicas": r, "max_age": 1000}),
        ("X", {"name": "X", "subjects": ["x"], "num_replicas": r, "max_age": -1}),
        ("X", {"name": "X", "subjects": ["x"], "num_replicas": r, "duplicate_window": 1000}),
        ("X", {"name": "X", "subjects": ["x"], "num_replicas": r, "duplicate_window": -1}),
        ("X", {"name": "X", "subjects": ["x"], "num_replicas": r, "max_age": 1_000_000_000, "duplicate_window": 2_000_000_000}),
        ("X", {"name": "X", "subjects": ["x"], "num_replicas": r, "discard_new_per_subject": True}),
        ("X", {"name": "X", "subjects": ["x"], "num_replicas": r, "discard": "new", "discard_new_per_subject": True}),
        ("X", {"name": "X", "subjects": ["x"], "num_replicas": r, "deny_purge": True, "allow_rollup_hdrs": True}),
        ("X", {"name": "X", "subjects": ["x"], "num_replicas": r, "sealed": True}),
        ("X", {"name": "X", "subjects": ["x"], "num_replicas": r, "mirror_direct": True}),
        ("X", {"name": "X", "subjects": ["x"], "num_replicas": r, "description": "d" * 5000}),
        ("X", {"name": "X", "subjects": ["x"], "num_replicas": r, "retention": "nonsense"}),
        ("X", {"name": "X", "subjects": ["x"], "num_replicas": r, "storage": "tape"}),
        ("X", {"name": "X", "subjects": ["x"], "num_replicas": r, "discard": "some"}),
        ("a*b", {"name": "a*b"}),
        ("N" * 256, {"name": "N" * 256}),
    ]:
        subject = f"STREAM.CREATE.{name}"
        shown = name if len(name) < 50 else "N*256"
        text = json.dumps(body)
        t.log(f"> STREAM.CREATE.{shown} {text if len(text) < 300 else text[:80] + '...'}")
        answer = t.api(subject, body, log=False)
        t.json("< ", answer.get("error", "created"))
        if "error" not in answer:
            t.api(f"STREAM.DELETE.{name}", log=False)


@case("stream/create-replicas-on-one-node", modes=("single",))
def _(t):
    t.api("STREAM.CREATE.X", {"name": "X", "subjects": ["x"], "num_replicas": 3})


@case("stream/create-more-replicas-than-nodes", modes=("cluster",))
def _(t):
    answer = t.c.request("$JS.API.STREAM.CREATE.X", json.dumps({"name": "X", "subjects": ["x"], "num_replicas": 5}), timeout=10)
    error = json.loads(answer[5])["error"]
    t.json("< ", {k: error[k] for k in ("code", "err_code")})


@case("api/strict-json")
def _(t):
    t.stream("STRICT")
    t.consumer("STRICT", "C")
    for subject, body in [
        ("STREAM.CREATE.X", '{"name":"X","nonsense":1}'),
        ("STREAM.CREATE.X", '{"name":"X","rollup_hdrs":true}'),
        ("STREAM.CREATE.X", '{"name":"X"'),
        ("STREAM.CREATE.X", "not json"),
        ("STREAM.CREATE.X", '{"name":7}'),
        ("STREAM.CREATE.X", '{"name":"X","max_msgs":"ten"}'),
        ("STREAM.CREATE.X", '{"name":"X","max_msgs":1.5}'),
        ("STREAM.CREATE.X", "[]"),
        ("STREAM.UPDATE.STRICT", '{"name":"STRICT","nonsense":1}'),
        ("STREAM.INFO.STRICT", '{"nonsense":1}'),
        ("STREAM.INFO.STRICT", "x"),
        ("STREAM.NAMES", '{"nonsense":1}'),
        ("STREAM.LIST", '{"nonsense":1}'),
        ("STREAM.PURGE.STRICT", '{"nonsense":1}'),
        ("STREAM.MSG.GET.STRICT", '{"nonsense":1}'),
        ("STREAM.MSG.GET.STRICT", ""),
        ("STREAM.MSG.GET.STRICT", "x"),
        ("STREAM.MSG.GET.STRICT", "1"),
        ("STREAM.MSG.DELETE.STRICT", '{"nonsense":1}'),
        ("STREAM.MSG.DELETE.STRICT", ""),
        ("STREAM.MSG.DELETE.STRICT", "x"),
        ("STREAM.CREATE.X", "null"),
        ("CONSUMER.CREATE.STRICT.D", "null"),
        ("STREAM.DELETE.STRICT", "{}"),
        ("STREAM.DELETE.STRICT", "x"),
        ("CONSUMER.CREATE.STRICT.D", '{"stream_name":"STRICT","config":{"nonsense":1}}'),
        ("CONSUMER.CREATE.STRICT.D", '{"stream_name":"STRICT","nonsense":1,"config":{}}'),
        ("CONSUMER.INFO.STRICT.C", "{}"),
        ("CONSUMER.INFO.STRICT.C", "x"),
        ("CONSUMER.NAMES.STRICT", '{"nonsense":1}'),
        ("CONSUMER.LIST.STRICT", '{"nonsense":1}'),
        ("CONSUMER.DELETE.STRICT.C", "x"),
    ]:
        t.log(f"> {subject} {body}")
        t.json("< ", t.api(subject, body, log=False).get("error", "accepted"))


@case("api/arrays-are-no-objects")
def _(t):
    t.stream("ARR", allow_direct=True)
    t.consumer("ARR", "C")
    t.fill("ARR.x", 3)
    for subject, body in [
        ("STREAM.CREATE.X", '["X"]'),
        ("STREAM.CREATE.X", '{"name":"X","consumer_limits":[]}'),
        ("STREAM.CREATE.X", '{"name":"X","placement":["c"]}'),
        ("STREAM.UPDATE.ARR", '["ARR"]'),
        ("STREAM.INFO.ARR", "[]"),
        ("STREAM.NAMES", "[]"),
        ("STREAM.LIST", "[0]"),
        ("STREAM.PURGE.ARR", "[]"),
        ("STREAM.PURGE.ARR", '["ARR.x"]'),
        ("STREAM.PURGE.ARR", "[null,3]"),
        ("STREAM.MSG.GET.ARR", "[1]"),
        ("STREAM.MSG.DELETE.ARR", "[1]"),
        ("CONSUMER.CREATE.ARR", '["ARR",{"name":"Z"},"create"]'),
        ("CONSUMER.CREATE.ARR.Z", '["ARR",["Z","Z"]]'),
        ("CONSUMER.CREATE.ARR.Z", '{"stream_name":"ARR","config":["Z","Z"]}'),
        ("CONSUMER.DURABLE.CREATE.ARR.Z", '["ARR",{"durable_name":"Z"}]'),
        ("CONSUMER.NAMES.ARR", "[]"),
        ("CONSUMER.LIST.ARR", "[]"),
        ("CONSUMER.PAUSE.ARR.C", "[]"),
    ]:
        t.log(f"> {subject} {body}")
        t.json("< ", t.api(subject, body, log=False).get("error", "accepted"))
    t.log("> direct [1]")
    t.ask("$JS.API.DIRECT.GET.ARR", "[1]")
    t.state("ARR")


@case("api/level-header")
def _(t):
    t.stream("LEVEL")
    for level in ("0", "1", "2", "3", "4", "99", "x", "-1"):
        t.log(f"> STREAM.INFO.LEVEL, level {level}")
        t.json("< ", t.api("STREAM.INFO.LEVEL", headers={"Nats-Required-Api-Level": level}, log=False).get("error", "answered"))
    t.log("> STREAM.CREATE, level 99")
    t.json("< ", t.api("STREAM.CREATE.L2", {"name": "L2"}, headers={"Nats-Required-Api-Level": "99"}, log=False).get("error", "created"))


@case("stream/info")
def _(t):
    t.stream("INFO1", subjects=["i.*"])
    for n in range(6):
        t.publish(f"i.{n % 3}", f"m{n}", log=False)
    t.settle("INFO1")
    t.api("STREAM.INFO.INFO1", only=("type", "config", "state"))
    t.state("INFO1", {"subjects_filter": ">"})
    t.state("INFO1", {"subjects_filter": "i.1"})
    t.state("INFO1", {"subjects_filter": "none"})
    t.api("STREAM.MSG.DELETE.INFO1", {"seq": 3}, log=False)
    t.state("INFO1", {"deleted_details": True})
    t.api("STREAM.INFO.NOSUCH")
    answer = t.api("STREAM.INFO.INFO1", log=False)
    t.log(f"keys: {sorted(k for k in answer if k not in ('cluster', 'domain', 'alternates'))}")


@case("stream/subjects-paging")
def _(t):
    t.stream("PAGES")
    t.fill("PAGES.{n}", 30)
    t.settle("PAGES")
    answer = t.api("STREAM.INFO.PAGES", {"subjects_filter": ">", "offset": 25}, log=False)
    t.json("< ", {k: answer.get(k) for k in ("total", "offset", "limit")})
    t.log(f"subjects: {len(answer['state'].get('subjects') or {})}")
    for body in ({"subjects_filter": "none"}, {"subjects_filter": ">", "offset": 100}, {"subjects_filter": ">", "offset": -1}):
        answer = t.api("STREAM.INFO.PAGES", body, log=False)
        t.json(f"{body}: ", {k: answer.get(k) for k in ("total", "offset", "limit")})


@case("stream/names-and-list")
def _(t):
    for name, subject in (("NA", "na.>"), ("NB", "nb.*"), ("NC", "nc")):
        t.stream(name, subjects=[subject])
    for body in (None, {"subject": "na.x"}, {"subject": "nb.>"}, {"subject": "*"}, {"subject": "zz"}, {"offset": 1}, {"offset": 5}):
        names = t.api("STREAM.NAMES", body, log=False)
        t.log(f"> STREAM.NAMES {body}")
        t.json("< ", names)
        listed = t.api("STREAM.LIST", body, log=False)
        t.log(f"LIST: total {listed.get('total')}, offset {listed.get('offset')}, limit {listed.get('limit')}, {[s['config']['name'] for s in listed.get('streams') or []]}")
    listed = t.api("STREAM.LIST", log=False)
    t.log(f"keys of an entry: {sorted(k for k in listed['streams'][0] if k not in ('cluster', 'domain', 'alternates'))}")


@case("stream/update")
def _(t):
    t.stream("UP", max_msgs=10, metadata={"a": "1"})
    t.fill("UP.x", 8)
    base = {"name": "UP", "subjects": ["UP.>"], "num_replicas": t.replicas, "max_msgs": 10, "metadata": {"a": "1"}}
    t.api("STREAM.UPDATE.UP", {**base, "max_msgs": 5, "description": "new", "subjects": ["UP.>", "extra"]}, only=("config", "state"))
    t.state("UP")
    t.publish("extra", "to the new subject")
    for change in (
        {"storage": "memory"}, {"retention": "workqueue"}, {"name": "OTHER"}, {"max_consumers": 3}, {"sealed": False, "deny_delete": True},
        {"deny_delete": False}, {"subjects": ["UP.>"], "metadata": {"b": "2"}}, {"discard": "new"}, {"duplicate_window": 500_000_000}, {"first_seq": 5},
    ):
        answer = t.api("STREAM.UPDATE.UP", {**base, **change}, log=False)
        t.log(f"> UPDATE {change}")
        t.json("< ", answer.get("error") or answer["config"])
    t.api("STREAM.UPDATE.NOSUCH", {"name": "NOSUCH"})


@case("stream/delete")
def _(t):
    t.stream("DELS")
    t.fill("DELS.x", 3)
    t.api("STREAM.DELETE.DELS")
    t.api("STREAM.DELETE.DELS")
    t.api("STREAM.INFO.DELS")
    t.ask("DELS.x", "to nobody")
    t.stream("DELS")
    t.state("DELS")
    t.publish("DELS.x", "first again")


@case("stream/overlap-after-delete")
def _(t):
    t.stream("OVA", subjects=["ov.>"])
    t.json("< ", t.api("STREAM.CREATE.OVB", {"name": "OVB", "subjects": ["ov.a"]}, log=False)["error"])
    t.api("STREAM.DELETE.OVA", log=False)
    t.stream("OVB", subjects=["ov.a"])
    t.publish("ov.a", "x")


@case("stream/purge-table")
def _(t):
    for name, body in [
        ("P0", None), ("P1", {}), ("P2", {"seq": 0}), ("P3", {"seq": 1}), ("P4", {"seq": 5}), ("P5", {"seq": 10}), ("P6", {"seq": 11}), ("P7", {"seq": 12}),
        ("P8", {"seq": 1 << 63}), ("P9", {"keep": 0}), ("P10", {"keep": 1}), ("P11", {"keep": 10}), ("P12", {"keep": 11}), ("P13", {"seq": 5, "keep": 1}),
        ("P14", {"filter": "{s}.a"}), ("P15", {"filter": "{s}.a", "seq": 5}), ("P16", {"filter": "{s}.a", "keep": 2}), ("P17", {"filter": "{s}.none"}),
        ("P18", {"filter": "{s}.>"}), ("P19", {"filter": "other.>"}), ("P20", {"filter": "{s}.*", "keep": 3}), ("P21", {"filter": ""}),
    ]:
        t.stream(name)
        for n in range(10):
            t.publish(f"{name}.{'abc'[n % 3]}", f"m{n}", log=False)
        if body and "filter" in body:
            body = {**body, "filter": body["filter"].replace("{s}", name)}
        t.api(f"STREAM.PURGE.{name}", body)
        t.state(name, {"subjects_filter": ">", "deleted_details": True})
        t.publish(f"{name}.a", "after", log=False)
        t.state(name)
    t.api("STREAM.PURGE.NOSUCH")


@case("stream/purge-denied")
def _(t):
    t.stream("DENY", deny_purge=True, deny_delete=True)
    t.fill("DENY.x", 2)
    t.api("STREAM.PURGE.DENY")
    t.api("STREAM.MSG.DELETE.DENY", {"seq": 1})
    t.state("DENY")


@case("stream/message-delete")
def _(t):
    t.stream("MD")
    t.fill("MD.x", 6)
    for body in ({"seq": 3}, {"seq": 3}, {"seq": 5, "no_erase": True}, {"seq": 0}, {"seq": 99}, {"seq": 1}, {"seq": 6}):
        t.api("STREAM.MSG.DELETE.MD", body)
    t.state("MD", {"deleted_details": True})
    t.publish("MD.x", "next")
    for seq in range(1, 8):
        t.api("STREAM.MSG.GET.MD", {"seq": seq}, log=False)
    # Before the first one by now, and beyond all.
    for seq in (1, (1 << 64) - 1):
        t.api("STREAM.MSG.DELETE.MD", {"seq": seq})
    t.api("STREAM.MSG.DELETE.NOSUCH", {"seq": 1})


@case("stream/sealed")
def _(t):
    t.stream("SEAL")
    t.fill("SEAL.x", 3)
    t.api("STREAM.UPDATE.SEAL", {"name": "SEAL", "subjects": ["SEAL.>"], "num_replicas": t.replicas, "sealed": True}, only=("config",))
    t.publish("SEAL.x", "no")
    t.api("STREAM.PURGE.SEAL")
    t.api("STREAM.MSG.DELETE.SEAL", {"seq": 1})
    t.state("SEAL")


@case("stream/sealing-keeps-what-is-denied")
def _(t):
    base = {"name": "SEAL2", "subjects": ["SEAL2.>"], "num_replicas": t.replicas}
    t.stream("SEAL2", deny_purge=True, deny_delete=True)
    for named in ({}, {"deny_delete": True}, {"deny_purge": True}, {"deny_purge": True, "deny_delete": True}):
        t.api("STREAM.UPDATE.SEAL2", {**base, **named, "sealed": True}, only=("config",))


@case("stream/pedantic-duplicate-window")
def _(t):
    for config in ({"max_age": 1_000_000_000}, {"max_age": 1_000_000_000, "duplicate_window": 1_000_000_000}):
        answer = t.api("STREAM.CREATE.PDW", {"name": "PDW", "pedantic": True, "num_replicas": t.replicas, **config}, log=False)
        t.log(f"> create {config}")
        t.json("< ", answer.get("error", "created"))


@case("stream/many-subjects")
def _(t):
    subjects = [f"MANY.{n}.{'*' if n % 2 else 'x'}" for n in range(5000)]
    t.json("< ", t.api("STREAM.CREATE.MANY", {"name": "MANY", "subjects": [*subjects, "MANY.*.x"], "num_replicas": t.replicas}, log=False).get("error", "created"))
    t.stream("MANY", subjects=subjects)
    t.publish("MANY.4998.x", "last but one")
    t.publish("MANY.4999.any", "last")
    t.json("< ", t.api("STREAM.CREATE.MANY2", {"name": "MANY2", "subjects": ["other", "MANY.*.x"], "num_replicas": t.replicas}, log=False).get("error", "created"))


@case("limits/discard-old-messages")
def _(t):
    t.stream("LO", max_msgs=3)
    t.fill("LO.{n}", 5)
    t.state("LO", {"subjects_filter": ">"})


@case("limits/discard-new-messages")
def _(t):
    t.stream("LN", max_msgs=3, discard="new")
    t.fill("LN.x", 3)
    t.publish("LN.x", "one too many")
    t.api("STREAM.MSG.DELETE.LN", {"seq": 2}, log=False)
    t.publish("LN.x", "there is room again")
    t.state("LN")


@case("limits/bytes-old")
def _(t):
    t.stream("LB", max_bytes=2000)
    for _ in range(20):
        t.publish("LB.x", "x" * 200, log=False)
    info = t.api("STREAM.INFO.LB", log=False)
    t.log(f"bytes within the limit: {info['state']['bytes'] <= 2000}, last_seq {info['state']['last_seq']}")
    t.log(f"bytes {info['state']['bytes']}, messages {info['state']['messages']}")
    t.publish("LB.x", "x" * 3000)


@case("limits/bytes-new")
def _(t):
    t.stream("LBN", max_bytes=1000, discard="new")
    refused = None
    for n in range(20):
        answer = json.loads(t.publish("LBN.x", "x" * 100, log=False)[5])
        if "error" in answer:
            refused = (n, answer["error"])
            break
    t.json("refused: ", refused)
    t.state("LBN")


@case("limits/per-subject-old")
def _(t):
    t.stream("LS", max_msgs_per_subject=2)
    for n in range(10):
        t.publish(f"LS.{n % 3}", f"m{n}", log=False)
    t.state("LS", {"subjects_filter": ">", "deleted_details": True})


@case("limits/per-subject-new")
def _(t):
    t.stream("LSN", max_msgs_per_subject=1, discard="new", discard_new_per_subject=True, max_msgs=3)
    t.publish("LSN.a", "1")
    t.publish("LSN.a", "2")
    t.publish("LSN.b", "3")
    t.publish("LSN.c", "4")
    t.publish("LSN.d", "5")
    t.state("LSN", {"subjects_filter": ">"})


@case("limits/per-subject-old-with-discard-new")
def _(t):
    t.stream("KVL", max_msgs_per_subject=2, discard="new", max_msgs=5)
    for n in range(6):
        t.publish("KVL.a", f"m{n}", log=False)
    t.state("KVL", {"subjects_filter": ">"})
    for subject in "bcde":
        t.publish(f"KVL.{subject}", subject)
    t.publish("KVL.a", "an old one of its subject makes room")
    t.state("KVL", {"subjects_filter": ">"})


@case("limits/message-size")
def _(t):
    t.stream("SZ", max_msg_size=10)
    t.publish("SZ.x", "0123456789")
    t.publish("SZ.x", "0123456789a")
    t.publish("SZ.x", "01234", headers={"A": "12345"})


@case("limits/age")
def _(t):
    t.stream("AGE", max_age=500_000_000)

    def wait_until_empty():
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline and t.api("STREAM.INFO.AGE", log=False)["state"]["messages"]:
            time.sleep(0.05)

    # Some time passes while there is nothing to expire.
    time.sleep(0.3)
    t.fill("AGE.x", 3)
    time.sleep(0.25)
    t.publish("AGE.x", "later", log=False)
    t.state("AGE", keys=("messages", "last_seq"))
    wait_until_empty()
    t.state("AGE")
    time.sleep(0.3)
    t.publish("AGE.x", "after all are gone")
    wait_until_empty()
    t.state("AGE")


@case("limits/lowered-by-update")
def _(t):
    t.stream("LOW")
    t.fill("LOW.x", 10)
    t.api("STREAM.UPDATE.LOW", {"name": "LOW", "subjects": ["LOW.>"], "num_replicas": t.replicas, "max_msgs": 4}, log=False)
    t.state("LOW")
    t.api("STREAM.UPDATE.LOW", {"name": "LOW", "subjects": ["LOW.>"], "num_replicas": t.replicas, "max_msgs": 4, "max_msgs_per_subject": 1}, log=False)
    t.state("LOW")


@case("limits/max-consumers")
def _(t):
    t.stream("MC", max_consumers=1)
    t.consumer("MC", "A")
    t.api("CONSUMER.CREATE.MC.B", {"stream_name": "MC", "config": {"durable_name": "B", "ack_policy": "explicit"}})
