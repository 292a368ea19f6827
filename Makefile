# `make up` and `make test` are all that a clone needs; `make help` lists the rest.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# A thread that waits must not spin: the machine is shared with the tests' own engines.
QUIET_THREADS := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE

.PHONY: help up test lint format docs pictures bench bench-peers soak sanitize clean

help:
	@echo "make up      set up .venv, start the engine on the model that this folder's arc.toml names, open the console"
	@echo "make test    set up .venv with everything and run the linters, the type checker and all tests"
	@echo "make lint    the linters and the type checker alone"
	@echo "make format  rewrite the code in the project's format"
	@echo "make bench   how fast this engine is on this machine; prints figures, takes about 20 minutes"
	@echo "make bench-peers  this engine beside others, over HTTP: installs them under build/peers; takes about 2 hours"
	@echo "make soak    many requests against one engine, and what its memory does; takes about 10 minutes"
	@echo "make sanitize  the C++ kernels' tests under the address and undefined-behaviour sanitizers; takes some minutes"
	@echo "make docs    write docs/flags.md and docs/control-messages.md anew from the code"
	@echo "make pictures  take the README's pictures anew, of the console over the carried model; takes about a minute"
	@echo "make clean   remove .venv and everything that was built"

up: $(VENV)/engine.stamp
	@$(BIN)/arc up

test: lint
	$(QUIET_THREADS) $(BIN)/python -m pytest -n 2

lint: $(VENV)/dev.stamp build/types/arc
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --pythonpath $(BIN)/python

format: $(VENV)/dev.stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/engine.stamp
	$(BIN)/python -m arc.engine.flags_doc > docs/flags.md
	$(BIN)/python -m arc.engine.control.messages_doc > docs/control-messages.md

pictures: $(VENV)/dev.stamp
	$(QUIET_THREADS) $(BIN)/python -m tests.console.readme_pictures

bench: $(VENV)/dev.stamp
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m tests.bench
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m tests.bench.spans

bench-peers: $(VENV)/dev.stamp
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m tests.peers

soak: $(VENV)/dev.stamp
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m tests.bench.soak

sanitize: $(VENV)/dev.stamp
	$(QUIET_THREADS) $(BIN)/python -m tests.kernels.cpu.sanitized

clean:
	rm -rf $(VENV) build dist *.egg-info kernels/cpu/_native*.so .pytest_cache .ruff_cache .hypothesis

# The stamps: a target is made again only when a pin or a dependency changed, so that a second run starts at once.

$(VENV)/python.stamp:
	@command -v $(PYTHON) >/dev/null || \
	  { echo "arc needs Python 3.11 or newer, and there is no $(PYTHON): install it, or name one: make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "arc needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) -V): name another: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "$(PYTHON) comes without its venv module; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "setting up $(VENV): the first time, this downloads torch and takes a few minutes"
	$(PYTHON) -m venv $(VENV)
	@touch $@

# Built without isolation, so that the pins hold for the build's own tools too.
$(VENV)/build.stamp: $(VENV)/python.stamp constraints.txt
	$(PIP) setuptools setuptools-scm
	@touch $@

# The C++ kernels are built by the installation, so their sources are a reason for a new one.
NATIVE := $(wildcard kernels/cpu/native/*)

$(VENV)/engine.stamp: $(VENV)/build.stamp pyproject.toml $(NATIVE)
	$(PIP) --no-build-isolation --editable '.[engine]'
	@touch $@

$(VENV)/dev.stamp: $(VENV)/build.stamp pyproject.toml $(NATIVE)
	$(PIP) --no-build-isolation --editable '.[dev]'
	@touch $@ $(VENV)/engine.stamp

# The namespace `arc` as folders, for tools that read paths: the type checker does not run the installed mapping.
build/types/arc:
	mkdir -p $@
	for folder in console engine kernels; do ln -sfn ../../../$$folder $@/$$folder; done
