# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
TESTABLE := $(VENV)/.testable
SEED ?= 7

.PHONY: demo demo-ppo test test-fast test-attacks fuzz test-scenes test-postgres test-e2e check format simulate bundle generated bench clean

$(READY): requirements/lock.txt requirements/trainer.txt
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install -qq --disable-pip-version-check torch==2.13.0
	$(PY) -m pip install -qq --disable-pip-version-check --require-hashes -r requirements/lock.txt
	$(PY) -m pip install -qq --disable-pip-version-check -r requirements/trainer.txt
	touch $(READY)

# What the tests use and nothing else does.
$(TESTABLE): $(READY) requirements/test.txt
	$(PY) -m pip install -qq --disable-pip-version-check -r requirements/test.txt
	touch $(TESTABLE)

demo: $(READY)
	$(PY) -m controlplane.demo

# An actor and a critic lose a replica and go on with the same numbers; no control plane.
demo-ppo: $(READY)
	$(PY) -m trainer.workloads.ppo --demo

# Everything a release needs.
test: $(TESTABLE)
	$(PY) scripts/run_tests.py all

test-fast: $(READY)
	$(PY) scripts/run_tests.py fast

# Every hole that was found, replayed; what concerns the backend on both databases.
test-attacks: $(READY)
	$(PY) scripts/run_tests.py attacks && $(PY) scripts/run_tests.py attacks-postgres

# Generated requests for long, on both databases; the short run is part of the attacks.
fuzz: $(TESTABLE)
	$(PY) scripts/fuzz.py

test-scenes: $(READY)
	$(PY) scripts/run_tests.py scenes

test-postgres: $(READY)
	$(PY) scripts/run_tests.py postgres

test-e2e: $(READY)
	$(PY) scripts/run_tests.py e2e

check: $(READY)
	$(PY) scripts/check.py

format: $(READY)
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

simulate: $(READY)
	$(PY) -m controlplane.simulator --seed $(SEED)

generated: $(READY)
	$(PY) -m controlplane.policy.states_doc --write
	$(PY) -m controlplane.protocol.doc --write
	$(PY) -m controlplane.api.openapi --write

bundle:
	cd frontend && npm ci --ignore-scripts && npm run build

bench: $(READY)
	$(PY) -m benchmarks

clean:
	rm -rf var .mypy_cache .ruff_cache .pytest_cache
