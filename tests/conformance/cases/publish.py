"""Publishing into streams: acks, ids, expectations, rollups."""

import json
import time

from harness import case

ID = "Nats-Msg-Id"
STREAM = "Nats-Expected-Stream"
LAST = "Nats-Expected-Last-Sequence"
LAST_OF_SUBJECT = "Nats-Expected-Last-Subject-Sequence"
SUBJECT_OF_LAST = "Nats-Expected-Last-Subject-Sequence-Subject"
LAST_ID = "Nats-Expected-Last-Msg-Id"


def publish_each(t, *rows):
    """Subject, payload and headers, one after the other."""
    for subject, payload, headers in rows:
        t.publish(subject, payload, headers=headers)


@case("publish/acks")
def _(t):
    t.stream("PA")
    t.publish("PA.x", "one")
    t.publish("PA.x", "")
    t.publish("PA.y.z", "three", headers={"A": "b"})
    t.c.pub("PA.x", "no reply wanted")
    t.c.flush()
    time.sleep(0.2)
    t.state("PA")
    t.ask("PB.x", "nowhere")


@case("publish/no-ack-stream")
def _(t):
    t.stream("NOACK", no_ack=True)
    t.c.sub(t.c.inbox + ".n")
    t.c.pub("NOACK.x", "x", reply=t.c.inbox + ".n")
    t.c.flush()
    t.all(t.c.collect(0.4))
    t.state("NOACK")


@case("publish/also-a-core-message")
def _(t):
    t.stream("BOTH")
    t.c.sub("BOTH.*")
    # Without a reply subject: whether an ack comes before or after the copy is nobody's promise.
    t.c.pub("BOTH.x", "both ways")
    t.c.pub("BOTH.x", "again", headers={"K": "v"})
    ops = [op for op in t.c.flush() + t.c.collect(0.3) if op[1].startswith("BOTH")]
    t.all([(o[0], o[1], o[2], "", o[4], o[5]) for o in ops])
    t.state("BOTH", keys=("messages", "last_seq"))


@case("publish/msg-id")
def _(t):
    t.stream("ID")
    publish_each(
        t,
        ("ID.a", "1", {ID: "x"}),
        ("ID.a", "2", {ID: "x"}),
        ("ID.b", "3", {ID: "x"}),
        ("ID.a", "4", {ID: "y"}),
        ("ID.a", "5", {ID: ""}),
        ("ID.a", "6", {ID: ""}),
    )
    t.api("STREAM.PURGE.ID", log=False)
    t.publish("ID.a", "7", headers={ID: "x"})
    t.state("ID")


@case("publish/msg-id-window")
def _(t):
    t.stream("IDW", duplicate_window=300_000_000)
    publish_each(t, ("IDW.a", "1", {ID: "x"}), ("IDW.a", "2", {ID: "x"}))
    time.sleep(1.2)
    t.publish("IDW.a", "3", headers={ID: "x"})


@case("publish/msg-id-after-delete")
def _(t):
    t.stream("IDD")
    t.publish("IDD.a", "1", headers={ID: "x"})
    t.api("STREAM.MSG.DELETE.IDD", {"seq": 1}, log=False)
    t.publish("IDD.a", "2", headers={ID: "x"})


@case("publish/expected-stream")
def _(t):
    t.stream("ES")
    publish_each(t, ("ES.a", "1", {STREAM: "ES"}), ("ES.a", "2", {STREAM: "OTHER"}), ("ES.a", "3", {STREAM: ""}))


@case("publish/expected-last-sequence")
def _(t):
    t.stream("EL")
    publish_each(t, *(("EL.a", expected, {LAST: expected}) for expected in ("0", "0", "5", "1", "1", "2", "x", "-1", "")))
    t.state("EL")


@case("publish/expected-last-subject-sequence")
def _(t):
    t.stream("ELS")
    for subject, expected in (("a", "0"), ("a", "0"), ("b", "0"), ("a", "1"), ("a", "1"), ("b", "2"), ("c", "7"), ("a", "x")):
        t.publish(f"ELS.{subject}", expected, headers={LAST_OF_SUBJECT: expected})
    t.api("STREAM.PURGE.ELS", {"filter": "ELS.a"}, log=False)
    t.publish("ELS.a", "after its purge", headers={LAST_OF_SUBJECT: "0"})
    t.state("ELS")


@case("publish/expected-last-subject-sequence-subject")
def _(t):
    t.stream("ELSS")
    publish_each(
        t,
        ("ELSS.k.1", "1", None),
        ("ELSS.k.2", "2", None),
        ("ELSS.k.3", "3", {LAST_OF_SUBJECT: "1", SUBJECT_OF_LAST: "ELSS.k.*"}),
        ("ELSS.k.3", "3", {LAST_OF_SUBJECT: "2", SUBJECT_OF_LAST: "ELSS.k.*"}),
        ("ELSS.k.4", "4", {LAST_OF_SUBJECT: "1", SUBJECT_OF_LAST: "ELSS.k.1"}),
        ("ELSS.k.5", "5", {LAST_OF_SUBJECT: "0", SUBJECT_OF_LAST: "ELSS.none"}),
        ("ELSS.k.6", "6", {SUBJECT_OF_LAST: "ELSS.k.1"}),
    )


@case("publish/expected-last-msg-id")
def _(t):
    t.stream("ELM")
    publish_each(
        t,
        ("ELM.a", "0", {LAST_ID: "none"}),
        ("ELM.a", "1", {ID: "one"}),
        ("ELM.a", "2", {LAST_ID: "one", ID: "two"}),
        ("ELM.a", "3", {LAST_ID: "one"}),
        ("ELM.a", "4", None),
        ("ELM.a", "5", {LAST_ID: "two"}),
    )


@case("publish/order-of-checks")
def _(t):
    t.stream("OC", max_msgs=1, discard="new")
    publish_each(
        t,
        ("OC.a", "1", {ID: "x"}),
        ("OC.a", "a known id on a full stream", {ID: "x"}),
        ("OC.a", "a known id and a wrong sequence", {ID: "x", LAST: "9"}),
        ("OC.a", "a known id and the right sequence", {ID: "x", LAST: "1"}),
        ("OC.a", "a known id and a wrong sequence of the subject", {ID: "x", LAST_OF_SUBJECT: "9"}),
        ("OC.a", "a known id and a subject without its sequence", {ID: "x", SUBJECT_OF_LAST: "OC.a"}),
        ("OC.a", "a known id and another stream", {ID: "x", STREAM: "Z"}),
        ("OC.a", "a known id and a wrong last id", {ID: "x", LAST_ID: "y"}),
        ("OC.a", "a known id and a bad rollup", {ID: "x", "Nats-Rollup": "nonsense"}),
        ("OC.a", "a wrong last id and a wrong sequence of the subject", {LAST_ID: "y", LAST_OF_SUBJECT: "9"}),
        ("OC.a", "a wrong sequence on a full stream", {LAST: "9"}),
        ("OC.a", "another stream and a wrong sequence", {STREAM: "Z", LAST: "9"}),
    )


@case("publish/refused-takes-no-sequence")
def _(t):
    t.stream("RS", max_msg_size=20)
    t.publish("RS.a", "1", log=False)
    publish_each(t, ("RS.a", "x" * 30, None), ("RS.a", "2", {LAST: "7"}), ("RS.a", "2", None))


@case("publish/rollup")
def _(t):
    t.stream("RO", allow_rollup_hdrs=True)
    for n in range(6):
        t.publish(f"RO.{n % 2}", f"m{n}", log=False)
    t.publish("RO.0", "sub", headers={"Nats-Rollup": "sub"})
    t.state("RO", {"subjects_filter": ">"})
    t.publish("RO.0", "all", headers={"Nats-Rollup": "all"})
    t.state("RO", {"subjects_filter": ">"})
    t.publish("RO.0", "bad", headers={"Nats-Rollup": "nonsense"})
    t.stream("NRO")
    t.publish("NRO.0", "not allowed", headers={"Nats-Rollup": "sub"})


@case("publish/headers-are-read-to-the-blank")
def _(t):
    t.stream("HB")
    publish_each(
        t,
        ("HB.a", "a blank before the colon", {LAST + " ": "9"}),
        ("HB.a", "a tab before the colon", {STREAM + "\t": "Z"}),
        ("HB.a", "a blank before the name", {" " + LAST: "9"}),
        ("HB.a", "no id", {ID + " ": "x"}),
        ("HB.a", "no id either", {ID + " ": "x"}),
        ("HB.a", "an id that ends in a blank", {ID: "x "}),
        ("HB.a", "another id", {ID: "x"}),
        ("HB.a", "the same after blanks", {ID: "   x"}),
        ("HB.a", "no number", {LAST: "7 "}),
        ("HB.a", "another stream", {STREAM: "\tHB"}),
        ("HB.a", "one line", {"A": "b\nNats-Expected-Stream: Z"}),
    )
    t.state("HB")


@case("publish/large-headers")
def _(t):
    t.stream("LH")
    t.publish("LH.a", "ok", headers={"A": "x" * 30_000}, log=False)
    op = t.publish("LH.a", "too large", headers={"A": "x" * 70_000}, log=False)
    t.json("< ", json.loads(op[5]))
    t.state("LH")


@case("publish/ttl-not-allowed")
def _(t):
    t.stream("TTL")
    t.publish("TTL.a", "x", headers={"Nats-TTL": "5s"})


@case("publish/stream-source-header")
def _(t):
    t.stream("SRC")
    t.publish("SRC.a", "x", headers={"Nats-Stream-Source": "OTHER 1 > >"})
    t.state("SRC")


@case("publish/pipelined")
def _(t):
    t.stream("PL")
    inbox = t.c.inbox + ".p"
    t.c.sub(inbox)
    for n in range(500):
        t.c.pub("PL.x", f"m{n}", reply=inbox)
    ops = t.c.collect(3, most=500)
    seqs = [json.loads(op[5])["seq"] for op in ops if op[1] == inbox]
    t.log(f"{len(seqs)} acks, all sequences: {sorted(seqs) == list(range(1, 501))}, in order: {seqs == sorted(seqs)}")
    t.state("PL")


@case("publish/pipelined-expectations")
def _(t):
    t.stream("PE")
    inbox = t.c.inbox + ".p"
    t.c.sub(inbox)
    for n in range(50):
        t.c.pub("PE.x", f"m{n}", reply=inbox, headers={LAST: str(n)})
    ops = [json.loads(op[5]) for op in t.c.collect(3, most=50)]
    t.log(f"accepted: {sum(1 for o in ops if 'error' not in o)} of {len(ops)}")
    t.state("PE")


@case("publish/racing-writers")
def _(t):
    t.stream("RACE")
    conns = [t.connect(n) for n in range(6)]
    won = []
    for revision in range(10):
        expected = 0 if not won else won[-1]
        for conn in conns:
            if not getattr(conn, "race", None):
                conn.race = conn.inbox + ".r"
                conn.sub(conn.race)
            conn.pub("RACE.key", f"rev {revision}", reply=conn.race, headers={LAST_OF_SUBJECT: str(expected)})
        answers = []
        for conn in conns:
            while True:
                op = conn.op(5)
                if op[0] in ("MSG", "HMSG"):
                    answers.append(json.loads(op[5]))
                    break
        winners = [a["seq"] for a in answers if "error" not in a]
        codes = {a["error"]["err_code"] for a in answers if "error" in a}
        if len(winners) != 1 or not codes <= {10071, 10164}:
            t.log(f"revision {revision}: winners {winners}, codes {sorted(codes)}")
        won.extend(winners[:1])
    t.log(f"one winner per revision: {won == list(range(1, 11))}")
    t.state("RACE")


@case("publish/kv-like")
def _(t):
    t.stream(
        "KV_b", subjects=["$KV.b.>"], max_msgs_per_subject=3, discard="new", allow_rollup_hdrs=True, deny_delete=True, allow_direct=True,
    )
    cas = lambda seq: {LAST_OF_SUBJECT: seq}
    t.publish("$KV.b.k", "created", headers=cas("0"))
    t.publish("$KV.b.k", "created twice", headers=cas("0"))
    t.publish("$KV.b.k", "updated", headers=cas("1"))
    for n in range(3):
        t.publish("$KV.b.k", f"put {n}", log=False)
    t.publish("$KV.b.k", "", headers={"KV-Operation": "DEL"})
    t.state("KV_b", {"subjects_filter": ">"})
    t.publish("$KV.b.k", "", headers={"KV-Operation": "PURGE", "Nats-Rollup": "sub"})
    t.state("KV_b", {"subjects_filter": ">"})
    t.settle("KV_b")
    t.ask("$JS.API.DIRECT.GET.KV_b.$KV.b.k")
    t.publish("$KV.b.k", "created again", headers=cas("7"))
    t.ask("$JS.API.DIRECT.GET.KV_b.$KV.b.none")
