#!/usr/bin/env python3
"""Side by side: nats-server and Headwater, three nodes each, the same `nats bench` rows.

    bench.py [--quick] [--headwater BINARY] [--csv DIR] [--rounds N] [--rows SUBSTRING] [--only nats-server|headwater]

One server family runs at a time, on clean directories; the families alternate in every round. What
is measured, and what it does not say, is in docs/benchmarks.md.
"""

import argparse
import csv
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "conformance"))
sys.dont_write_bytecode = True
from servers import Cluster, find_headwater, find_nats_cli, find_nats_server, js_api, stream_leader  # noqa: E402

STREAM, SUBJECT, MAX_BYTES = "benchstream", "js.s", "8GB"
FAMILIES = ("nats-server", "headwater")
# What confirms a message, and how each family is told so.
MODES = {
    "interval": "confirmed when a quorum has written it; synced every 2 min",
    "always": "confirmed when a quorum has synced it",
}


@dataclass(frozen=True)
class Row:
    mode: str
    kind: str  # async or sync
    clients: int
    size: int
    msgs: int
    quick: int  # messages in a quick run; 0 leaves the row out

    @property
    def name(self):
        return f"{self.mode}, {self.kind}, {self.clients} client{'s' if self.clients > 1 else ''}, {self.size} B"


ROWS = [
    Row(mode, kind, clients, size, msgs if mode == "interval" else always, quick if mode == "interval" else quick_always)
    for kind, clients, size, msgs, always, quick, quick_always in (
        ("async", 1, 128, 300_000, 200_000, 50_000, 0),
        ("async", 8, 128, 400_000, 300_000, 100_000, 60_000),
        ("async", 8, 1024, 200_000, 100_000, 40_000, 0),
        ("sync", 1, 128, 10_000, 4_000, 2_000, 800),
        ("sync", 16, 128, 50_000, 20_000, 0, 0),
    )
    for mode in MODES
]


class Result:
    """One run of one row."""

    def __init__(self, rate, cpu_us, written, peak, leader, problem=""):
        self.rate, self.cpu_us, self.written, self.peak = rate, cpu_us, written, peak
        self.leader, self.problem = leader, problem


def touch_memory(gigabytes):
    """Touches page-cache pages once, so that their first touch is nobody's cost, then frees them."""
    with tempfile.NamedTemporaryFile(prefix="headwater-bench-touch-", dir=tempfile.gettempdir()) as file:
        block = b"\0" * (4 << 20)
        for _ in range(gigabytes * 256):
            file.write(block)
        file.flush()


def available_gigabytes():
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) >> 20
    return 0


def create_stream(cluster, nats, mode):
    """Makes the stream `nats bench --create` would make, with the row's durability."""
    command = [
        nats, "--no-context", "-s", cluster.urls, "stream", "add", STREAM, "--subjects", SUBJECT, "--storage", "file", "--replicas", "3", "--retention", "limits",
        "--discard", "new", "--max-bytes", MAX_BYTES, "--allow-direct", "--defaults",
    ]
    if cluster.kind == "headwater":
        command += ["--metadata", f"headwater.sync_mode={mode}"]
        if mode == "interval":
            command += ["--metadata", "headwater.sync_interval=2m"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    if done.returncode:
        raise RuntimeError(f"stream add: {done.stdout.strip()[-500:]}")


def measure(cluster, nats, row, msgs):
    """Purges, runs the row once, and takes what the nodes used for it."""
    js_api(cluster.client_ports[0], f"STREAM.PURGE.{STREAM}")
    leader = stream_leader(cluster.client_ports[0], STREAM)
    cpu, written, _ = cluster.usage()
    # Every client connects to the node that leads the stream, in both families.
    port = cluster.client_ports[int(leader[1:]) - 1]
    command = [
        nats, "--no-context", "-s", f"nats://127.0.0.1:{port}", "bench", "js", "pub", row.kind, SUBJECT, "--stream", STREAM,
        "--clients", str(row.clients), "--msgs", str(msgs), "--size", str(row.size), "--no-progress", "--timeout", "30s",
    ]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=180)
        output, failed = done.stdout, done.returncode != 0
    except subprocess.TimeoutExpired:
        output, failed = "not done after 180 s", True
    after_cpu, after_written, peak = cluster.usage()
    state = js_api(cluster.client_ports[0], f"STREAM.INFO.{STREAM}").get("state", {})
    cluster.check_alive()
    # One client's line says "publisher stats", several clients' sum "publisher aggregated stats".
    rates = re.findall(r"publisher (?:aggregated )?stats: ([\d,]+) msgs/sec", output)
    problem = ""
    if failed or not rates or re.search(r"(?i)\berror\b|timeout", output.replace("--timeout", "")):
        problem = "the bench failed: " + (output.strip().splitlines() or ["no output"])[-1][:200]
    elif state.get("messages") != msgs:
        problem = f"{state.get('messages')} of {msgs} messages are in the stream"
    rate = float((rates or ["0"])[-1].replace(",", ""))
    return Result(rate, (after_cpu - cpu) * 1e6 / msgs, (after_written - written) / msgs, peak, leader, problem)


def run_family(kind, binary, nats, mode, rows, quick, directory):
    """A fresh cluster for one mode; every row of that mode once, after one run that warms up."""
    directory = directory / f"{kind}-{mode}"
    shutil.rmtree(directory, ignore_errors=True)
    results = {}
    with Cluster(kind, binary, 3, directory, sync_always=mode == "always") as cluster:
        cluster.wait_ready()
        create_stream(cluster, nats, mode)
        measure(cluster, nats, Row(mode, "async", 8, 128, 0, 0), 20_000)
        for row in rows:
            results[row] = measure(cluster, nats, row, row.quick if quick else row.msgs)
            if results[row].problem:
                print(f"PROBLEM {kind}, {row.name}: {results[row].problem}", flush=True)
        for i in range(3):
            cluster.kill(i, signal.SIGTERM)
    shutil.rmtree(directory, ignore_errors=True)
    return results


def median(values):
    return statistics.median(values) if values else float("nan")


def spread(values):
    return (max(values) - min(values)) / median(values) / 2 * 100 if len(values) > 1 and median(values) else 0.0


def show(collected, rows, families):
    """The table: medians per row and family, and the ratios."""
    head = f"{'row':36} {'server':12} {'msg/s':>9} {'±%':>4} {'CPU µs/msg':>10} {'B written/msg':>13} {'peak MiB':>8}  {'leader':10}"
    print("\n" + head + "\n" + "-" * len(head))
    for row in rows:
        medians = {}
        for kind in families:
            good = [result for result in collected[kind].get(row, []) if not result.problem]
            if not good:
                print(f"{row.name:36} {kind:12} {'failed':>9}")
                continue
            rates = [result.rate for result in good]
            medians[kind] = (median(rates), median([r.cpu_us for r in good]))
            leaders = ",".join(sorted({result.leader for result in good}))
            print(
                f"{row.name:36} {kind:12} {median(rates):9,.0f} {spread(rates):4.0f} {medians[kind][1]:10.2f} {median([r.written for r in good]):13,.0f}"
                f" {max(r.peak for r in good) / 2**20:8.0f}  {leaders:10}"
            )
        if len(medians) == 2:
            (their_rate, their_cpu), (our_rate, our_cpu) = medians["nats-server"], medians["headwater"]
            print(f"{'':36} {'ratio':12} {our_rate / their_rate:8.2f}x {'':4} {our_cpu / their_cpu if their_cpu else 0:9.2f}x")


def write_csv(path, collected, environment):
    path.mkdir(parents=True, exist_ok=True)
    with open(path / "runs.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["server", "mode", "kind", "clients", "size", "run", "msgs_per_s", "cpu_us_per_msg", "bytes_written_per_msg", "peak_rss_bytes_all_nodes", "leader", "problem"])
        for kind, rows in collected.items():
            for row, results in rows.items():
                for n, r in enumerate(results, 1):
                    writer.writerow([kind, row.mode, row.kind, row.clients, row.size, n, f"{r.rate:.0f}", f"{r.cpu_us:.3f}", f"{r.written:.0f}", r.peak, r.leader, r.problem])
    (path / "environment.txt").write_text("\n".join(environment) + "\n", encoding="utf-8")


def describe(binaries, nats, quick, rounds):
    def first_line(*command):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return (done.stdout.strip().splitlines() or ["unknown"])[0]

    model = next((line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "unknown")
    return [
        f"machine: {os.cpu_count()} cores ({model}), {available_gigabytes()} GiB available, Linux {platform.release()}, load before {os.getloadavg()[0]:.1f}",
        *(f"{kind}: {first_line(binary, '--version')}" for kind, binary in binaries.items()),
        f"client: nats {first_line(nats, '--version')}, all connections to the stream's leader",
        f"{rounds} round{'s' if rounds > 1 else ''}, alternating{', quick: few messages, not for comparison with other runs' if quick else ''}",
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of few messages, under 3 minutes")
    parser.add_argument("--headwater", help="the binary; otherwise HEADWATER_BIN or target/release/headwater")
    parser.add_argument("--csv", type=Path, help="write runs.csv and environment.txt into this folder")
    parser.add_argument("--rounds", type=int, help="rounds; 3 unless --quick")
    parser.add_argument("--rows", default="", help="only rows whose name contains this")
    parser.add_argument("--only", choices=FAMILIES, help="only this server")
    args = parser.parse_args()

    nats = find_nats_cli()
    families = [args.only] if args.only else list(FAMILIES)
    binaries = {"nats-server": find_nats_server} if "nats-server" in families else {}
    binaries = {kind: find() for kind, find in binaries.items()}
    if "headwater" in families:
        binaries["headwater"] = args.headwater or find_headwater(("release",))
    rounds = args.rounds or (1 if args.quick else 3)
    rows = [row for row in ROWS if args.rows in row.name and (row.quick or not args.quick)]
    if not rows:
        sys.exit(f"no row's name contains {args.rows!r}: {'; '.join(row.name for row in ROWS)}")
    environment = describe(binaries, nats, args.quick, rounds)
    print("\n".join(environment))
    for mode, meaning in MODES.items():
        print(f"{mode}: {meaning}")

    touch_memory(max(0, min(2 if args.quick else 8, available_gigabytes() // 3)))
    collected = {kind: {} for kind in families}
    started = time.monotonic()
    directory = Path(tempfile.mkdtemp(prefix="headwater-bench-"))
    try:
        for number in range(rounds):
            for mode in MODES:
                mode_rows = [row for row in rows if row.mode == mode]
                # Who goes first alternates, so that a drift of the machine hits both alike.
                for kind in families if number % 2 == 0 else families[::-1]:
                    if not mode_rows:
                        continue
                    print(f"round {number + 1} of {rounds}: {kind}, {mode}", flush=True)
                    for row, result in run_family(kind, binaries[kind], nats, mode, mode_rows, args.quick, directory).items():
                        collected[kind].setdefault(row, []).append(result)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    show(collected, rows, families)
    print(f"\n{time.monotonic() - started:.0f} s in all")
    if args.csv:
        write_csv(args.csv, collected, environment)
        print(f"written: {args.csv}/runs.csv")
    failed = [result for rows in collected.values() for results in rows.values() for result in results if result.problem]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
