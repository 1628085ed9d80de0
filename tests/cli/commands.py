"""Headwater's own commands, as people use them: `recovery`, `demo` and `dev`. Every wait has an end and says what it saw."""

import json
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

from servers import ROOT, js_api

COLUMNS = ["NODE", "STREAM", "ROLE", "PHASE", "APPLIED", "PERSISTED", "BEHIND", "SNAPSHOT", "FLUSH", "SYNC", "PROMISE"]
MESSAGES = 100


class Failed(Exception):
    """What was expected and what was seen."""


def expect(true, text):
    if not true:
        raise Failed(text)


def wait_until(seconds, what, probe):
    """Calls `probe` until it returns something true, and returns that. It may raise Failed to say what is missing."""
    end, last = time.monotonic() + seconds, None
    while True:
        try:
            value = probe()
            if value:
                return value
            last = f"last seen: {value!r}"
        except Failed as failed:
            last = str(failed)
        except (OSError, ValueError, LookupError) as error:
            last = f"{type(error).__name__}: {error}"
        if time.monotonic() > end:
            raise Failed(f"not within {seconds} s: {what}; {last}")
        time.sleep(0.1)


def attempt(t, name, step, output):
    """Records one step; True if it held."""
    problems = []
    try:
        step()
    except Failed as failed:
        problems.append(str(failed))
    t.record(name, problems, output() if problems else "")
    return not problems


def command(*args, timeout=30, **more):
    """Runs it to its end; what it printed is in `stdout`."""
    try:
        return subprocess.run([str(arg) for arg in args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout, **more)
    except subprocess.TimeoutExpired as error:
        said = error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else error.stdout
        raise Failed(f"{args[0]} {args[1]} is not done after {timeout} s; it said: {said}") from None


def publish(nats, urls, subject):
    """MESSAGES of them, the first as soon as the node has heard of the stream."""
    def send(count):
        done = command(nats, "--no-context", "-s", urls, "pub", "-J", subject, "book {{.Count}}", "--count", count)
        expect(done.returncode == 0, done.stdout)
        return True
    wait_until(15, f"a publish to {subject} is confirmed", lambda: send(1))
    send(MESSAGES - 1)


def processes_of(directory):
    """Command lines of the processes that were told to work in `directory`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has just ended
            continue
        if f"{directory}" in line:
            found.append(line.strip())
    return found


# ---------------------------------------------------------------- recovery

def recovery(t):
    """Against the nodes of the tier: all of them, one killed, that one back, and nobody."""
    cluster, last = t.cluster, [""]
    admin = f"http://127.0.0.1:{cluster.ports[0][1]}"

    def look(*flags):
        """The table's cells, heading first; one row per replica."""
        done = command(cluster.binary, "recovery", "--url", admin, *flags)
        last[0] = done.stdout
        expect(done.returncode == 0, f"exit status {done.returncode}")
        return [re.split(r"\s{2,}", line) for line in done.stdout.splitlines()]

    def rows_are_good(wanted):
        heading, *rows = look("--stream", "ROWS")
        expect(heading == COLUMNS, f"columns {heading}")
        rows = [dict(zip(COLUMNS, row)) for row in rows if len(row) == len(COLUMNS)]
        expect([row["NODE"] for row in rows] == wanted, f"rows of {[row['NODE'] for row in rows]}, expected {wanted}")
        expect(sorted(row["ROLE"] for row in rows) == ["follower"] * (len(wanted) - 1) + ["leader"], f"roles {[row['ROLE'] for row in rows]}")
        for row in rows:
            found = {key: row[key] for key in ("STREAM", "PHASE", "BEHIND", "FLUSH", "SYNC", "PROMISE")}
            expect(found == {"STREAM": "ROWS", "PHASE": "Recovered", "BEHIND": "0", "FLUSH": "async", "SYNC": "always", "PROMISE": "always+async"}, f"{row['NODE']}: {found}")
            expect(int(row["APPLIED"]) >= MESSAGES and row["PERSISTED"].isdigit() and re.match(r"\d+|-$", row["SNAPSHOT"]), f"numbers of {row}")
        return True

    def all_rows():
        publish(t.nats, cluster.urls, "rows")
        wait_until(20, "a good row for every replica", lambda: rows_are_good(["n1", "n2", "n3"]))
        expect(any(row[1] == "(catalogue)" for row in look()), "without --stream the catalogue is missing")

    def killed_node_is_unreachable():
        cluster.kill(2)
        wait_until(20, "two good rows", lambda: rows_are_good(["n1", "n2"]))
        expect(re.search(r"(?m)^n3 +unreachable: \S", last[0]), "no row for the killed node")

    def back_again():
        cluster.start(2)
        wait_until(30, "a good row for every replica", lambda: rows_are_good(["n1", "n2", "n3"]))
        expect("unreachable" not in last[0], "somebody is still unreachable")

    def nobody():
        done = command(cluster.binary, "recovery", "--url", "http://127.0.0.1:1")
        expect(done.returncode == 1 and "unreachable" in done.stdout, f"exit status {done.returncode}: {done.stdout}")

    t.run("stream add for recovery", "stream", "add", "ROWS", "--subjects", "rows", "--replicas", "3", "--defaults")
    for name, step in [
        ("recovery shows every replica", all_rows), ("recovery shows a killed node as unreachable", killed_node_is_unreachable),
        ("recovery shows it back", back_again), ("recovery with nobody to ask fails", nobody),
    ]:
        attempt(t, name, step, lambda: last[0])
    t.run("stream rm after recovery", "stream", "rm", "ROWS", "-f")


# ---------------------------------------------------------------- demo

def demo(t, binary, directory):
    """As `make demo` runs it, but for the build."""
    home = directory / "demo"
    home.mkdir()
    try:
        done = command(binary, "demo", timeout=150, env={**os.environ, "TMPDIR": str(home)})
    except Failed as failed:
        t.record("demo", [str(failed)], "")
        return
    problems = [f"exit status {done.returncode}"] if done.returncode else []
    figures = dict(re.findall(r"(?m)^  (confirmed|lost|duplicated|reordered|seconds) +([\d. ]+)$", done.stdout))
    numbers = {key: float(text.replace(" ", "")) for key, text in figures.items()}
    problems += [f"{key} is {numbers.get(key)}" for key in ("lost", "duplicated", "reordered") if numbers.get(key) != 0]
    if numbers.get("confirmed", 0) < 100_000 or not 0 < numbers.get("seconds", 0) <= 90:
        problems.append(f"figures {figures}")
    t.record("demo", problems, done.stdout)
    left = processes_of(home) + [str(path) for path in home.iterdir()]
    t.record("demo leaves nothing behind", [f"left: {left}"] if left else [], done.stdout)


# ---------------------------------------------------------------- dev

class Dev:
    """One `headwater dev` and the manifest it follows. Use as a context manager: nothing of it stays."""

    def __init__(self, nats, binary, directory):
        self.nats, self.binary, self.directory = nats, binary, directory
        self.store, self.manifest, self.log = directory / "store", directory / "orders.yaml", directory / "log"
        self.port = free_base(3)
        self.process = None
        self.example = (ROOT / "examples/orders.yaml").read_text()

    def __enter__(self):
        self.directory.mkdir()
        self.write(self.example)
        self.start()
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        # Its nodes watch for its end.
        wait_until(10, "nobody is left", lambda: not processes_of(self.directory))

    def start(self):
        with open(self.log, "wb") as out:
            self.process = subprocess.Popen(
                [self.binary, "dev", "--nodes", "3", "--port", str(self.port), "--dir", str(self.store), "-f", str(self.manifest)],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)

    def said(self):
        return self.log.read_text(errors="replace")

    def write(self, text):
        """Replaces the manifest in one go, so that nobody reads half of it."""
        new = self.manifest.with_suffix(".new")
        new.write_text(text)
        os.replace(new, self.manifest)

    def edited(self, *changes):
        """The example with these (before, after) in it."""
        text = self.example
        for before, after in changes:
            expect(before in text, f"the example no longer says {before!r}")
            text = text.replace(before, after)
        return text

    def info(self):
        expect(self.process.poll() is None, f"dev ended with {self.process.returncode}")
        answer = js_api(self.port, "STREAM.INFO.ORDERS")
        expect("error" not in answer, f"STREAM.INFO: {answer.get('error')}")
        return answer

    def flush_modes(self):
        """What `recovery` says is in force at each replica."""
        done = command(self.binary, "recovery", "--url", f"http://127.0.0.1:{self.port + 4000}", "--json")
        expect(done.returncode == 0, done.stdout)
        groups = [group for node in json.loads(done.stdout) for group in node["report"]["groups"] if group["stream"] == "ORDERS"]
        return [group["effective"]["allow_async_flush"] for group in groups]

    def runs_three_nodes(self):
        info = wait_until(40, "the stream of the manifest", self.info)
        config = info["config"]
        found = (config["num_replicas"], config["subjects"], config["max_age"], len(info["cluster"]["replicas"]))
        expect(found == (3, ["orders.>"], 720 * 3600 * 10**9, 2), f"replicas, subjects, age, followers: {found}")
        publish(self.nats, f"nats://127.0.0.1:{self.port + 2}", "orders.new")
        expect(self.info()["state"]["messages"] == MESSAGES, f"state {self.info()['state']}")

    def follows_an_edit(self):
        self.write(self.edited(("allowAsyncFlush: true", "allowAsyncFlush: false\n  maxMsgs: 5000")))
        wait_until(30, "maxMsgs is 5000", lambda: self.info()["config"]["max_msgs"] == 5000)
        wait_until(30, "three replicas that flush before they confirm", lambda: self.flush_modes() == [False] * 3)
        wait_until(30, "dev says that it is done", lambda: self.said().rstrip().splitlines()[-1].startswith("ORDERS: as its manifest says; promise always+sync"))

    def reports_a_broken_edit(self):
        before, said = self.info()["config"], len(self.said())
        self.write(self.edited(("replicas: 3", "replicas: 9\n  maxMsgs: 7")))
        wait_until(15, "spec.replicas is named", lambda: re.search(r"(?m)^error: .*orders\.yaml.*spec\.replicas: \S", self.said()[said:]))
        # When a later edit is in force, the broken one has had its turn.
        self.write(self.edited(("allowAsyncFlush: true", "allowAsyncFlush: false\n  maxMsgs: 6000")))
        after = wait_until(30, "maxMsgs is 6000", lambda: self.info()["config"]["max_msgs"] == 6000 and self.info()["config"])
        broken = self.said()[said:].split("manifests changed\n")[1]
        lines = [line for line in broken.splitlines() if not line.startswith(("error: ", "the streams are kept as the manifests said before"))]
        expect(not lines, f"the broken edit led to {lines}")
        differs = {key for key in after if after[key] != before.get(key)} - {"metadata"}
        expect(differs == {"max_msgs"}, f"changed: {differs}")

    def stops_on_ctrl_c(self):
        self.process.send_signal(signal.SIGINT)
        try:
            code = self.process.wait(15)
        except subprocess.TimeoutExpired:
            raise Failed("not stopped after 15 s") from None
        expect(code == 0 and "the data stays in" in self.said(), f"exit status {code}")
        left = processes_of(self.directory)
        expect(not left, f"still there: {left}")

    def has_its_messages_again(self):
        self.start()
        info = wait_until(40, "all messages are there", lambda: self.info()["state"]["messages"] == MESSAGES and self.info())
        expect(info["config"]["max_msgs"] == 6000, f"config {info['config']}")
        got = command(self.nats, "--no-context", "-s", f"nats://127.0.0.1:{self.port}", "stream", "get", "ORDERS", MESSAGES)
        expect(f"book {MESSAGES - 1}" in got.stdout, got.stdout)
        self.stops_on_ctrl_c()


def dev(t, binary, directory):
    with Dev(t.nats, binary, directory / "dev") as running:
        for name, step in [
            ("dev makes the stream of its manifest", running.runs_three_nodes), ("dev follows an edit", running.follows_an_edit),
            ("dev names what is wrong with an edit and changes nothing", running.reports_a_broken_edit),
            ("dev stops on Ctrl-C, with its nodes", running.stops_on_ctrl_c), ("dev has its messages again", running.has_its_messages_again),
        ]:
            # Each step stands on the one before.
            if not attempt(t, name, step, running.said):
                break


def free_base(count):
    """A port from which dev can take its three runs of `count`; below the range systems take outgoing ports from."""
    for step in range(500):
        base = 21_000 + (os.getpid() * 16 + step * 16) % 7_000
        try:
            for port in (base + above + i for above in (0, 2000, 4000) for i in range(count)):
                with socket.socket() as sock:
                    sock.bind(("127.0.0.1", port))
        except OSError:
            continue
        return base
    raise Failed("no free ports from 21000 to 32000")
