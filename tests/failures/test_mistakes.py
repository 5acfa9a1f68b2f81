"""Checks that a caller's own mistake raises an error on that rank only, which says what to do."""

import sys
from typing import Any

import pytest

from tests.job import run_to_end

MISTAKES = {
    "root": ("hvd.broadcast(np.ones(2), 2)", "root"),
    "negative_root": ("hvd.broadcast(np.ones(2), -1)", "root"),
    "split_count": ("hvd.alltoall(np.ones(4), splits=[1, 1, 2])", "splits"),
    "split_sum": ("hvd.alltoall(np.ones(4), splits=[4, 1])", "rows"),
    "split_sign": ("hvd.alltoall(np.ones(4), splits=[-1, 1])", "negative"),
    "rows": ("hvd.alltoall(np.ones(3))", "3 rows"),
    "dtype": ("hvd.allreduce(np.ones(2, np.datetime64))", "datetime64"),
    "text": ("hvd.allreduce(np.array(['a']))", "<U1"),
    "objects": ("hvd.allgather(np.array([None]))", "object"),
    "set": ("hvd.allreduce(np.ones(2), process_set=hvd.ProcessSet([0, 1]))", "registered"),
    "outside": ("hvd.add_process_set([0, 2])", "2"),
    "scalar": ("hvd.allgather(np.float32(1))", "dimension 0"),
    "op": ("hvd.allreduce(np.ones(2), op=42)", "42"),
}


def test_a_mistake_raises_a_value_error_on_one_rank(run: Any) -> None:
    calls = "".join(f"    report({name}=outcome_of(lambda: {call}))\n" for name, (call, _) in MISTAKES.items())
    world = run(2, "start()\nif rank == 1:\n" + calls + "still_works()\nhvd.allreduce(np.ones(3))\n").succeeded()
    facts = world.facts_of(1)
    for name, (_, word) in MISTAKES.items():
        assert "ValueError" in facts[name]["kinds"], (name, facts[name])
        assert "HorovodInternalError" not in facts[name]["kinds"], (name, facts[name])
        assert word in facts[name]["text"], (name, facts[name])


@pytest.mark.parametrize(
    ("framework", "extra"), [("torch", "torch"), ("tensorflow", "tensorflow"), ("keras", "tensorflow")]
)
def test_a_missing_framework_is_named_with_its_extra(framework: str, extra: str) -> None:
    program = f"import sys; sys.modules['{framework}'] = None; import perseus_like.{framework}"
    done = run_to_end([sys.executable, "-c", program])
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ModuleNotFoundError: perseus_like.{framework} needs ")
    assert last.endswith(f": pip install 'perseus-like[{extra}]'")
