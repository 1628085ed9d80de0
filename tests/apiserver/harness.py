"""Processes and clients of the API-server tier: a control plane, three nodes, the operator, and kubectl.

Everything lives in one temporary directory and ends with `World.close()`, also after a failure or Ctrl-C.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


class Failed(Exception):
    """A check of a test case did not hold; the text says what was expected and what was seen."""


def say(text):
    print(text, flush=True)


def wait_until(seconds, what, probe):
    """Calls `probe` until it returns something true, and returns that. `probe` may raise Failed to explain itself."""
    end = time.monotonic() + seconds
    last = None
    while True:
        try:
            value = probe()
            if value:
                return value
            last = f"last seen: {value!r}"
        except Failed as failed:
            last = str(failed)
        if time.monotonic() > end:
            raise Failed(f"not within {seconds} s: {what}; {last}")
        time.sleep(0.1)


class Ports:
    """Free ports, each handed out once, below the range that the kernel gives to outgoing connections."""

    def __init__(self):
        self.next = 20000 + os.getpid() % 500 * 20

    def take(self):
        while True:
            self.next += 1
            with socket.socket() as probe:
                try:
                    probe.bind(("127.0.0.1", self.next))
                    return self.next
                except OSError:
                    continue


class Process:
    """A child with its own log. It is ended by its own id, never by name."""

    def __init__(self, name, command, log, env=None):
        self.name, self.log = name, log
        with open(log, "ab") as out:
            self.child = subprocess.Popen(
                [str(part) for part in command], stdout=out, stderr=out, stdin=subprocess.DEVNULL,
                env={**os.environ, **(env or {})}, start_new_session=True)

    def running(self):
        return self.child.poll() is None

    def signal(self, number):
        if self.running():
            self.child.send_signal(number)

    def stop(self, seconds=10):
        """SIGTERM, then SIGKILL when it does not end. Returns the exit code, None if it had to be killed."""
        self.signal(signal.SIGTERM)
        try:
            return self.child.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def kill(self):
        self.signal(signal.SIGKILL)
        self.child.wait(10)

    def tail(self, lines=15):
        try:
            return "\n".join(Path(self.log).read_text(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return ""


class Node:
    """One `headwater node` process; its ports and its store stay the same over restarts."""

    def __init__(self, world, name):
        self.world, self.name = world, name
        self.listen, self.cluster, self.http = (world.ports.take() for _ in range(3))
        self.store = world.dir / "store" / name
        self.process = None

    def start(self):
        self.store.mkdir(parents=True, exist_ok=True)
        peers = ",".join(f"{node.name}=127.0.0.1:{node.cluster}" for node in self.world.nodes)
        self.process = Process(self.name, [
            self.world.node_binary, "node", "--name", self.name, "--store-dir", self.store,
            "--listen", f"127.0.0.1:{self.listen}", "--http", f"127.0.0.1:{self.http}",
            "--cluster-listen", f"127.0.0.1:{self.cluster}", "--peers", peers,
            "--admin-token-file", self.world.token_file,
        ], self.world.dir / "log" / self.name)

    def url(self, path=""):
        return f"http://127.0.0.1:{self.http}{path}"

    def get(self, path):
        """The JSON answer of the admin API, or None when there is none."""
        request = urllib.request.Request(self.url(path), headers={"Authorization": f"Bearer {self.world.token}"})
        try:
            with urllib.request.urlopen(request, timeout=3) as answer:
                return json.load(answer)
        except (urllib.error.URLError, OSError, ValueError):
            return None

    def serving(self):
        try:
            with urllib.request.urlopen(self.url("/readyz"), timeout=2) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False


class World:
    """Everything that a run starts."""

    def __init__(self, keep=False):
        self.keep = keep
        self.dir = Path(tempfile.mkdtemp(prefix="headwater-apiserver-"))
        (self.dir / "log").mkdir()
        self.ports = Ports()
        tools = subprocess.run([ROOT / "tests/tools/install", "path"], check=True, capture_output=True, text=True)
        os.environ["PATH"] = tools.stdout.strip() + ":" + os.environ["PATH"]
        target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug"
        self.node_binary = os.environ.get("HEADWATER_BIN", str(target / "headwater"))
        self.operator_binary = os.environ.get("OPERATOR_BIN", str(target / "headwater-operator"))
        self.token = "apiserver-tier-token"
        self.token_file = self.dir / "admin-token"
        self.token_file.write_text(self.token)
        self.nodes, self.operators, self.control_plane = [], [], False
        self.operator_kubeconfig = None
        self.operator = None  # the one that leads, as far as the cases know

    def missing(self):
        """What this tier needs and does not find."""
        tools = ["etcd", "kube-apiserver", "kube-controller-manager", "kubectl", "helm", "nats", "openssl"]
        absent = [f"{tool} (tests/tools/install all)" for tool in tools if not shutil.which(tool)]
        for binary, package in ((self.node_binary, "headwater"), (self.operator_binary, "headwater-operator")):
            if not os.access(binary, os.X_OK):
                absent.append(f"{binary} (cargo build -p {package})")
        return absent

    def start_control_plane(self):
        begun = time.monotonic()
        self.control_plane = True
        up = subprocess.run([HERE / "control-plane", "up", self.dir / "kube"], capture_output=True, text=True)
        if up.returncode:
            raise Failed("the control plane did not start: " + up.stderr)
        os.environ["KUBECONFIG"] = up.stdout.strip()
        os.environ["KUBECACHEDIR"] = str(self.dir / "kubecache")
        return time.monotonic() - begun

    def start_nodes(self, count=3):
        self.nodes = [Node(self, f"node-{n}") for n in range(count)]
        for node in self.nodes:
            node.start()
        wait_until(30, "all nodes serve", lambda: all(node.serving() for node in self.nodes))

    def grant_operator(self):
        """Gives the operator the rights that its chart grants, and no more: a service account's kubeconfig."""
        chart = ROOT / "charts/headwater-operator"
        rendered = helm_template(chart, "default", "serviceaccount.yaml", "rbac-cluster.yaml", "lease-role.yaml")
        kubectl("apply", "-n", "default", "-f", "-", stdin=rendered)
        accounts = [line.split()[0] for line in kubectl("get", "serviceaccounts", "-n", "default", "--no-headers")[0].splitlines()]
        account = next(name for name in accounts if "headwater-operator" in name)
        token = kubectl("create", "token", account, "-n", "default", "--duration=2h")[0].strip()
        config = json.loads(kubectl("config", "view", "--raw", "-o", "json")[0])
        config["users"] = [{"name": "operator", "user": {"token": token}}]
        config["contexts"][0]["context"]["user"] = "operator"
        self.operator_kubeconfig = self.dir / "operator.kubeconfig"
        self.operator_kubeconfig.write_text(json.dumps(config))

    def start_operator(self, *flags):
        port = self.ports.take()
        operator = Process(
            f"operator-{len(self.operators)}",
            [self.operator_binary, "run", "--http", f"127.0.0.1:{port}", "--lease-namespace", "default", *flags],
            self.dir / "log" / f"operator-{len(self.operators)}", env={"RUST_LOG": os.environ.get("RUST_LOG", "info"), "KUBECONFIG": str(self.operator_kubeconfig)})
        operator.port = port
        self.operators.append(operator)
        return operator

    @staticmethod
    def http(port, path):
        """Text that a loopback HTTP server answers, empty when it does not."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=3) as answer:
                return answer.read().decode()
        except (urllib.error.URLError, OSError):
            return ""

    def close(self):
        for process in [*self.operators, *(node.process for node in self.nodes if node.process)]:
            if process.running():
                process.kill()
        if self.control_plane:
            if self.keep:
                shutil.copytree(self.dir / "kube" / "log", self.dir / "log" / "kube", dirs_exist_ok=True)
            subprocess.run([HERE / "control-plane", "down", self.dir / "kube"], check=False)
        if self.keep:
            say(f"logs kept in {self.dir}/log")
        else:
            shutil.rmtree(self.dir, ignore_errors=True)


def kubectl(*args, stdin=None, ok=True, timeout=60):
    """Runs kubectl. With `ok` it must succeed; returns (stdout, stderr)."""
    run = subprocess.run(["kubectl", *map(str, args)], input=stdin, capture_output=True, text=True, timeout=timeout)
    if ok and run.returncode:
        raise Failed(f"kubectl {' '.join(map(str, args))}: {run.stderr.strip() or run.stdout.strip()}")
    if not ok and not run.returncode:
        raise Failed(f"kubectl {' '.join(map(str, args))} should have been refused, but: {run.stdout.strip()}")
    return run.stdout, run.stderr


def helm_template(chart, namespace, *templates):
    """What a chart renders; with `templates`, only those of its files. Works on a copy: the repository stays clean."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(shutil.copytree(chart.parent, Path(scratch) / "charts")) / chart.name
        build = subprocess.run(["helm", "dependency", "build", copy], capture_output=True, text=True)
        expect(not build.returncode, f"helm dependency build {chart.name}: {build.stderr.strip()}")
        show = [flag for name in templates for flag in ("--show-only", f"templates/{name}")]
        run = subprocess.run(["helm", "template", "test", copy, "--namespace", namespace, "--kube-version", "1.36.0", *show],
                             capture_output=True, text=True)
        expect(not run.returncode, f"helm template {chart.name}: {run.stderr.strip()}")
        return run.stdout


class Watch:
    """Every version of one object from now on, as the API server reports them: nothing between two looks is missed."""

    def __init__(self, kind, name, namespace="default"):
        self.out = tempfile.NamedTemporaryFile()
        self.child = subprocess.Popen(
            ["kubectl", "get", kind, name, "-n", namespace, "--watch", "--output=json"], stdout=self.out, stderr=subprocess.DEVNULL)

    def __enter__(self):
        # The object as it is now comes first; before that, the watch is not in place.
        wait_until(10, "the watch begins", self.seen)
        return self

    def __exit__(self, *_):
        self.child.terminate()
        self.child.wait(10)
        self.out.close()

    def seen(self):
        """The versions so far, oldest first."""
        text, at, found = Path(self.out.name).read_text(errors="replace").lstrip(), 0, []
        while at < len(text):
            try:
                version, at = json.JSONDecoder().raw_decode(text, at)
            except ValueError:  # the last one is still being written
                break
            found.append(version)
            at += len(text[at:]) - len(text[at:].lstrip())
        return found

    def until(self, version):
        """The versions so far if that one is among them, or None."""
        found = self.seen()
        return found if any(each["metadata"]["resourceVersion"] == version for each in found) else None


def apply(manifest, ok=True, server_side=False):
    """Applies one manifest (a dict, or YAML text) with strict validation."""
    text = manifest if isinstance(manifest, str) else json.dumps(manifest)
    flags = ["--server-side"] if server_side else []
    return kubectl("apply", *flags, "--validate=strict", "-f", "-", stdin=text, ok=ok)


def get(kind, name, namespace="default"):
    """The object, or None."""
    run = subprocess.run(
        ["kubectl", "get", kind, name, "-n", namespace, "-o", "json"], capture_output=True, text=True, timeout=60)
    if run.returncode:
        if "NotFound" in run.stderr:
            return None
        raise Failed(run.stderr.strip())
    return json.loads(run.stdout)


def condition(found, kind):
    """(status, reason, message) of a condition, (None, '', '') when absent."""
    for entry in ((found or {}).get("status") or {}).get("conditions") or []:
        if entry["type"] == kind:
            return entry["status"], entry.get("reason", ""), entry.get("message", "")
    return None, "", ""


def expect(true, text):
    if not true:
        raise Failed(text)


def with_ports(yaml_text, ports):
    """Replaces the loopback ports of an example, in order of first appearance, by `ports`."""
    seen = []
    for port in re.findall(r"(?:127\.0\.0\.1|localhost):(\d+)", yaml_text):
        if port not in seen:
            seen.append(port)
    if len(seen) != len(ports):
        raise Failed(f"the example names {len(seen)} loopback ports, expected {len(ports)}")
    mapping = dict(zip(seen, map(str, ports)))
    return re.sub(r"((?:127\.0\.0\.1|localhost):)(\d+)", lambda m: m.group(1) + mapping[m.group(2)], yaml_text)


def main_guard(body):
    """Runs `body`, turning SIGTERM into an orderly end so that cleaning up always happens."""
    def ended(number, _frame):
        raise KeyboardInterrupt(signal.Signals(number).name)
    signal.signal(signal.SIGTERM, ended)
    try:
        return body()
    except KeyboardInterrupt as stop:
        print(f"interrupted {stop}", file=sys.stderr)
        return 130
