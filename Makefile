# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
TESTABLE := $(VENV)/.testable
SEED ?= 7

.PHONY: demo demo-ppo test test-fast test-attacks fuzz test-scenes test-postgres test-e2e check format simulate bundle generated lock images bench clean

# Each file is complete, so nothing that it does not name comes along (scripts/lock.py).
INSTALL := $(PY) -m pip install -qq --disable-pip-version-check --require-hashes --no-deps
# torch's CPU build where pip finds it (it is not on PyPI: TORCH_INDEX=https://download.pytorch.org/whl/cpu),
# else PyPI's, with the CUDA libraries it needs. TORCH=cuda takes the latter at once.
TORCH ?= cpu
TORCH_INDEX ?=
TORCH_CPU := $(INSTALL) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -r requirements/torch-cpu.txt
TORCH_CUDA := $(INSTALL) -r requirements/torch.txt -r requirements/cuda.txt

$(READY): requirements/lock.txt requirements/torch-cpu.txt requirements/torch.txt requirements/cuda.txt
	$(PYTHON) -m venv $(VENV)
	if [ "$(TORCH)" != cpu ] || ! $(TORCH_CPU); then $(TORCH_CUDA); fi
	$(INSTALL) -r requirements/lock.txt
	$(PY) -m pip check
	touch $(READY)

# What the tests use and nothing else does.
$(TESTABLE): $(READY) requirements/test.txt
	$(INSTALL) -r requirements/test.txt
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

# After a change of pyproject.toml; needs a package index.
lock: $(TESTABLE)
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(PY) scripts/lock.py

# The digests of the base images, written where the tags are; needs their registry.
images: $(READY)
	$(PY) scripts/pin_images.py

bench: $(READY)
	$(PY) -m benchmarks

clean:
	rm -rf var .mypy_cache .ruff_cache .pytest_cache
