"""Reading messages without consumers."""

import json
import time

from harness import case


def fill(t, name, **config):
    t.stream(name, **config)
    for n in range(1, 10):
        headers = {"N": str(n)} if n % 3 == 0 else None
        t.publish(f"{name}.{'abc'[n % 3]}", f"m{n}", headers=headers, log=False)
    t.api(f"STREAM.MSG.DELETE.{name}", {"seq": 5}, log=False)
    t.settle(name)


def ask_for_many(t, stream, body):
    """A direct get whose answers end with an empty one."""
    reply = t.c.new_reply()
    t.c.pub(f"$JS.API.DIRECT.GET.{stream}", json.dumps(body), reply)
    t.answers(t.c.collect(1.0, lambda op: not op[5]), reply)


@case("get/by-sequence")
def _(t):
    fill(t, "G1")
    for seq in (1, 3, 5, 9, 10, 0):
        t.api("STREAM.MSG.GET.G1", {"seq": seq})
    t.api("STREAM.MSG.GET.NOSUCH", {"seq": 1})


@case("get/by-subject")
def _(t):
    fill(t, "G2")
    for body in (
        {"last_by_subj": "G2.a"}, {"last_by_subj": "G2.none"}, {"last_by_subj": "G2.*"}, {"last_by_subj": ">"}, {"next_by_subj": "G2.b"},
        {"seq": 2, "next_by_subj": "G2.b"}, {"seq": 8, "next_by_subj": "G2.b"}, {"seq": 1, "next_by_subj": "G2.*"}, {"seq": 1, "last_by_subj": "G2.a"},
        {"last_by_subj": "G2.a", "next_by_subj": "G2.b"}, {}, {"last_by_subj": ""}, {"seq": 3, "no_hdr": True}, {"no_hdr": True},
        {"seq": 3, "batch": -1}, {"seq": 3, "batch": 2}, {"seq": 3, "max_bytes": 5},
    ):
        t.api("STREAM.MSG.GET.G2", body)


@case("get/by-time")
def _(t):
    t.stream("G3", allow_direct=True)
    t.fill("G3.x", 2)
    time.sleep(0.3)
    info = json.loads(t.c.request("$JS.API.STREAM.MSG.GET.G3", '{"seq":2}')[5])
    t.fill("G3.x", 2, start=3)
    t.settle("G3")
    for start in ("2000-01-01T00:00:00Z", info["message"]["time"], "2200-01-01T00:00:00Z"):
        answer = t.api("STREAM.MSG.GET.G3", {"start_time": start}, log=False)
        t.json("< ", answer.get("error") or answer["message"])
        t.ask("$JS.API.DIRECT.GET.G3", json.dumps({"start_time": start}))


@case("get/by-time-and-subject")
def _(t):
    t.stream("G4", allow_direct=True)
    for n in range(1, 7):
        t.publish(f"G4.{'ab'[n % 2]}", f"m{n}", log=False)
        time.sleep(0.02)
    t.settle("G4")
    third = json.loads(t.c.request("$JS.API.STREAM.MSG.GET.G4", '{"seq":3}')[5])["message"]["time"]
    for start in ("2000-01-01T00:00:00Z", third, "2200-01-01T00:00:00Z"):
        for extra in ({"next_by_subj": "G4.a"}, {"next_by_subj": "G4.none"}, {"next_by_subj": "G4.a", "seq": 1}, {"last_by_subj": "G4.a"}):
            body = {"start_time": start, **extra}
            t.api("STREAM.MSG.GET.G4", body)
            t.ask("$JS.API.DIRECT.GET.G4", json.dumps(body))
        for body in ({"start_time": start, "next_by_subj": "G4.a", "batch": 2}, {"up_to_time": start, "multi_last": ["G4.>"]}):
            t.log(f"> direct {json.dumps(body)}")
            ask_for_many(t, "G4", body)


@case("direct/single")
def _(t):
    fill(t, "D1", allow_direct=True)
    for body in (
        {"seq": 1}, {"seq": 3}, {"seq": 5}, {"seq": 99}, {"last_by_subj": "D1.a"}, {"last_by_subj": "D1.none"}, {"next_by_subj": "D1.b"}, {"seq": 2, "next_by_subj": "D1.b"},
        {"seq": 8, "next_by_subj": "D1.b"}, {"seq": 1, "last_by_subj": "D1.a"}, {}, {"nonsense": 1}, "", "x", {"seq": 6, "no_hdr": True},
    ):
        payload = body if isinstance(body, str) else json.dumps(body)
        t.log(f"> direct {payload}")
        t.ask("$JS.API.DIRECT.GET.D1", payload)


@case("direct/by-subject")
def _(t):
    fill(t, "D2", allow_direct=True)
    for subject, payload in (("D2.a", ""), ("D2.none", ""), ("D2.*", ""), ("D2.a", '{"seq":1}'), ("D2.a", "x")):
        t.log(f"> direct last {subject} {payload}")
        t.ask(f"$JS.API.DIRECT.GET.D2.{subject}", payload)


@case("direct/not-allowed")
def _(t):
    fill(t, "D3")
    for subject in ("D3", "D3.D3.a", "NOSUCH"):
        t.log(f"> direct {subject}")
        t.ask(f"$JS.API.DIRECT.GET.{subject}", '{"seq":1}' if subject != "D3.D3.a" else "")


@case("direct/switched-by-update")
def _(t):
    fill(t, "D4")
    config = {"name": "D4", "subjects": ["D4.>"], "num_replicas": t.replicas}
    for allow in (True, False):
        t.api("STREAM.UPDATE.D4", {**config, "allow_direct": allow}, log=False)
        time.sleep(0.5)
        t.ask("$JS.API.DIRECT.GET.D4", '{"seq":1}')


@case("direct/batch")
def _(t):
    fill(t, "D5", allow_direct=True)
    for body in (
        {"seq": 1, "batch": 3}, {"seq": 4, "batch": 2}, {"seq": 1, "batch": 100}, {"batch": 2}, {"seq": 99, "batch": 5}, {"seq": 1, "batch": 3, "next_by_subj": "D5.b"},
        {"seq": 1, "batch": 3, "next_by_subj": ">"}, {"seq": 1, "batch": 2, "next_by_subj": "D5.none"}, {"seq": 1, "batch": 100, "max_bytes": 120},
        {"batch": 3, "last_by_subj": "D5.a"}, {"start_time": "2000-01-01T00:00:00Z", "batch": 2},
        {"seq": 1, "batch": -1}, {"seq": 99, "batch": -1}, {"seq": 4, "batch": -7}, {"next_by_subj": "D5.b", "batch": -1}, {"next_by_subj": "D5.none", "batch": -1},
        {"last_by_subj": "D5.a", "batch": -1}, {"batch": -1}, {"seq": 1, "batch": 3, "no_hdr": True}, {"seq": 1, "batch": 100, "no_hdr": True},
        {"seq": 1, "batch": 2, "next_by_subj": "D5.b", "no_hdr": True}, {"seq": 1, "batch": 100, "max_bytes": -1}, {"seq": 1, "batch": 100, "max_bytes": 1}, {"seq": 1, "max_bytes": -1},
    ):
        t.log(f"> direct batch {json.dumps(body)}")
        ask_for_many(t, "D5", body)


@case("direct/multi-last")
def _(t):
    fill(t, "D6", allow_direct=True)
    for body in (
        {"multi_last": ["D6.a", "D6.b"]}, {"multi_last": ["D6.>"]}, {"multi_last": ["D6.none"]}, {"multi_last": ["D6.>"], "up_to_seq": 4},
        {"multi_last": ["D6.>"], "up_to_seq": 9}, {"multi_last": ["D6.>"], "up_to_seq": 10}, {"multi_last": ["D6.>"], "up_to_seq": 999}, {"multi_last": ["D6.>"], "seq": 8},
        {"multi_last": ["D6.>"], "seq": 10}, {"multi_last": ["D6.>"], "batch": 2}, {"multi_last": ["D6.>"], "batch": -1}, {"multi_last": ["D6.>"], "no_hdr": True},
        {"multi_last": ["D6.>"], "max_bytes": 1}, {"multi_last": ["D6.>"], "max_bytes": 20}, {"multi_last": ["D6.>"], "max_bytes": -1}, {"multi_last": ["D6.>"], "last_by_subj": "D6.a"},
    ):
        t.log(f"> direct multi {json.dumps(body)}")
        ask_for_many(t, "D6", body)


@case("direct/from-each-node", modes=("cluster",))
def _(t):
    fill(t, "D7", allow_direct=True)
    for node in range(3):
        conn = t.connect(node)
        t.ask("$JS.API.DIRECT.GET.D7", '{"seq":4}', conn=conn)
        t.json("< ", t.api("STREAM.MSG.GET.D7", {"seq": 4}, conn=conn, log=False))
