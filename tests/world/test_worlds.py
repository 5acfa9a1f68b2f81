"""Starts worlds and runs the tests of in_world/ on all their ranks."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.by_name import pytest_on_a_rank
from tests.job import needs_keras_on_torch, python_of, run_to_end

IN_WORLD = Path(__file__).parent / "in_world"


# Files of one folder share a world, because starting its ranks (importing torch) takes longer than the tests.
# The order matters: what some tests leave would change what others find.
GROUPS = {
    "numpy": [
        *("numpy/test_verbs.py", "numpy/test_mistakes.py", "numpy/test_random_sequences.py"),
        *("numpy/test_process_sets.py", "numpy/test_adasum.py", "numpy/test_shared.py", "numpy/test_equal_bits.py"),
    ],
    "torch": [
        "torch/test_calls.py",  # first: a DistributedDataParallel hooks optimizers for good
        *("torch/test_verbs.py", "torch/test_functions.py", "torch/test_optimizer.py", "torch/test_equality.py"),
        *("torch/test_training.py", "torch/test_join.py", "torch/test_sync_batch_norm.py", "torch/test_adasum.py"),
        *("torch/test_compression.py", "torch/test_optimizer_steps.py"),
        *("torch/data_parallel/test_gradients.py", "torch/data_parallel/test_use.py", "torch/test_shared.py"),
        *("torch/sharded/test_optimizer.py", "torch/sharded/test_gradients.py"),
        *("torch/sharded/test_mistakes.py", "torch/sharded/test_scaler.py"),
        *("torch/test_touched_gradients.py", "torch/test_asymmetric_ranks.py", "torch/test_examples.py"),
    ],
    "mxnet": [
        *("mxnet/test_verbs.py", "mxnet/test_functions.py", "mxnet/test_training.py", "mxnet/test_kvstore.py"),
        *("mxnet/test_sync_batch_norm.py", "mxnet/test_names.py", "mxnet/test_asymmetric_ranks.py"),
    ],
    "tensorflow": [
        *("tensorflow/test_verbs.py", "tensorflow/test_training.py", "tensorflow/test_graphs.py"),
        *("tensorflow/test_compiled.py", "tensorflow/test_horovod.py", "tensorflow/test_shared.py"),
        *("tensorflow/test_asymmetric_ranks.py", "tensorflow/test_examples.py"),
    ],
    "keras": [
        *("keras/test_training.py", "keras/test_callbacks.py", "keras/test_mistakes.py", "keras/test_elastic.py"),
        *("keras/test_horovod.py", "keras/test_asymmetric_ranks.py", "keras/test_examples.py"),
    ],
}
# For these groups, .venv has no framework. They run in the environment of tests/environments/NAME.txt.
GROUPS["tensorflow-2.15"] = GROUPS["tensorflow"]
GROUPS["keras_on_torch"] = GROUPS["keras_2"] = GROUPS["keras"]
ENVIRONMENTS = {
    "mxnet": "mxnet",
    "tensorflow-2.15": "tensorflow-2.15",
    "keras_2": "tensorflow-2.15",
}
# The Makefile does not install these for every Python.
NEEDS = {"tensorflow": "tensorflow", "keras": "keras", "keras_on_torch": "keras"}
# These groups set the backend of Keras.
BACKENDS = {"keras": "tensorflow", "keras_on_torch": "torch"}
# All files run on 2 ranks. `make test-all` runs them on the other numbers of ranks, too, and those of older releases.
SIZES = {"numpy": (1, 2, 3, 4), "torch": (1, 2, 4), "mxnet": (1, 2, 4), "tensorflow": (2, 4)}
OLDER_RELEASES = {"tensorflow-2.15", "keras_2"}
# Verbs, errors, and equality of ranks: each adapter promises these for any number of ranks.
CONTRACT = {
    "numpy": ["numpy/test_verbs.py", "numpy/test_mistakes.py"],
    "torch": ["torch/test_verbs.py", "torch/test_equality.py"],
    "mxnet": ["mxnet/test_verbs.py"],
    "tensorflow": ["tensorflow/test_verbs.py"],
}
# Four imports of these frameworks take most of the time; NumPy and torch have four ranks in the quick suite.
SLOW_CONTRACTS = {("tensorflow", 4), ("mxnet", 4)}


def worlds() -> Iterator[object]:
    """Yields the group, the number of ranks and the files of each world."""
    for group, files in GROUPS.items():
        for size in SIZES.get(group, (2,)):
            is_slow = size != 2 or group in {*OLDER_RELEASES, "keras_on_torch"}
            yield pytest.param(group, size, files, marks=[pytest.mark.slow] * is_slow, id=f"{group}-{size}")
            if is_slow and group in CONTRACT:
                marks = [pytest.mark.slow] * ((group, size) in SLOW_CONTRACTS)
                yield pytest.param(group, size, CONTRACT[group], marks=marks, id=f"{group}-{size}-contract")


def test_each_file_belongs_to_a_world() -> None:
    listed = {file for files in GROUPS.values() for file in files}
    assert {str(file.relative_to(IN_WORLD)) for file in IN_WORLD.rglob("test_*.py")} == listed


@pytest.mark.first
@pytest.mark.parametrize(("group", "size", "files"), list(worlds()))
def test_on_all_ranks(
    group: str,
    size: int,
    files: list[str],
    tmp_path: Path,
    pytestconfig: pytest.Config,
) -> None:
    if group == "keras_on_torch":
        needs_keras_on_torch()
    if group in NEEDS and importlib.util.find_spec(NEEDS[group]) is None:
        pytest.skip(f"{NEEDS[group]} is not installed: the Makefile omits it if it has no wheels for this Python")
    python = str(python_of(ENVIRONMENTS[group])) if group in ENVIRONMENTS else sys.executable
    in_world = [str(IN_WORLD / file) for file in files]
    command = [
        python,
        "-m",
        "perseus_like.launch",
        "-np",
        str(size),
        python,
        *pytest_on_a_rank(in_world, "-rs", "--tb=short", "-m", pytestconfig.option.markexpr),
    ]
    variables = {"KERAS_BACKEND": BACKENDS[group]} if group in BACKENDS else {}
    world = run_to_end(command, tmp_path, joined=True, PERSEUS_IN_WORLD="1", **variables)
    output = world.stdout[-12000:]
    assert world.returncode == 0, output
    passed = re.findall(r"(\d+) passed", world.stdout)
    assert len(passed) == size, output
    assert len(set(passed)) == 1, output
