#!/usr/bin/env python3
"""Runs the conformance cases against one server and writes its transcripts.

    conformance.py --mode single|cluster --servers HOST:PORT[,HOST:PORT,…] --out FILE.json [--only PREFIX]

`run` starts the servers, calls this for each of them, and compares.
"""

import argparse
import json
import sys
import time

import cases  # noqa: F401
from harness import CASES, Transcript


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=("single", "cluster"), required=True)
    parser.add_argument("--servers", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--only", default="", help="only cases whose name starts with this")
    parser.add_argument("--print", action="store_true", help="print the transcripts as they come")
    args = parser.parse_args()

    addresses = []
    for server in args.servers.split(","):
        host, port = server.rsplit(":", 1)
        addresses.append((host, int(port)))
    transcripts, seconds = {}, {}
    for name, modes, function in CASES:
        if args.mode not in modes or not name.startswith(args.only):
            continue
        started = time.monotonic()
        transcripts[f"{args.mode}: {name}"] = Transcript(name, addresses, args.mode).run(function)
        seconds[name] = round(time.monotonic() - started, 2)
        if args.print:
            print(f"--- {name} ({seconds[name]} s)", *transcripts[f"{args.mode}: {name}"], sep="\n", flush=True)
    with open(args.out, "w", encoding="utf-8") as out:
        json.dump({"transcripts": transcripts, "seconds": seconds}, out, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
