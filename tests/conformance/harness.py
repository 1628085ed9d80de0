"""Sockets, transcripts and masks for the conformance cases.

A case talks to a server over plain sockets and writes what it sent and what came back, line by
line, with everything masked that rightly differs between two servers or two runs: times, ids,
generated names, the servers' names. Two servers conform to each other where their transcripts are
equal.
"""

import json
import re
import socket
import time
import traceback
import uuid

CASES = []


def case(name, modes=("single", "cluster")):
    """Registers a case; `modes` says in which set-ups it makes sense."""

    def register(function):
        assert all(existing[0] != name for existing in CASES), f"two cases named {name}"
        CASES.append((name, modes, function))
        return function

    return register


class Timeout(Exception):
    """Nothing came in time."""


class Closed(Exception):
    """The server closed the connection."""


class Conn:
    """A client connection: bytes out, parsed operations in."""

    def __init__(self, address, connect=None, handshake=True):
        self.sock = socket.create_connection(address, timeout=5)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""
        self.sids = 0
        self.inbox = f"_INBOX.{uuid.uuid4().hex}"
        self.replies = 0
        self.mux = None
        self.info = None
        if handshake:
            self.op(5)
            options = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "protocol": 1, "lang": "test", "version": "1"}
            options.update(connect or {})
            self.send(b"CONNECT %s\r\nPING\r\n" % json.dumps(options).encode())
            self.until_pong()

    def send(self, data):
        self.sock.sendall(data if isinstance(data, bytes) else data.encode())

    def close(self):
        self.sock.close()

    def _fill(self, deadline):
        left = deadline - time.monotonic()
        if left <= 0:
            raise Timeout()
        self.sock.settimeout(left)
        try:
            data = self.sock.recv(65536)
        except (TimeoutError, socket.timeout):
            raise Timeout() from None
        except ConnectionError:
            raise Closed() from None
        if not data:
            raise Closed()
        self.buffer += data

    def _line(self, deadline):
        while b"\r\n" not in self.buffer:
            self._fill(deadline)
        line, self.buffer = self.buffer.split(b"\r\n", 1)
        return line.decode("utf-8", "backslashreplace")

    def _bytes(self, n, deadline):
        while len(self.buffer) < n + 2:
            self._fill(deadline)
        data, self.buffer = self.buffer[:n], self.buffer[n + 2:]
        return data

    def op(self, timeout=5.0):
        """The next operation, PINGs answered: (verb, rest) or, for messages,
        (verb, subject, sid, reply, headers, payload)."""
        deadline = time.monotonic() + timeout
        while True:
            line = self._line(deadline)
            verb, _, rest = line.partition(" ")
            verb = verb.upper()
            if verb == "PING":
                self.send(b"PONG\r\n")
            elif verb == "INFO":
                # The first one greets; later ones tell of topology, whenever it changes.
                greeting, self.info = self.info is None, json.loads(rest)
                if greeting:
                    return verb, rest
            elif verb == "MSG":
                parts = rest.split()
                payload = self._bytes(int(parts[-1]), deadline)
                return verb, parts[0], parts[1], parts[2] if len(parts) == 4 else "", b"", payload
            elif verb == "HMSG":
                parts = rest.split()
                data = self._bytes(int(parts[-1]), deadline)
                cut = int(parts[-2])
                return verb, parts[0], parts[1], parts[2] if len(parts) == 5 else "", data[:cut], data[cut:]
            else:
                return verb, rest

    def until_pong(self, timeout=5.0):
        """Every operation up to the next PONG (excluded)."""
        ops = []
        while (op := self.op(timeout))[0] != "PONG":
            ops.append(op)
        return ops

    def sub(self, subject, queue=""):
        self.sids += 1
        self.send(f"SUB {subject} {queue} {self.sids}\r\n")
        return str(self.sids)

    def flush(self):
        self.send(b"PING\r\n")
        return self.until_pong()

    def pub(self, subject, payload=b"", reply="", headers=None):
        payload = payload if isinstance(payload, bytes) else payload.encode()
        if headers is None:
            self.send(f"PUB {subject} {reply} {len(payload)}\r\n".encode() + payload + b"\r\n")
        else:
            block = header_block(headers)
            self.send(f"HPUB {subject} {reply} {len(block)} {len(block) + len(payload)}\r\n".encode() + block + payload + b"\r\n")

    def new_reply(self):
        if self.mux is None:
            self.mux = self.sub(self.inbox + ".*")
        self.replies += 1
        return f"{self.inbox}.{self.replies}"

    def request(self, subject, payload=b"", headers=None, timeout=6.0):
        """One request, its one answer. Other messages that come meanwhile are an error of the case."""
        reply = self.new_reply()
        self.pub(subject, payload, reply, headers)
        deadline = time.monotonic() + timeout
        while True:
            op = self.op(max(0.0, deadline - time.monotonic()))
            if op[0] in ("MSG", "HMSG") and op[1] == reply:
                return op
            if op[0] == "-ERR":
                raise Closed(op[1])

    def collect(self, timeout, stop=None, most=10_000):
        """Messages until `timeout` passes without one, `stop(op)` is true (that one included), or `most` came."""
        ops = []
        try:
            while len(ops) < most:
                op = self.op(timeout)
                ops.append(op)
                if stop and stop(op):
                    break
        except Timeout:
            pass
        return ops


def header_block(headers):
    pairs = headers.items() if isinstance(headers, dict) else headers
    return b"NATS/1.0\r\n" + b"".join(f"{k}: {v}\r\n".encode() for k, v in pairs) + b"\r\n"


# ---------------------------------------------------------------- masks

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
ZERO = "0001-01-01T00:00:00Z"
MASKED_KEYS = {"leader", "raft_group", "leader_since", "traffic_account", "server_id", "server_name", "git_commit", "client_id", "xkey", "nonce"}
# What only one server family has, and what plain clients do not read: advice of versions.
DROPPED_METADATA = {"_nats.ver", "_nats.level", "_nats.req.level"}


def mask_text(text):
    text = TIME.sub(lambda m: "<zero time>" if m.group(0) == ZERO else "<time>", text)
    text = re.sub(r"_INBOX\.[A-Za-z0-9]+", "<inbox>", text)
    # What exactly is wrong with JSON is told in the words of each server's own decoder.
    text = re.sub(r"(invalid JSON: ).+", r"\1<detail>", text)
    # $JS.ACK.<stream>.<consumer>.<delivered>.<sseq>.<cseq>.<time>.<pending>
    text = re.sub(r"(\$JS\.ACK(?:\.[^.\s]+){5})\.\d{16,}\.", r"\1.<ns>.", text)
    return text


def mask(value, key=""):
    if key in MASKED_KEYS and value:
        return f"<{key}>"
    if key == "cluster" and isinstance(value, dict):
        out = {k: mask(v, k) for k, v in value.items() if k not in ("name", "replicas", "system_account", "traffic_account", "raft_group", "leader_since")}
        if value.get("replicas"):
            out["replicas"] = len(value["replicas"])
        return out
    if key == "metadata" and isinstance(value, dict):
        kept = {k: v for k, v in value.items() if k not in DROPPED_METADATA and not k.startswith("headwater.")}
        return {k: mask(v) for k, v in sorted(kept.items())}
    if isinstance(value, dict):
        out = {k: mask(v, k) for k, v in sorted(value.items())}
        if out.get("metadata") == {}:
            del out["metadata"]
        # A cluster of one may or may not call itself a cluster.
        if isinstance(out.get("cluster"), dict) and "replicas" not in out["cluster"]:
            del out["cluster"]
        return out
    if isinstance(value, list):
        return [mask(v) for v in value]
    if isinstance(value, str):
        return mask_text(value)
    return value


class Transcript:
    """What one case saw, and the conveniences to see it with."""

    def __init__(self, case_name, addresses, mode):
        self.case_name = case_name
        self.addresses = addresses
        self.mode = mode
        self.replicas = 3 if mode == "cluster" else 1
        self.lines = []
        self.streams = []
        self.names = {}
        self.conns = []
        self._main = None

    # -- connections
    def connect(self, node=0, connect=None, handshake=True):
        conn = Conn(self.addresses[node % len(self.addresses)], connect, handshake)
        self.conns.append(conn)
        return conn

    @property
    def c(self):
        if self._main is None:
            self._main = self.connect()
        return self._main

    # -- writing
    def log(self, text):
        for generated, shown in self.names.items():
            text = text.replace(generated, shown)
        self.lines.append(mask_text(text))

    def hide(self, generated, shown):
        """A generated name, shown by another name from now on."""
        self.names[generated] = shown

    def json(self, prefix, value):
        self.log(prefix + json.dumps(mask(value), sort_keys=True))

    def show(self, op, prefix="< "):
        """One operation, message headers and payload included."""
        if op[0] in ("MSG", "HMSG"):
            _, subject, _, reply, headers, payload = op
            text = f"{prefix}{op[0]} {subject}"
            if reply:
                text += f" reply {reply}"
            if headers:
                head, *rest = headers.decode("utf-8", "backslashreplace").rstrip("\r\n").split("\r\n")
                text += f" {[head] + sorted(rest)}"
            self.log(f"{text} {payload!r}")
        elif op[0] == "INFO":
            self.log(f"{prefix}INFO")
        else:
            self.log(prefix + " ".join(op).strip())

    def all(self, ops, prefix="< "):
        for op in ops:
            self.show(op, prefix)
        if not ops:
            self.log(prefix + "(nothing)")

    # -- requests
    def ask(self, subject, payload="", conn=None, timeout=6.0):
        """A request. Logs its answer, without the generated inbox that it came to."""
        op = (conn or self.c).request(subject, payload, timeout=timeout)
        self.answers([op], op[1])

    def answers(self, ops, reply):
        """Logs what came to the inbox `reply`, and beside it."""
        self.all([(op[0], "<reply>" if op[1] == reply else op[1], *op[2:]) for op in ops])

    # -- JetStream
    def api(self, subject, body=None, headers=None, log=True, only=None, conn=None):
        """A $JS.API request. Logs it and its answer (of which `only` these keys, if given)."""
        if isinstance(body, (dict, list)):
            payload = json.dumps(body)
        else:
            payload = body or ""
        if log:
            self.log(f"> {subject} {payload}" + (f" {headers}" if headers else ""))
        conn = conn or self.c
        for _ in range(40):
            op = conn.request(f"$JS.API.{subject}", payload, headers)
            try:
                answer = json.loads(op[5])
            except ValueError:
                answer = None
            error = (answer or {}).get("error", {}) if isinstance(answer, dict) else {}
            # No leader yet, or peers not all known yet: an election, not an answer.
            # 10049: nats-server could not make the stream's folder; seen under load, and gone with the next try.
            if error.get("err_code") == 10049 or (error.get("err_code") in (10008, 10005) and self.mode == "cluster"):
                time.sleep(0.25)
                continue
            break
        if isinstance(answer, dict) and "error" not in answer:
            if subject.startswith("STREAM.CREATE."):
                self.streams.append(subject.split(".")[2])
                self.await_stream(answer.get("config") or {})
            elif ".CREATE." in subject and answer.get("config", {}).get("deliver_subject") is None:
                self.await_consumer(answer)
        if log:
            if answer is None:
                self.show(op)
            else:
                shown = answer
                if only and "error" not in answer:
                    shown = {k: answer[k] for k in only if k in answer}
                self.json("< ", shown)
        return answer

    def await_answer(self, subject, payload, headers=None):
        """Until somebody answers: a leader was elected, and this node has heard of it."""
        for _ in range(100):
            op = self.c.request(subject, payload, headers)
            if not op[4].startswith(b"NATS/1.0 503"):
                return
            time.sleep(0.05)

    def await_stream(self, config):
        """Asks with a publish that every stream refuses."""
        if self.mode == "cluster" and not config.get("no_ack") and config.get("subjects"):
            subject = config["subjects"][0].replace("*", "probe").replace(">", "probe")
            self.await_answer(subject, "", {"Nats-Expected-Stream": "none-of-that-name"})

    def await_consumer(self, info):
        """Asks with a pull request that every consumer refuses."""
        if self.mode == "cluster":
            self.await_answer(f"$JS.API.CONSUMER.MSG.NEXT.{info['stream_name']}.{info['name']}", '{"batch":')

    def stream(self, name, log=False, **config):
        """Creates a stream on `<name>.>` unless told otherwise."""
        body = {"name": name, "subjects": [f"{name}.>"], "num_replicas": self.replicas, **config}
        answer = self.api(f"STREAM.CREATE.{name}", body, log=log)
        if "error" in answer:
            raise RuntimeError(f"creating {name}: {answer['error']}")
        return answer

    def consumer(self, stream, name, log=False, **config):
        config = {"durable_name": name, "ack_policy": "explicit", **config}
        answer = self.api(f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config}, log=log)
        if "error" in answer:
            raise RuntimeError(f"creating {stream} {name}: {answer['error']}")
        return answer

    def publish(self, subject, payload="", headers=None, log=True):
        """A publish with its ack."""
        for _ in range(40):
            try:
                op = self.c.request(subject, payload, headers, timeout=3)
            except Timeout:
                op = ("(no answer)", "")
                break
            if self.mode != "cluster" or not op[4].startswith(b"NATS/1.0 503"):
                break
            time.sleep(0.1)
        if log:
            self.log(f"> publish {subject} {payload!r}" + (f" {headers}" if headers else ""))
            try:
                self.json("< ", json.loads(op[5]))
            except (ValueError, IndexError):
                self.show(op)
        return op

    def fill(self, subject, count, start=1):
        """`count` messages, their payloads m1, m2, …, not logged one by one."""
        for n in range(start, start + count):
            answer = json.loads(self.publish(subject.replace("{n}", str(n)), f"m{n}", log=False)[5])
            if "error" in answer:
                raise RuntimeError(f"publishing {subject}: {answer}")

    def state(self, stream, body=None, keys=("messages", "first_seq", "last_seq", "num_subjects", "num_deleted", "deleted", "subjects", "consumer_count")):
        """Logs what the stream reports of itself, once its replicas agree."""
        self.settle(stream)
        answer = self.api(f"STREAM.INFO.{stream}", body, log=False)
        if "error" in answer:
            self.json("state: ", answer)
        else:
            self.json("state: ", {k: answer["state"][k] for k in keys if k in answer["state"]})
        return answer

    def settle(self, stream):
        """Waits until every replica has everything: answers may come from any of them."""
        if self.mode != "cluster":
            return
        for _ in range(100):
            info = self.api(f"STREAM.INFO.{stream}", log=False)
            replicas = info.get("cluster", {}).get("replicas") or []
            if "error" in info or all(r.get("current") and not r.get("lag") for r in replicas):
                break
            time.sleep(0.05)
        time.sleep(0.1)

    def stable(self, subject, pick, tries=30):
        """Asks until two answers in a row are equal, then logs what `pick` takes of it."""
        last = None
        for _ in range(tries):
            answer = pick(self.api(subject, log=False))
            if answer == last:
                break
            last = answer
            time.sleep(0.15)
        self.json(f"{subject}: ", last)
        return last

    def consumer_state(self, stream, name):
        def pick(info):
            if "error" in info:
                return info["error"]
            out = {k: info.get(k) for k in ("num_ack_pending", "num_redelivered", "num_waiting", "num_pending")}
            for k in ("delivered", "ack_floor"):
                out[k] = {"consumer_seq": info[k]["consumer_seq"], "stream_seq": info[k]["stream_seq"]}
            return out

        return self.stable(f"CONSUMER.INFO.{stream}.{name}", pick)

    def pull(self, stream, consumer, body, timeout=3.0, log=True, most=10_000, conn=None):
        """One pull request; returns what came until a status ended it (or nothing more came)."""
        conn = conn or self.c
        reply = conn.new_reply()
        payload = json.dumps(body) if isinstance(body, dict) else str(body)
        if log:
            self.log(f"> pull {consumer} {payload}")
        conn.pub(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", payload, reply)

        def ended(op):
            if op[0] != "HMSG" or op[5]:
                return False
            status = re.match(rb"NATS/1\.0 (\d\d\d)", op[4])
            return bool(status) and status.group(1) not in (b"100",)

        ops = [op for op in conn.collect(timeout, ended, most) if op[1] == reply or op[3].startswith("$JS.ACK")]
        if log:
            self.answers(ops, reply)
        return [op for op in ops if op[3].startswith("$JS.ACK")]

    def ack(self, message, payload="+ACK", confirm=True):
        """Acknowledges a delivery, and waits for the confirmation unless told not to."""
        if confirm:
            self.c.request(message[3], payload)
        else:
            self.c.pub(message[3], payload)

    def took(self, what, started, low, high):
        """Logs whether something took between `low` and `high` seconds, not how long."""
        seconds = time.monotonic() - started
        self.log(f"{what}: " + ("in time" if low <= seconds <= high else f"after {seconds:.1f} s, expected {low} to {high}"))

    def run(self, function):
        try:
            function(self)
        except Exception as error:  # the case's own failure is part of its transcript
            where = traceback.extract_tb(error.__traceback__)[-1]
            self.log(f"EXCEPTION {type(error).__name__}: {error} (in {where.name})")
        finally:
            for name in dict.fromkeys(self.streams):
                try:
                    self.connect().request(f"$JS.API.STREAM.DELETE.{name}")
                except Exception:  # it may be deleted already, or the server gone
                    pass
            for conn in self.conns:
                conn.close()
        return self.lines
