#!/usr/bin/env python3
"""How long three nodes take to serve again, by how much is stored; and what a replica's catch-up costs in memory.

    restart.py [--headwater BINARY] [--gigabytes 1,4,10] [--size BYTES] [--dir FOLDER] [--no-catch-up]

For each size: one stream with three replicas is filled up to it, then all nodes are stopped (SIGTERM) and started,
and killed (SIGKILL) under load on many small streams, so that the log has many entries to replay, and started.
"serving" is the time from the start of the processes until a publish is acknowledged and the first and the last
message of the big stream can be read; "recovered" until every replica says so.
At the last size one node's store is wiped, and what leader and newcomer need in memory meanwhile is measured.
It needs three times the largest size on disk, and twice that for the newcomer's copy of a moment.
"""

import argparse
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "conformance"))
sys.dont_write_bytecode = True
from servers import Cluster, find_headwater, find_nats_cli, js_api, stream_leader  # noqa: E402
from bench import describe  # noqa: E402

BIG = "BIG"
SMALL = [f"SMALL{n}" for n in range(8)]
PATIENCE_S = 120
# Entries of the small streams per kill: each publish is an entry of its own.
ENTRIES = 100_000


def create(cluster, name, replicas=3):
    config = {"name": name, "subjects": [f"{name}.>"], "num_replicas": replicas, "storage": "file", "allow_direct": True}
    deadline = time.monotonic() + 30
    while True:
        answer = js_api(cluster.client_ports[0], f"STREAM.CREATE.{name}", config)
        if "error" not in answer:
            return
        if time.monotonic() > deadline:
            sys.exit(f"{name} cannot be made: {answer}")
        time.sleep(0.2)


def bench(nats, cluster, *words):
    port = cluster.client_ports[0]
    command = [nats, "--no-context", "-s", f"nats://127.0.0.1:{port}", "bench", "js", "pub", *words, "--no-progress", "--timeout", "30s"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stdout.strip()[-500:]}")


def stored(cluster, name):
    return js_api(cluster.client_ports[0], f"STREAM.INFO.{name}")["state"]


def fill(cluster, nats, size, until_bytes):
    state = stored(cluster, BIG)
    missing = until_bytes - state["bytes"]
    if missing > 0:
        msgs = -(-missing // (size + 30 + len("BIG.s")))
        bench(nats, cluster, "async", "BIG.s", "--stream", BIG, "--clients", "4", "--msgs", str(msgs), "--size", str(size), "--batch", "500")


def memory(process, field):
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    return 0.0


def phases(cluster, i):
    return [group["phase"] for group in json.loads(cluster.get(i, "/v1/recovery"))["groups"]]


def start_and_wait(cluster, expected_last):
    """Starts all nodes; seconds to serving and to recovered, and the nodes' peak memory in MiB."""
    started = time.monotonic()
    for i in range(len(cluster.ports)):
        cluster.start(i)
    serving = None
    while True:
        elapsed = time.monotonic() - started
        if elapsed > PATIENCE_S:
            sys.exit(f"not recovered after {PATIENCE_S} s; a node's log ends:\n{cluster.log_tail(0)}")
        try:
            if serving is None:
                port = cluster.client_ports[0]
                first = js_api(port, f"STREAM.MSG.GET.{BIG}", {"seq": 1}, timeout=1)
                last = js_api(port, f"STREAM.MSG.GET.{BIG}", {"seq": expected_last}, timeout=1)
                ack = js_api(port, f"STREAM.INFO.{BIG}", timeout=1)
                if "message" in first and "message" in last and ack.get("cluster", {}).get("leader") and publish(port):
                    serving = time.monotonic() - started
            if serving is not None and all(set(phases(cluster, i)) == {"Recovered"} for i in range(len(cluster.ports))):
                break
        except (OSError, ValueError, KeyError):
            pass
        time.sleep(0.02)
    return serving, time.monotonic() - started, max(memory(process, "VmHWM") for process in cluster.processes)


def publish(port):
    """Whether one message to the big stream is acknowledged within a second."""
    import socket

    with socket.create_connection(("127.0.0.1", port), timeout=1) as sock:
        reader = sock.makefile("rb")
        reader.readline()
        sock.sendall(b'CONNECT {"verbose":false,"headers":true,"no_responders":true,"protocol":1}\r\nSUB _INBOX.x 1\r\nPUB BIG.s _INBOX.x 1\r\nx\r\n')
        while True:
            words = reader.readline().split()
            if not words:
                return False
            if words[0] == b"MSG":
                return b'"seq"' in reader.read(int(words[-1]) + 2)
            if words[0] == b"HMSG":
                return False


def replayed(cluster, offsets):
    """Entries that the last start replayed, over the replicas of each node; the largest of the nodes."""
    most = 0
    for i in range(len(cluster.ports)):
        text = (cluster.directory / f"n{i + 1}" / "log").read_text(encoding="utf-8", errors="replace")[offsets[i]:]
        found = re.findall(r"replica opened .*?persisted=(\d+) log_last=(\d+)", text)
        most = max(most, sum(int(last) - int(persisted) for persisted, last in found))
    return most


def log_offsets(cluster):
    return [len((cluster.directory / f"n{i + 1}" / "log").read_text(encoding="utf-8", errors="replace")) for i in range(len(cluster.ports))]


def kill_under_load(cluster, nats):
    """Many entries that no checkpoint covers, and kill -9 of all right behind."""
    each = ENTRIES // len(SMALL)
    loads = [
        threading.Thread(target=bench, args=(nats, cluster, "sync", f"{name}.s", "--stream", name, "--clients", "2", "--msgs", str(each), "--size", "16"))
        for name in SMALL
    ]
    for load in loads:
        load.start()
    for load in loads:
        load.join()
    for i in range(len(cluster.ports)):
        cluster.processes[i].send_signal(signal.SIGKILL)
    for i in range(len(cluster.ports)):
        cluster.kill(i)


def catch_up(cluster):
    leader = int(stream_leader(cluster.client_ports[0], BIG)[1:]) - 1
    victim = (leader + 1) % len(cluster.ports)
    cluster.kill(victim, signal.SIGTERM)
    shutil.rmtree(cluster.directory / f"n{victim + 1}" / "store")
    before = memory(cluster.processes[leader], "VmRSS")
    Path(f"/proc/{cluster.processes[leader].pid}/clear_refs").write_text("5")
    started = time.monotonic()
    cluster.start(victim)
    while True:
        try:
            if set(phases(cluster, victim)) == {"Recovered"} and len(phases(cluster, victim)) > len(SMALL):
                break
        except (OSError, ValueError, KeyError):
            pass
        if time.monotonic() - started > 1800:
            sys.exit(f"no catch-up after 30 minutes; the log ends:\n{cluster.log_tail(victim)}")
        time.sleep(0.1)
    seconds = time.monotonic() - started
    newcomer, after = (memory(cluster.processes[victim], field) for field in ("VmHWM", "VmRSS"))
    print(
        f"catch-up of a wiped node: {seconds:.1f} s; the sender's peak is {memory(cluster.processes[leader], 'VmHWM') - before:.0f} MiB above what it had ({before:.0f} MiB); "
        f"the newcomer's peak is {newcomer:.0f} MiB, {newcomer - after:.0f} MiB above what it has afterwards",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--headwater")
    parser.add_argument("--gigabytes", default="1,4,10")
    parser.add_argument("--size", type=int, default=1024, help="payload bytes of the big stream's messages")
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--no-catch-up", action="store_true")
    args = parser.parse_args()
    binary, nats = args.headwater or find_headwater(("release",)), find_nats_cli()
    directory = Path(tempfile.mkdtemp(prefix="headwater-restart-", dir=args.dir))
    print("\n".join(describe({"headwater": binary}, nats, False, 1)[:-1]), flush=True)
    try:
        with Cluster("headwater", binary, 3, directory) as cluster:
            cluster.wait_ready()
            for name in [BIG, *SMALL]:
                create(cluster, name)
            print(f"{'GB':>5} {'messages':>11} {'stop':8} {'to replay':>9} {'serving s':>9} {'recovered s':>11} {'peak MiB':>8}", flush=True)
            for gigabytes in args.gigabytes.split(","):
                fill(cluster, nats, args.size, int(float(gigabytes) * 1e9))
                for how in ("clean", "kill -9"):
                    offsets = log_offsets(cluster)
                    last = stored(cluster, BIG)["last_seq"]
                    if how == "clean":
                        for process in cluster.processes:
                            process.send_signal(signal.SIGTERM)
                        for i in range(3):
                            cluster.kill(i, signal.SIGTERM)
                    else:
                        kill_under_load(cluster, nats)
                    offsets = log_offsets(cluster)
                    serving, recovered, peak = start_and_wait(cluster, last)
                    entries = replayed(cluster, offsets)
                    print(f"{gigabytes:>5} {last:11,} {how:8} {entries:9,} {serving:9.2f} {recovered:11.2f} {peak:8.0f}", flush=True)
            if not args.no_catch_up:
                catch_up(cluster)
            for i in range(3):
                cluster.kill(i, signal.SIGTERM)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
