# One way to do each thing. Every target sets up .venv first if it is missing or out of date.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up
JOBS ?= auto

.PHONY: demo test integration lint format bench soak sanitize docs clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "pip>=25.1"
	$(BIN)/python -m pip install --quiet -c constraints.txt --editable . --group dev
	touch $@

TORCHRUN := OMP_NUM_THREADS=1 $(BIN)/torchrun --standalone --nproc-per-node=4

demo: $(STAMP)
	@root=$$(mktemp -d) && trap 'rm -rf "$$root"' EXIT && export NODECACHE_ROOT="$$root/cache" && \
	echo "== 4 ranks, empty cache: one of them compiles" && \
	$(TORCHRUN) examples/stdlib_blend.py --cache empty && \
	echo "== 4 ranks, full cache: nobody does" && \
	$(TORCHRUN) examples/stdlib_blend.py --cache full

test: $(STAMP)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not integration and not soak"

integration: $(STAMP)
	$(BIN)/python -m pytest -m "integration and not soak"

soak: $(STAMP)
	$(BIN)/python -m pytest -m soak --timeout 3600

sanitize: $(STAMP)
	$(BIN)/python tests/sanitize.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

BENCHMARKS := hit lease compile_helper megatron torch_load scale

bench: $(STAMP)
	$(BIN)/python -m compileall -q nodecache # as an installed package is
	@for each in $(BENCHMARKS); do echo "== $$each"; $(BIN)/python benchmarks/$$each.py || exit 1; done

$(VENV)/.docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --group docs
	touch $@

docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
