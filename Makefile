# `make demo` and `make test` are the two commands of the README; CONTRIBUTING has a table of all. Each makes .venv, installs what it
# needs and runs; a second run only does what changed. What only some changes and releases need is in tests/targets.mk and
# release/targets.mk, under the same names.

.DELETE_ON_ERROR:
.SUFFIXES:
.NOTPARALLEL:
SHELL := bash
.SHELLFLAGS := -o pipefail -c
MAKEFLAGS += --no-builtin-rules --no-print-directory

PYTHON ?= python3

# Exactly this torch: what pip finds for a looser pin may be another build, or a gigabyte of CUDA.
LOCKED_TORCH := torch==2.13.0
LOCKED_TENSORFLOW := tensorflow-cpu==2.21.0
# `make test TORCH=2.1.2`, or any other requirement for pip: TORCH=torch==2.13.0+cu130.
override TORCH := $(if $(TORCH),$(if $(findstring torch,$(TORCH)),$(TORCH),torch==$(TORCH)),$(LOCKED_TORCH))
# The last Python (3.x) that the locked releases have wheels for. What is newer does without, and its tests are skipped.
LAST_PYTHON_tensorflow := 13
LAST_PYTHON_tensorflow-2.15 := 11
LAST_PYTHON_mxnet := 12
LAST_PYTHON_torch-clients := 13
python_minor := $(shell $(PYTHON) -c 'import sys; print(sys.version_info.minor)' 2>/dev/null)
# $(call too_new_for,NAMES): those that have no wheels for this Python.
too_new_for = $(foreach name,$(1),$(shell test 0$(python_minor) -le $(or $(LAST_PYTHON_$(name)),99) || echo $(name)))
TENSORFLOW ?= $(if $(call too_new_for,tensorflow),,$(LOCKED_TENSORFLOW))
# torch before 2.3 was built for the first generation of NumPy.
USES_NUMPY_1 := $(filter torch==2.1 torch==2.1.% torch==2.2 torch==2.2.%,$(TORCH))
NUMPY := $(if $(USES_NUMPY_1),numpy<2,numpy)
ML_DTYPES := $(if $(USES_NUMPY_1),ml_dtypes<0.6,ml_dtypes)

# Another torch has an environment of its own: .venv-torch-2.1.2.
VENV := $(if $(filter $(LOCKED_TORCH),$(TORCH)),.venv,.venv-$(subst ==,-,$(TORCH)))
BIN := $(CURDIR)/$(VENV)/bin
STAMPS := $(VENV)/stamps

BUILD_NEEDS := setuptools>=77 setuptools-scm>=8 wheel cmake ninja pybind11>=2.13
RUN_NEEDS := $(TORCH) $(NUMPY) cloudpickle scikit-learn tqdm mpich
TEST_NEEDS := pytest>=8 pytest-timeout pytest-xdist hypothesis mpi4py>=4.1 pyyaml $(ML_DTYPES) tabulate matplotlib pyelftools \
	$(TENSORFLOW) $(if $(TENSORFLOW),keras)
BENCH_NEEDS := tabulate matplotlib mpi4py>=4.1 $(TENSORFLOW)
FUZZ_NEEDS := atheris
DOCS_NEEDS := mkdocs-material==9.* mkdocstrings[python]==1.* ruff==0.17.*
LINT_NEEDS := ruff==0.17.* mypy==2.* basedpyright==1.* clang-format==23.* clang-tidy==23.* types-PyYAML

export PIP_DISABLE_PIP_VERSION_CHECK := 1
PIP := $(BIN)/python -m pip --quiet
# pip of .venv installs into other environments, too: $(call pip_in,.venv-mxnet)
pip_in = $(BIN)/python -m pip --quiet --python $(1)/bin/python
# $(call timed,NAME,COMMANDS): says that COMMANDS begin, and how long they took. A long phase shows each step, too.
timed = @echo "==> $(1)"; begin=$$SECONDS; { $(2); } && echo "==> $(1): $$((SECONDS - begin)) s"
# $(call installing,PIP): pip without --quiet, which says for each package that it is collected or installed.
installing = $(filter-out --quiet,$(1)) install --progress-bar off
SHOWN = | sed -un 's/^\(Collecting [^ ;]*\).*/    \1/p; s/^\(Installing\) .*/    \1 all of them/p'
# The exact versions and their hashes, renewed by `make lock`: $(call locked,NAME)
locked = --require-hashes --constraint locks/$(1).txt
# Releases chosen on make's command line, and what these need, have no hashes in locks/.
CHOSEN := $(filter-out $(LOCKED_TORCH) $(LOCKED_TENSORFLOW) numpy ml_dtypes,$(TORCH) $(TENSORFLOW) $(NUMPY) $(ML_DTYPES))
quoted = $(foreach need,$(1),'$(need)')
# locks/main.txt without these packages, so that pip keeps the chosen releases: an entry begins a line, its hashes are indented.
names_of = $(shell printf '%s\n' $(call quoted,$(1)) | sed 's/[=<>~![].*//; s/_/-/g')
unchosen = $(VENV)/lock.txt
write_unchosen = awk -F'==' -v chosen=' $(call names_of,$(CHOSEN)) ' \
	'/^[^ ]/ { kept = !index(chosen, " " $$1 " ") } kept' locks/main.txt > $(unchosen)
# $(call install,NEEDS) into .venv
define install
	$(if $(filter $(CHOSEN),$(1)),$(PIP) install $(call quoted,$(filter $(CHOSEN),$(1))))
	@$(write_unchosen)
	$(call timed,$(VENV): $(firstword $(1)) and others,$(call installing,$(PIP)) --require-hashes \
		--constraint $(unchosen) $(call quoted,$(filter-out $(CHOSEN),$(1))) $(SHOWN))
endef

# $(call torch_for_cpus,VENV): installs the release of LOCKED_TORCH for CPUs alone where pip finds its wheel (PIP_FIND_LINKS).
# pip would otherwise prefer the index's wheel, with gigabytes of CUDA, because the index tells its hash in advance.
torch_for_cpus = mkdir -p build && echo '$(LOCKED_TORCH)+cpu --hash=$(TORCH_CPU_HASH)' > build/torch-for-cpus.txt && \
	{ $(call pip_in,$(1)) install --require-hashes --no-deps --requirement build/torch-for-cpus.txt 2>/dev/null || true; }
# The wheel torch-2.13.0+cpu for CPython 3.11 on x86_64, which is in no package index.
TORCH_CPU_HASH := sha256:6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b

SOURCES := setup.py pyproject.toml CMakeLists.txt LICENSE README.md docs/write_docstrings.py $(wildcard cmake/*.cmake) \
	$(shell find csrc perseus_like adapters -type f -not -name '*.pyc' -not -name '*.so')
# Folders too, so that a file taken away makes a new wheel.
FOLDERS := $(shell find csrc perseus_like adapters -type d -not -name __pycache__)
CXX_SOURCES = $(shell find csrc adapters tests/cpp tests/fuzz tests/scale -name '*.cc' -o -name '*.h')

.PHONY: all build dev demo test test-all bench lint format docs clean
all: build

# --- the virtual environment -----------------------------------------------------------------------------------------

# pip comes first: only newer releases than a new environment has take hashes from a constraints file.
$(STAMPS)/venv: Makefile locks/pip.txt locks/main.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "$(PYTHON) is Python %d.%d; perseus_like needs 3.10 or later: make PYTHON=python3.11" % sys.version_info[:2])'
	@$(PYTHON) -c 'import ensurepip, os, sys, sysconfig; header = os.path.join(sysconfig.get_path("include"), "Python.h"); sys.exit(not os.path.exists(header) and "there is no " + header)' \
		|| { echo "$(PYTHON) cannot make environments or compile modules; on Debian and Ubuntu: apt install python3-dev python3-venv" >&2; exit 1; }
	$(call timed,$(VENV),$(PYTHON) -m venv $(VENV) && mkdir -p $(STAMPS) && \
		$(PIP) install --require-hashes --requirement locks/pip.txt)
	$(call install,$(BUILD_NEEDS))
	@touch $@

$(STAMPS)/run: $(STAMPS)/venv
	$(if $(filter $(LOCKED_TORCH),$(TORCH)),$(call torch_for_cpus,$(VENV)))
	$(call install,$(RUN_NEEDS))
	@touch $@

$(STAMPS)/test: $(STAMPS)/run
	$(call install,$(TEST_NEEDS))
	@touch $@

$(STAMPS)/bench: $(STAMPS)/run
	$(call install,$(BENCH_NEEDS))
	@touch $@

$(STAMPS)/lint: $(STAMPS)/test
	$(call install,$(LINT_NEEDS))
	@touch $@

# --- the package, installed from a wheel as a user has it ------------------------------------------------------------

BUILT_HERE = PERSEUS_BUILD_FOLDER=build/core CMAKE_ARGS="-DPERSEUS_WERROR=ON $$CMAKE_ARGS"
# pip would hide the compiler's progress, so the core is compiled before pip packs it.
define build_core
	$(call timed,the core,$(BUILT_HERE) $(BIN)/python setup.py --quiet build_ext --build-lib build/modules)
endef
define build_wheel
	rm -rf build/wheel
	$(call timed,the wheel,$(BUILT_HERE) $(PIP) wheel --no-deps --no-build-isolation --wheel-dir build/wheel .)
endef

$(STAMPS)/package: $(SOURCES) $(FOLDERS) $(STAMPS)/venv
	$(if $(WHEEL_IS_BUILT),,$(build_core))
	$(if $(WHEEL_IS_BUILT),,$(build_wheel))
	$(PIP) install --force-reinstall --no-deps build/wheel/*.whl
	@touch $@

build: $(STAMPS)/package

# An editable install with everything for tests. A change of Python code takes effect at once; `make dev` again compiles what
# has changed. `make build` and `make test` put the wheel in its place.
dev: $(STAMPS)/test
	$(build_core)
	$(call timed,the editable install,$(BUILT_HERE) $(PIP) install --no-deps --no-build-isolation --editable .)
	@rm -f $(STAMPS)/package

demo: $(STAMPS)/run $(STAMPS)/package
	$(BIN)/perseusrun -np 2 -m examples.pytorch.digits_compared

# Worth something only on a machine that does nothing else meanwhile. `make bench BENCH_ARGS=--quick` sees if it runs.
bench: $(STAMPS)/bench $(STAMPS)/package
	$(BIN)/python -m benchmarks.allreduce $(BENCH_ARGS)
	$(BIN)/python -m benchmarks.allreduce -np 4 --ours-only --sizes 32 $(BENCH_ARGS)
	$(BIN)/python -m benchmarks.many_tensors $(BENCH_ARGS)
	$(BIN)/python -m benchmarks.training_step $(BENCH_ARGS)
	$(BIN)/python -m benchmarks.tensorflow_step $(BENCH_ARGS)
	$(BIN)/python -m benchmarks.tensorflow_step --eager --seconds 3 $(BENCH_ARGS)
	$(BIN)/python -m benchmarks.idle $(BENCH_ARGS)
	$(BIN)/perseusrun -np 2 $(BIN)/python -m benchmarks.group_calls --here $(BENCH_ARGS)
	$(BIN)/python -m benchmarks.report

# --- tests -----------------------------------------------------------------------------------------------------------

# Ends with pytest's own closing line, also after a C++ test failed.
test: $(if $(filter $(LOCKED_TORCH),$(TORCH)),quick-tests,torch-tests)

# pip works on one processor, so it installs what pytest needs while the C++ tests are compiled and run.
quick-tests: $(STAMPS)/package
	@$(MAKE) quick-environments $(STAMPS)/test & installing=$$!; \
		$(MAKE) cpp-tests GTEST_ARGS='--gtest_filter=-$(SLOW_CPP_TESTS)'; cpp=$$?; \
		wait $$installing || exit; $(MAKE) pytest && exit $$cpp

# Also the tests marked as slow, in all environments: hours. Some need root, and are skipped otherwise.
test-all: export PYTEST_SECONDS = 20300
test-all: environments $(STAMPS)/lint
	@$(MAKE) cpp-tests; cpp=$$?; $(MAKE) pytest PYTEST_ARGS='-m "slow or not slow" -o session_timeout=20000 $(PYTEST_ARGS)' && exit $$cpp

# --- style -----------------------------------------------------------------------------------------------------------

# `make -k lint` goes on after a finding.
lint: lint-python lint-cxx lint-types lint-tidy

format: $(STAMPS)/lint
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_SOURCES)

# The site in build/site. A broken link or a reference to something that does not exist fails.
docs: $(STAMPS)/run $(STAMPS)/package
	$(call install,$(DOCS_NEEDS))
	rm -rf build/documented && $(BIN)/python -m zipfile --extract build/wheel/*.whl build/documented
	$(BIN)/python docs/site/stage.py build/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -f docs/site/mkdocs.yml

clean:
	rm -rf build dist $(VENV) .venv-* *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis perseus_like/_core*.so

include tests/targets.mk release/targets.mk
