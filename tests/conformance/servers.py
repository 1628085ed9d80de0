"""Starts one or three nodes of nats-server or Headwater on loopback. Standard library only.

Shared by the conformance, CLI and bench scripts.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TICKS = os.sysconf("SC_CLK_TCK")
_given = set()
_giving = threading.Lock()


def tools_path():
    """The folders of the installed tools: nats, nats-server and a Python with nats-py."""
    found = subprocess.run([str(ROOT / "tests" / "tools" / "install"), "path"], check=True, capture_output=True, text=True)
    return found.stdout.strip()


def _tool(name, variable):
    if os.environ.get(variable):
        return os.environ[variable]
    found = shutil.which(name, path=tools_path())
    if not found:
        sys.exit(f"{name} is not installed: run tests/tools/install nats, or set {variable}")
    return found


def find_nats_server():
    return _tool("nats-server", "NATS_SERVER_BIN")


def find_nats_cli():
    return _tool("nats", "NATS_CLI_BIN")


def tools_python():
    return _tool("python", "HEADWATER_PYTHON")


def find_headwater(profiles=("debug", "release")):
    """HEADWATER_BIN, or the newest build of those profiles."""
    if os.environ.get("HEADWATER_BIN"):
        return os.environ["HEADWATER_BIN"]
    target = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
    places = [target / profile / "headwater" for profile in profiles]
    found = [place for place in places if place.is_file()]
    if not found:
        sys.exit(f"no headwater binary: build it, or set HEADWATER_BIN; looked in {', '.join(map(str, places))}")
    return str(max(found, key=lambda place: place.stat().st_mtime))


def free_port():
    """A port below the range systems take outgoing ports from."""
    start = (os.getpid() * 41) % 2000
    with _giving:
        for offset in range(2000):
            port = 18000 + (start + offset) % 2000
            if port in _given:
                continue
            with socket.socket() as sock:
                try:
                    sock.bind(("127.0.0.1", port))
                except OSError:
                    continue
            _given.add(port)
            return port
    sys.exit("no free port from 18000 to 19999")


class Cluster:
    """Nodes n1, n2, … of one kind. Use as a context manager: they are killed at the end."""

    def __init__(self, kind, binary, nodes, directory, sync_always=False):
        self.kind, self.binary, self.directory = kind, binary, Path(directory)
        self.sync_always = sync_always
        self.ports = [(free_port(), free_port(), free_port()) for _ in range(nodes)]
        self.client_ports = [ports[0] for ports in self.ports]
        self.processes = [None] * nodes

    @property
    def urls(self):
        return ",".join(f"nats://127.0.0.1:{port}" for port in self.client_ports)

    def __enter__(self):
        for i in range(len(self.ports)):
            self.start(i)
        return self

    def __exit__(self, *_):
        for i in range(len(self.ports)):
            self.kill(i)

    def start(self, i):
        client, http, cluster = self.ports[i]
        home = self.directory / f"n{i + 1}"
        home.mkdir(parents=True, exist_ok=True)
        log = open(home / "log", "ab")
        self.processes[i] = subprocess.Popen(self._command(i, home, client, http, cluster), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        log.close()

    def _command(self, i, home, client, http, cluster):
        name, many = f"n{i + 1}", len(self.ports) > 1
        if self.kind == "headwater":
            command = [
                self.binary, "node", "--name", name, "--listen", f"127.0.0.1:{client}", "--http", f"127.0.0.1:{http}",
                "--cluster-listen", f"127.0.0.1:{cluster}", "--store-dir", str(home / "store"),
            ]
            if many:
                command += ["--peers", ",".join(f"n{j + 1}=127.0.0.1:{ports[2]}" for j, ports in enumerate(self.ports))]
            return command
        config = [f"server_name: {name}", f"listen: 127.0.0.1:{client}", f"http: 127.0.0.1:{http}"]
        sync = "sync_interval: always" if self.sync_always else ""
        config.append(f'jetstream {{\n store_dir: "{home / "store"}"\n max_file: 20GB\n {sync}\n}}')
        if many:
            routes = ", ".join(f'"nats://127.0.0.1:{ports[2]}"' for ports in self.ports)
            config.append(f"cluster {{ name: C, listen: 127.0.0.1:{cluster}, routes: [{routes}] }}")
        file = home / "server.conf"
        file.write_text("\n".join(config) + "\n", encoding="utf-8")
        return [self.binary, "-c", str(file)]

    def kill(self, i, how=signal.SIGKILL):
        process = self.processes[i]
        if process and process.poll() is None:
            process.send_signal(how)
        if process:
            process.wait(30)
        self.processes[i] = None

    def log_tail(self, i):
        text = (self.directory / f"n{i + 1}" / "log").read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-20:])

    def check_alive(self):
        for i, process in enumerate(self.processes):
            if process and process.poll() is not None:
                sys.exit(f"{self.kind} n{i + 1} ended by itself ({process.returncode}); its log ends:\n{self.log_tail(i)}")

    def get(self, i, path, timeout=2):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[i][1]}{path}", timeout=timeout) as answer:
            return answer.read().decode()

    def wait_ready(self, patience=60):
        """Until every node says it's healthy and JetStream answers through each."""
        deadline = time.monotonic() + patience
        for i, port in enumerate(self.client_ports):
            while True:
                self.check_alive()
                try:
                    self.get(i, "/healthz")
                    answer = js_api(port, "INFO")
                    if "error" not in answer:
                        break
                    why = answer["error"]
                except (OSError, ValueError) as error:
                    why = error
                if time.monotonic() > deadline:
                    sys.exit(f"{self.kind} n{i + 1} is not ready after {patience} s: {why}; its log ends:\n{self.log_tail(i)}")
                time.sleep(0.1)
        if len(self.ports) > 1:
            self._wait_peers(deadline)

    def _wait_peers(self, deadline):
        """Until a stream with three replicas can be made: every node knows every other."""
        while True:
            answer = js_api(self.client_ports[0], "STREAM.CREATE.READY", {"name": "READY", "subjects": ["ready.probe"], "num_replicas": 3})
            if "error" not in answer:
                break
            if time.monotonic() > deadline:
                sys.exit(f"{self.kind}: no stream with three replicas can be made: {answer}")
            time.sleep(0.25)
        js_api(self.client_ports[0], "STREAM.DELETE.READY")

    # ---- what the processes have used

    def usage(self):
        """CPU seconds, bytes that reached the device, and peak resident bytes, summed over the nodes."""
        cpu = peak = 0
        for process in self.processes:
            fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
            cpu += (int(fields[11]) + int(fields[12])) / TICKS
            status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            peak += next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
        return cpu, device_bytes(self.directory), peak


def device_bytes(path):
    """Bytes written to the block device below `path` so far, by everybody; 0 where there is none.

    A process's own `write_bytes` counts whole folios of the page cache: up to 1 MiB for a small record in a
    preallocated file, of which the device gets a page.
    """
    number = os.stat(path).st_dev
    stat = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/stat")
    return int(stat.read_text().split()[6]) * 512 if stat.exists() else 0


def js_api(port, subject, body=None, timeout=5):
    """One JetStream API request over a plain socket; its answer as an object."""
    payload = json.dumps(body).encode() if body is not None else b""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as sock:
        reader = sock.makefile("rb")
        reader.readline()
        sock.sendall(b'CONNECT {"verbose":false,"headers":true,"no_responders":true,"protocol":1}\r\nSUB _INBOX.x 1\r\n')
        sock.sendall(b"PUB $JS.API.%s _INBOX.x %d\r\n%s\r\n" % (subject.encode(), len(payload), payload))
        while True:
            line = reader.readline()
            if not line:
                raise OSError("the connection was closed")
            words = line.split()
            if words[0] == b"PING":
                sock.sendall(b"PONG\r\n")
            elif words[0] == b"MSG":
                data = reader.read(int(words[-1]) + 2)[:-2]
                return json.loads(data)
            elif words[0] == b"HMSG":
                data = reader.read(int(words[-1]) + 2)[:-2]
                head, data = data[: int(words[-2])], data[int(words[-2]):]
                if head.startswith(b"NATS/1.0 503"):
                    return {"error": {"code": 503, "description": "no responders"}}
                return json.loads(data)
            elif words[0] == b"-ERR":
                raise OSError(line.decode().strip())


def stream_leader(port, stream):
    """The name of the node that leads a stream, or of the only node."""
    info = js_api(port, f"STREAM.INFO.{stream}")
    return (info.get("cluster") or {}).get("leader", "n1")
