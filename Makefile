# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
TESTABLE := $(VENV)/.testable
SEED ?= 7

.PHONY: demo demo-ppo test test-fast test-attacks fuzz test-scenes test-slurm test-alerts test-postgres test-e2e test-matrix test-release check format simulate bundle generated docs lock images compose-drill bench gpu-check clean

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

# What the tests use and nothing else does; the site is built in one of them.
$(TESTABLE): $(READY) requirements/test.txt requirements/docs.txt
	$(INSTALL) -r requirements/test.txt -r requirements/docs.txt
	touch $(TESTABLE)

demo: $(READY)
	$(PY) -m controlplane.demo

# An actor and a critic lose a replica and go on with the same numbers; no control plane.
demo-ppo: $(READY)
	$(PY) -m trainer.workloads.ppo --demo

# Everything a release needs. Debian's packages redis-server, postgresql, chromium, prometheus
# and nginx-light are used where they are installed (.ci/run installs them); what needs one that is not is skipped, saying so.
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

# Guest mode on a real Slurm of Debian's packages (docs/slurm.md), as root; skipped, saying so, where it is not installed.
test-slurm: $(READY)
	$(PY) scripts/run_tests.py slurm

# Every shipped alert, fired and resolved by a real fault under Debian's Prometheus.
test-alerts: $(READY)
	$(PY) scripts/run_tests.py alerts

# All of the backend's tests on PostgreSQL; `make test` runs there what a database decides.
test-postgres: $(READY)
	$(PY) scripts/run_tests.py whole-postgres

test-e2e: $(READY)
	$(PY) scripts/run_tests.py e2e

# Every layout that Megatron-core runs on gloo; `make test` runs one row for each field, family and type.
test-matrix: $(READY)
	HOLDFAST_TEST_MATRIX=1 $(PY) -m pytest -q -rs tests/integration/trainer/test_layouts.py

# Before a release, beside `make test`: the whole matrix of layouts, a storage of checkpoints that stands still
# under a real job (as root), a recovery that the job itself proves at its end, more failures, heartbeats, orders
# and seeds of the simulations, more worlds that are decided with part of the fleet, and each
# bound of each parameter of the API, a fleet of real agents with faults.
test-release: test-matrix
	HOLDFAST_TEST_RELEASE=1 $(PY) -m pytest -q -rs tests/integration/bench/test_fleet.py tests/integration/backend/test_two_sentinels.py tests/scenes/test_storage_stall.py tests/scenes/test_recomputed_step.py tests/scenes/test_urgent_job.py tests/scenes/test_spot_notice.py tests/scenes/test_quotas.py tests/properties/policy/test_elsewhere.py tests/properties/policy/test_narrowing.py tests/properties/policy/test_preemption.py tests/simulation/test_departures.py tests/simulation/test_effective.py tests/simulation/test_heartbeats.py tests/simulation/test_leaps.py tests/simulation/test_ledger.py tests/simulation/test_mixed.py tests/simulation/test_people.py tests/simulation/test_relief.py tests/simulation/test_rollout.py tests/simulation/test_seeds.py tests/simulation/test_stills.py tests/attacks/api/test_v14_fuzz.py

check: $(READY)
	$(PY) scripts/check.py

format: $(READY)
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

simulate: $(READY)
	$(PY) -m controlplane.simulator --seed $(SEED)

generated: $(READY)
	$(PY) -m controlplane.policy.states_doc --write
	$(PY) -m controlplane.policy.signals_doc --write
	$(PY) -m controlplane.policy.readings_doc --write
	$(PY) -m controlplane.policy.policy_doc --write
	$(PY) -m controlplane.protocol.doc --write
	$(PY) -m controlplane.protocol.spec_schema --write
	$(PY) -m controlplane.api.openapi --write
	$(PY) -m controlplane.jobs.maturity --write

# A site of docs/ in var/docs; a link that leads nowhere fails it.
docs: $(TESTABLE)
	$(PY) -m sphinx --builder html --nitpicky --fail-on-warning --keep-going --quiet docs var/docs

# What only a GPU can show (docs/gpu.md), with the Python that is there and without network;
# WHEELS=folder holds wheels of what that Python lacks.
gpu-check:
	$(PYTHON) -m benchmarks.gpu $(if $(WHEELS),--wheels $(WHEELS))

bundle:
	cd frontend && npm ci --ignore-scripts && npm run build

# After a change of pyproject.toml; needs a package index.
lock: $(TESTABLE)
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(PY) scripts/lock.py

# The digests of the base images, written where the tags are; needs their registry (REGISTRY=URL: a mirror).
images: $(READY)
	$(PY) scripts/pin_images.py $(if $(REGISTRY),--registry $(REGISTRY)) $(if $(IMAGES_ROOT),--root $(IMAGES_ROOT))

# The pages about containers followed as written, to a job that outlives a killed rank: needs an engine with the
# compose plug-in, root, and a registry. STAND_INS=1 makes the base images of Debian's packages; WHEELS=folder.
compose-drill: $(READY)
	$(PY) -m scripts.compose_drill $(if $(STAND_INS),--stand-ins) $(if $(WHEELS),--wheels $(WHEELS))

bench: $(READY)
	$(PY) -m benchmarks

clean:
	rm -rf var .mypy_cache .ruff_cache .pytest_cache
