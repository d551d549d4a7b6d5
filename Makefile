# `make demo` and `make test` start from a bare machine with make and Python >= 3.11.
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTHON ?= python

.PHONY: demo test lint test-simulate test-gpu clean

# Made again when the dependencies change; otherwise the existing environment is used as it is.
$(READY): pyproject.toml constraints.txt
	@found=; for p in python3 python3.13 python3.12 python3.11; do \
	  if command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$p; break; fi; \
	done; \
	if [ -z "$$found" ]; then echo "Emmy needs Python 3.11 or newer: install it and run make again" >&2; exit 1; fi; \
	[ -x $(BIN)/python ] || $$found -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[hf,dev]' -c constraints.txt
	@touch $@

demo: $(READY)
	@mkdir -p out
	$(BIN)/python examples/export_rms_linear.py out/rms_linear.pt2
	$(BIN)/emmy saturate out/rms_linear.pt2 --target sm_89 --out out/rms_linear

# One thread a worker: numpy and PyTorch would otherwise start a pool in each of them.  Neighbouring tests stay with one
# worker, since they share compiled programs.
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Every sampled schedule row of every family in the simulator, and every mutant; minutes, and no GPU.
test-simulate: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m simulate -n 2 --dist worksteal tests/simulate

# Uses the active interpreter and installs nothing: PyTorch there must be able to see a GPU.
test-gpu:
	$(PYTHON) -m pytest -m gpu

clean:
	rm -rf $(VENV) out dist build
