# What a release needs: versions, wheels, recipes, and measurements on other machines.

.PHONY: lock wheels wheels-again rehearse test-arm64 test-recipes matrix fifteen-minutes house

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
