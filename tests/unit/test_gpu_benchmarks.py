"""The benchmarks for GPUs compute the right numbers from what they measure."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.job import needs, run_to_end

ROOT = Path(__file__).parents[2]

needs("torch")


@pytest.fixture(autouse=True)
def benchmarks_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks/.."))


def test_the_time_of_a_call_is_that_of_all_its_launches() -> None:
    from benchmarks.gpu import microseconds_per_call

    events = [
        SimpleNamespace(key="perseus_pack_float32_float32", count=30, device_time_total=900.0),
        SimpleNamespace(key="Memcpy DtoD", count=10, device_time_total=70.0),
    ]
    assert microseconds_per_call(events, "perseus_pack", 10) == 90.0
    assert microseconds_per_call(events, "memcpy", 10) == 7.0
    assert microseconds_per_call(events, "perseus_unpack", 10) == 0.0


def test_ranks_that_share_a_gpu() -> None:
    from benchmarks.gpu import sharing

    assert sharing(["a", "b", "c"]) == []
    assert sharing(["a", "b", "a", "b", "c"]) == [[0, 2], [1, 3]]


def test_the_overlap_of_kernels() -> None:
    from benchmarks.gpu import kernels_of, overlap

    def kernel(name: str, begin: float, duration: float) -> dict[str, object]:
        return {"cat": "kernel", "name": name, "ts": begin, "dur": duration}

    events = [kernel("ncclDevKernel_AllReduce", 10, 10), kernel("gemm", 0, 15), kernel("gemm", 12, 3)]
    events += [kernel("perseus_pack_float32_float32", 15, 5), {"cat": "cpu_op", "name": "gemm", "ts": 15, "dur": 5}]
    nccl, compute = kernels_of({"traceEvents": events})
    assert nccl == [(10, 20)]
    assert overlap(nccl, compute) == 1.0, "all of backward that runs after NCCL has begun"
    assert overlap([(10, 20), (30, 40)], [(0, 15), (25, 35), (36, 60)]) == 14 / 20
    assert overlap([(10, 20), (30, 40)], [(0, 10), (20, 30)]) == 0.0
    assert overlap(nccl, []) == overlap([], compute) == 0.0


def test_packing_begins_with_a_tensor_of_odd_size() -> None:
    """Without padding, all tensors after it would be packed byte by byte."""
    from benchmarks.gpu import shapes_to_pack
    from benchmarks.harness import resnet_shapes

    shapes = shapes_to_pack()
    assert shapes[0] == (1,)
    assert sorted(shapes) == sorted(resnet_shapes())


def test_each_step_of_the_first_hour_can_fail() -> None:
    from benchmarks.fifteen_minutes import gpu_steps

    listed = gpu_steps(small=False)
    assert [step.name for step in listed][:3] == ["control", "size_1", "size_2"]
    for step in listed:
        assert step.check(1, ""), step.name
    # The output of a step with a place for its number, a number that is good enough, and one that is not.
    outputs = {
        "packing": ("perseus_pack: 9 us for 3 tensors, {}% of a copy's bandwidth", 90, 70),
        "lost_rank": ("ERROR after {:.2f} s: rank 1 has ended", 0.4, 9.0),
        "overlap": ("OVERLAP {:.2f} of what 8 kernels of NCCL allow", 0.8, 0.1),
        "hooks": ("hooks add 90 us of the host to backward, torch's DDP 600: {:.2f} of its time", 0.15, 1.5),
        "collectives": ("ours of 1 float is queued in {:.2f} of torch's time", 1.01, 1.6),
        "memcheck": ("========= ERROR SUMMARY: {} errors", 0, 2),
        "racecheck": ("========= RACECHECK SUMMARY: {0} hazards displayed ({0} errors, 0 warnings)", 0, 2),
        "transformer": ("transformer: ours takes {:.2f} of the host's time of torch's DDP", 0.75, 1.25),
        "resnet50": ("ours in torch's time: {:.3f}", 0.9, 1.1),
    }
    checks = {step.name: step.check for step in listed}
    for name, (output, good, bad) in outputs.items():
        assert checks[name](0, output.format(bad)), name
        assert not checks[name](0, output.format(good)), name


def test_without_a_gpu_the_steps_say_so(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    command = [sys.executable, "-m", "benchmarks.fifteen_minutes", "--only", "kernels", "--out", str(tmp_path)]
    done = run_to_end(command, ROOT)
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("FAIL  kernels: exit status"), done.stdout
    assert "torch sees no GPU here" in (tmp_path / "log.txt").read_text()
