"""The client protocol: connections, core messages, errors."""

import json
import re
import time

from harness import Closed, Timeout, case, header_block


@case("protocol/info")
def _(t):
    info = t.c.info
    for key in ("proto", "headers", "max_payload", "jetstream", "auth_required", "tls_required"):
        t.log(f"{key}: {info.get(key)}")
    for key in ("server_id", "server_name", "version", "host", "port", "client_id", "client_ip"):
        t.log(f"{key}: {'present' if key in info else 'absent'}")
    t.log(f"version is semver: {bool(re.fullmatch(r'[0-9]+[.][0-9]+[.][0-9]+(-.*)?', info['version']))}")
    t.log(f"version at least 2.12: {tuple(int(x) for x in info['version'].split('-')[0].split('.')[:2]) >= (2, 12)}")


@case("protocol/connect-urls", modes=("cluster",))
def _(t):
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        urls = t.connect().info.get("connect_urls") or []
        if len(urls) >= 3:
            break
        time.sleep(0.2)
    t.log(f"connect_urls: {len(urls)}, this one among them: {any(u.endswith(':%d' % t.addresses[0][1]) for u in urls)}")


@case("protocol/pub-sub")
def _(t):
    t.c.sub("a.b")
    t.c.sub("a.*")
    t.c.sub("a.>")
    t.c.sub("b")
    t.c.pub("a.b", "one")
    t.c.pub("a.c.d", "two", reply="r.1")
    t.c.pub("b", "")
    t.c.pub("none", "x")
    ops = t.c.flush()
    for op in sorted(ops, key=lambda o: (o[1], o[2])):
        t.show((op[0], op[1], op[2], op[3], op[4], b"sid %s: " % op[2].encode() + op[5]))


@case("protocol/verbs-any-case-and-spacing")
def _(t):
    t.c.send("sub\tx.y   7\r\n")
    t.c.send("pub x.y\t 2\r\nhi\r\n")
    t.c.send("pInG\r\n")
    t.all(t.c.until_pong())


@case("protocol/split-writes")
def _(t):
    t.c.sub("s")
    for byte in b"PUB s 5\r\nhello\r\n":
        t.c.send(bytes([byte]))
        time.sleep(0.005)
    t.all(t.c.flush())


@case("protocol/binary-payload-and-crlf-inside")
def _(t):
    t.c.sub("s")
    t.c.pub("s", bytes(range(256)))
    t.c.pub("s", b"a\r\nb\r\n")
    t.all(t.c.flush())


@case("protocol/unsub")
def _(t):
    sid = t.c.sub("s")
    t.c.send(f"UNSUB {sid}\r\n")
    t.c.pub("s", "x")
    t.all(t.c.flush())
    t.c.send("UNSUB 999\r\n")
    t.all(t.c.flush())


@case("protocol/unsub-max")
def _(t):
    sid = t.c.sub("s")
    t.c.send(f"UNSUB {sid} 2\r\n")
    for n in range(4):
        t.c.pub("s", str(n))
    t.all(t.c.flush())
    sid = t.c.sub("r")
    for n in range(3):
        t.c.pub("r", str(n))
    t.c.flush()
    t.log("3 received; max 2 now: removed at once")
    t.c.send(f"UNSUB {sid} 2\r\n")
    t.c.pub("r", "late")
    t.all(t.c.flush())


@case("protocol/queue-groups")
def _(t):
    first, second = t.connect(), t.connect()
    for conn in (first, second):
        conn.sub("q", "workers")
        conn.sub("q")
        conn.flush()
    for n in range(100):
        t.c.pub("q", str(n))
    t.c.flush()
    time.sleep(0.2)
    plain, grouped = [], []
    for conn in (first, second):
        ops = conn.flush()
        plain.append(sum(1 for o in ops if o[2] == "2"))
        grouped.append([o[5] for o in ops if o[2] == "1"])
    t.log(f"plain subscribers got {plain}")
    t.log(f"group got {len(grouped[0]) + len(grouped[1])}, distinct {len(set(grouped[0] + grouped[1]))}, both members served: {all(grouped)}")


@case("protocol/two-groups-each-get-it")
def _(t):
    t.c.sub("q.*", "g1")
    t.c.sub("q.>", "g2")
    t.c.sub("q.x", "g1")
    t.c.pub("q.x", "m")
    t.log(f"deliveries: {len(t.c.flush())}")


@case("protocol/no-echo")
def _(t):
    quiet = t.connect(connect={"echo": False})
    quiet.sub("s")
    quiet.pub("s", "own")
    t.all(quiet.flush())
    t.c.pub("s", "other")
    t.c.flush()
    time.sleep(0.1)
    t.all(quiet.flush())


@case("protocol/headers")
def _(t):
    t.c.sub("h")
    t.c.pub("h", "body", headers=[("A", "1"), ("a", "2"), ("A", "3"), ("Empty", "")])
    t.c.pub("h", "", headers=[("Only", "headers")])
    t.all(t.c.flush())
    plain = t.connect(connect={"headers": False, "no_responders": False})
    plain.sub("h")
    plain.flush()
    t.c.pub("h", "body", headers=[("A", "1")])
    t.c.flush()
    time.sleep(0.1)
    t.log("a client without headers:")
    t.all(plain.flush())


@case("protocol/header-bytes-are-kept")
def _(t):
    t.c.sub("h")
    block = b"NATS/1.0\r\nX:  spaced \r\nB:1\r\n\r\n"
    t.c.send(b"HPUB h %d %d\r\n%s%s\r\n" % (len(block), len(block) + 2, block, b"hi"))
    for op in t.c.flush():
        t.log(f"< {op[4]!r} {op[5]!r}")


@case("protocol/hpub-without-header-support")
def _(t):
    plain = t.connect(connect={"headers": False, "no_responders": False})
    block = header_block({"A": "1"})
    plain.send(b"HPUB h %d %d\r\n%s\r\nPING\r\n" % (len(block), len(block), block))
    ended(t, plain)


@case("protocol/no-responders")
def _(t):
    t.ask("nobody.here", "x")
    quiet = t.connect(connect={"no_responders": False})
    quiet.sub("r")
    quiet.pub("nobody.here", "x", reply="r")
    t.all(quiet.flush())
    t.log("with a reply nobody listens to:")
    t.c.pub("nobody.here", "x", reply="unheard")
    t.all(t.c.flush())
    t.log("a subscriber that is there, but silent:")
    t.c.sub("somebody")
    t.c.pub("somebody", "x", reply=t.c.new_reply())
    t.answers(t.c.flush(), "somebody")


@case("protocol/no-responders-without-headers")
def _(t):
    conn = t.connect(handshake=False)
    conn.op()
    conn.send(b'CONNECT {"verbose":false,"no_responders":true,"headers":false}\r\nPING\r\n')
    ended(t, conn)


@case("protocol/verbose")
def _(t):
    conn = t.connect(handshake=False)
    conn.op()
    conn.send(b'CONNECT {"protocol":1}\r\n')
    conn.send(b"SUB s 1\r\nPUB s 2\r\nhi\r\nUNSUB 1\r\nPING\r\n")
    t.all(conn.until_pong())


@case("protocol/pedantic")
def _(t):
    conn = t.connect(connect={"pedantic": True})
    for line in ("PUB a.*.b 1\r\nx\r\n", "PUB a..b 1\r\nx\r\n", "SUB a..b 1\r\n", "SUB a.>.b 2\r\n", "PUB ok 1\r\nx\r\n"):
        if not survives(t, conn, line):
            return


@case("protocol/not-pedantic")
def _(t):
    for line in ("SUB a..b 1\r\n", "SUB .a 2\r\n", "SUB a.>.b 3\r\n", "PUB a.*.b 1\r\nx\r\n", "PUB a..b 1\r\nx\r\n"):
        survives(t, t.connect(), line)


def survives(t, conn, line):
    """Sends a line and logs what comes of it. False if the server closes the connection."""
    conn.send(line)
    t.log("> " + line.replace("\r\n", " "))
    try:
        t.all(conn.flush())
    except Closed:
        t.log("closed")
        return False
    return True


def ended(t, conn):
    """Logs what comes until the server closes the connection, or that it doesn't."""
    try:
        while True:
            t.show(conn.op(1.5))
    except Closed:
        t.log("closed")
    except Timeout:
        t.log("left open")


def raw(t, *each, connected=True):
    """Sends each of these on a connection of its own."""
    for data in each:
        conn = t.connect(handshake=False)
        conn.op()
        if connected:
            conn.send(b'CONNECT {"verbose":false,"headers":true,"protocol":1}\r\nPING\r\n')
            conn.until_pong()
        conn.send(data)
        shown = data if len(data) < 80 else data[:40] + b"... %d bytes" % len(data)
        t.log(f"> {shown!r}")
        ended(t, conn)


@case("protocol/error-unknown-operation")
def _(t):
    raw(t, b"NONSENSE\r\n", b"MSG a 1 0\r\n\r\n")


@case("protocol/error-publish-too-large")
def _(t):
    raw(t, b"PUB s 1048577\r\n", b"HPUB s %d 1048577\r\n" % len(header_block({"A": "1"})))


@case("protocol/largest-payload")
def _(t):
    t.c.sub("big")
    t.c.pub("big", b"x" * 1048576)
    ops = t.c.flush()
    t.log(f"{len(ops)} message of {len(ops[0][5])} bytes")


@case("protocol/error-control-line")
def _(t):
    raw(t, b"SUB " + b"a" * 5000 + b" 1\r\n", b"PUB " + b"a" * 5000 + b" 1\r\nx\r\n")


@case("protocol/error-bad-publish")
def _(t):
    raw(t, b"PUB s x\r\n", b"PUB s -1\r\n", b"PUB\r\n", b"PUB s 2\r\nabcd\r\n", b"HPUB s 30 5\r\nhello\r\n")


@case("protocol/error-bad-subscribe")
def _(t):
    raw(t, b"SUB\r\n", b"SUB a\r\n", b"SUB a b c d\r\n", b"UNSUB\r\n")


@case("protocol/error-bad-connect")
def _(t):
    raw(
        t,
        b"CONNECT {\r\n",
        b"CONNECT []\r\n",
        b"CONNECT [false,false]\r\n",
        b'CONNECT {"protocol":7,"verbose":false}\r\n',
        b'CONNECT {"account":"other","verbose":false}\r\n',
        connected=False,
    )


@case("protocol/ping-before-connect")
def _(t):
    conn = t.connect(handshake=False)
    conn.op()
    conn.send(b"PING\r\n")
    t.show(conn.op(2))


@case("protocol/request-many")
def _(t):
    service = t.connect()
    service.sub("echo")
    service.flush()
    time.sleep(0.2)
    answers = []
    for n in range(50):
        reply = t.c.new_reply()
        t.c.pub("echo", str(n), reply)
        op = service.op(2)
        service.pub(op[3], b"re " + op[5])
        answers.append(t.c.op(2)[5])
    t.log(f"answers in order: {answers == [b're %d' % n for n in range(50)]}")


@case("protocol/across-nodes", modes=("cluster",))
def _(t):
    there = t.connect(1)
    there.sub("far.*")
    there.sub("far.q", "g")
    there.flush()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        t.c.pub("far.probe", "")
        t.c.flush()
        if there.collect(0.2, most=1):
            break
    there.collect(0.3)
    for n in range(20):
        t.c.pub("far.x", str(n), headers=[("N", str(n))], reply="back")
    t.c.pub("far.q", "grouped")
    t.c.flush()
    ops = there.collect(0.5)
    t.log(f"in order: {[o[5] for o in ops[:20]] == [str(n).encode() for n in range(20)]}")
    t.show(ops[0])
    t.log(f"far.q: {sum(1 for o in ops if o[1] == 'far.q')} deliveries")
    t.ask("nobody.anywhere", "x")


@case("protocol/slow-start-many-subscriptions")
def _(t):
    for n in range(2000):
        t.c.sub(f"many.{n}")
    t.c.flush()
    for n in (0, 1000, 1999):
        t.c.pub(f"many.{n}", str(n))
    t.all(t.c.flush())


@case("protocol/connect-json-fields-unknown")
def _(t):
    conn = t.connect(connect={"some_new_field": {"a": 1}, "name": json.dumps("x")})
    conn.sub("s")
    conn.pub("s", "fine")
    t.all(conn.flush())
