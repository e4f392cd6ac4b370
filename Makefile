# Every target sets up what it needs in .venv; only Python 3.11+ (with venv and pip) is assumed.
PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help setup tools run check test test-all lint format docs bench dist clean

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/.installed ## Create .venv with everything that development needs

.venv/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Penstock needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": set PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# Debian's Chromium, for the tests of the console: Playwright would load one of its own from elsewhere.
# Promtool comes unpacked, without the server that Debian's package would start.
tools: setup ## Get Chromium and npm (as root on Debian) and promtool for the tests that need them; they are skipped without
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
	|| apt-get install -qq -y --no-install-recommends chromium >/dev/null 2>&1 \
	|| { apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium; } >/dev/null 2>&1 \
	|| echo "There is no Chromium, and none can be installed here: the tests of the console will be skipped."
	@command -v npm >/dev/null \
	|| { apt-get update -qq && apt-get install -qq -y --no-install-recommends npm; } >/dev/null 2>&1 \
	|| echo "There is no npm, and none can be installed here: the test of SQS with the JavaScript SDK will be skipped."
	@command -v promtool >/dev/null || test -x .venv/tools/usr/bin/promtool \
	|| { mkdir -p .venv/tools && cd .venv/tools && { apt-get download -qq prometheus || { apt-get update -qq && apt-get download -qq prometheus; }; } \
		&& dpkg -x prometheus_*.deb . && rm prometheus_*.deb; } >/dev/null 2>&1 \
	|| echo "There is no promtool, and none can be downloaded here: its tests will be skipped."

run: setup ## The whole pipeline: 100,000 events through Spark, queues, archive and report (a minute)
	@$(BIN)/python examples/pipeline.py

QUICK := system/test_clock.py system/test_simulated_disk.py contract filters rules wire stores/journal/test_kestrel_format.py \
	stores/journal/test_format.py stores/text/test_format.py stores/slate/test_format.py
check: setup lint ## Lint, type check, and the quick tests: formats, rules, and the contract in memory (two minutes)
	@$(BIN)/python -m pytest $(QUICK:%=tests/%)
	@$(BIN)/python -m pytest tests/conformance -k 'memory and not http'

# Five processes, as much of it is waiting for Java, disks and other processes; what four of them have to say comes
# at the end. Of simulations, kinds of stores and transports it runs a share, of which tests/simulation/kinds.py,
# tests/conformance/conftest.py and tests/spark/stores.py tell.
RULES := conformance simulation person rules filters
SERVER := http clients console
test: setup tools lint ## Lint, type check, and run the tests (thirteen minutes on two cores)
	@pids=; for part in spark stores "$(RULES)" "$(SERVER)"; do \
		$(BIN)/python -m pytest $$(printf 'tests/%s ' $$part) > .tests-$${part%% *}.log 2>&1 & pids="$$pids $$!"; \
	done; \
	$(BIN)/python -m pytest tests $(patsubst %,--ignore tests/%,spark stores $(RULES) $(SERVER)); failed=$$?; \
	for pid in $$pids; do wait $$pid || failed=1; done; \
	cat .tests-*.log; exit $$failed

test-all: setup tools lint ## The same and every long test (an hour or so: a thousand kills, 100,000 crashes)
	$(BIN)/python -m pytest -m ''

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: setup ## Format the code and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: setup ## Build the documentation site in site/; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

bench: setup ## Measure against the raw limit of this machine and against peers, up to ten minutes a part (PARTS="journal server")
	$(BIN)/python -m benchmarks $(PARTS)

dist: setup ## Build wheel and sdist into dist/, and test both and each extra in clean environments (minutes; PYTHONS=python3.13)
	@$(BIN)/python -m tests.packaging $(PYTHONS)

clean: ## Remove .venv and everything generated
	rm -rf .venv site dist .mypy_cache .pytest_cache .ruff_cache .hypothesis benchmarks/out
