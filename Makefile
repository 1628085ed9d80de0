# Headwater: build, run and check. `make help` lists the targets.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CARGO ?= cargo
TOOLS_PATH = $(shell tests/tools/install path)
export CARGO_TERM_COLOR ?= auto

.PHONY: help demo test check sim soak powerloss fuzz bench bench-quick restart fix generate tools

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

demo: ## three nodes, 100 000 messages, two kill -9, one durability change; counts what was lost
	@tests/tools/rust-toolchain
	@echo "building headwater (release); the first build takes about 5 minutes on 2 cores, up to 15 on busy ones"
	@$(CARGO) build --release --locked -q -p headwater
	@$${CARGO_TARGET_DIR:-target}/release/headwater demo

test: ## everything: Rust, cluster, conformance, CLI, API server (see tests/run for the tiers and their budget)
	@tests/run all

check: ## the quick one: Rust only
	@tests/run rust

SEEDS ?= 1000
FIRST ?= 1
sim: ## a simulated cluster under faults: SEEDS=n runs from FIRST=s on; a failure names its seed
	@HEADWATER_SIM_SEEDS=$(SEEDS) HEADWATER_SIM_FIRST=$(FIRST) $(CARGO) test --locked -p headwater raft::sim -- --nocapture

CYCLES ?= 500
SEED ?= 1
soak: ## CYCLES=500 kills and power cuts of real nodes under load, audited; needs root, about 5 s each
	@$(CARGO) build --locked -q -p headwater
	@HEADWATER_BIN=$${CARGO_TARGET_DIR:-target}/debug/headwater HEADWATER_SOAK_CYCLES=$(CYCLES) HEADWATER_SOAK_SEED=$(SEED) \
	  $(CARGO) test --locked -q -p headwater-cluster-tests --test cluster -- --nocapture soak

powerloss: ## what a power cut of three nodes costs, nats-server beside Headwater; needs root, 3 minutes
	@tests/tools/install nats
	@$(CARGO) build --release --locked -q -p headwater
	@PATH="$(TOOLS_PATH):$$PATH"; NATS_SERVER_BIN=$$(command -v nats-server) HEADWATER_BIN=$${CARGO_TARGET_DIR:-target}/release/headwater \
	  $(CARGO) run --locked -q -p headwater-cluster-tests --example powerloss

SECONDS ?= 600
TARGET ?=
fuzz: ## every decoder of disk and network bytes under libFuzzer, SECONDS=600 each, or one: TARGET=name
	@SECONDS_EACH=$(SECONDS) fuzz/run $(TARGET)

bench: ## side by side with nats-server on this machine, about 4 minutes after the build
	@tests/tools/install nats
	@$(CARGO) build --release --locked -q -p headwater
	@PATH="$(TOOLS_PATH):$$PATH" python3 tests/bench/bench.py --headwater $${CARGO_TARGET_DIR:-target}/release/headwater

bench-quick: ## the same in under 3 minutes
	@tests/tools/install nats
	@$(CARGO) build --release --locked -q -p headwater
	@PATH="$(TOOLS_PATH):$$PATH" python3 tests/bench/bench.py --quick --headwater $${CARGO_TARGET_DIR:-target}/release/headwater

GB ?= 1,4,10
SIZE ?= 1024
restart: ## how long three nodes take to serve again with GB=1,4,10 stored in messages of SIZE=1024; needs 3x that on disk
	@tests/tools/install nats
	@$(CARGO) build --release --locked -q -p headwater
	@PATH="$(TOOLS_PATH):$$PATH" python3 tests/bench/restart.py --gigabytes $(GB) --size $(SIZE) --headwater $${CARGO_TARGET_DIR:-target}/release/headwater

fix: ## format and apply what clippy can mend
	@$(CARGO) fmt --all
	@$(CARGO) clippy --workspace --all-targets --fix --allow-dirty --allow-staged

generate: ## write the CRDs from their types
	@$(CARGO) run -q -p headwater-crds --bin crdgen

tools: ## install everything that the tests run against
	@tests/tools/install all
