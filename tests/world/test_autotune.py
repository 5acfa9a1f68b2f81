"""Checks that results stay correct while autotuning changes settings, and that the search ends."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from .conftest import Ranks

TRAINING = """
hvd.init()
shapes = [7, 500, 3000, 40_000, 300_000, 2]
expected = [sum(np.random.default_rng([i, r]).standard_normal(n).astype(np.float32).astype(np.float64)
                for r in range(hvd.size())) for i, n in enumerate(shapes)]
tensors = [np.random.default_rng([i, hvd.rank()]).standard_normal(n).astype(np.float32) for i, n in enumerate(shapes)]
for step in range(STEPS):
    handles = [hvd.allreduce_async(tensor, op=hvd.Sum, name=f"gradient {i}") for i, tensor in enumerate(tensors)]
    for handle, right in zip(handles, expected):
        assert np.abs(hvd.synchronize(handle) - right).max() < 1e-4
    gathered = hvd.allgather(np.full((hvd.rank() + 1, 3000), step), name="g")
    assert gathered.shape == (hvd.size() * (hvd.size() + 1) // 2, 3000) and (gathered == step).all()
"""


def rows_of(log: Path) -> list[dict[str, str]]:
    with log.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("size", [2, 3])
def test_the_search_ends_and_results_are_correct(ranks: Ranks, size: int, tmp_path: Path) -> None:
    log = tmp_path / "tune.csv"
    world = ranks(
        size,
        TRAINING.replace("STEPS", "250"),
        HOROVOD_AUTOTUNE="1",
        HOROVOD_AUTOTUNE_LOG=str(log),
        PERSEUS_AUTOTUNE_STEPS_PER_SAMPLE="2",
        PERSEUS_AUTOTUNE_WARMUP_SAMPLES="1",
    )
    assert world.code == 0, world.stdout + world.stderr
    rows = rows_of(log)
    assert rows[0]["what"] == "warmup"
    assert rows[-1]["what"] == "kept"
    messages = [line for line in world.stderr.splitlines() if "autotuning" in line]
    assert len(messages) == 2, world.stderr
    assert re.search(
        r"rank 0\] info: autotuning tries fusion_threshold_bytes \d+ \(now\), 262144, .*"
        r" at most \d+ samples of 2 steps",
        messages[0],
    )
    assert "autotuning has ended and keeps fusion_threshold_bytes" in messages[1]
    for value in ("fusion_threshold_bytes", "batching_delay_us", "chunk_bytes"):
        tried = {row[value] for row in rows}
        assert len(tried) >= 4, value
        assert rows[-1][value] in tried
    kept = {tuple(row.values())[1:4] for row in rows if row["what"] == "kept"}
    default = tuple(rows[0].values())[1:4]
    # The kept values are the default, or were faster than the default in a comparison.
    compared = {tuple(row.values())[1:4] for row in rows if row["what"] == "comparison"}
    assert kept == {default} or kept <= compared
    if compared:
        assert default in compared


def test_a_job_that_is_too_short_logs_this(ranks: Ranks) -> None:
    world = ranks(2, TRAINING.replace("STEPS", "20"), HOROVOD_AUTOTUNE="1", PERSEUS_AUTOTUNE_STEPS_PER_SAMPLE="2")
    assert world.code == 0, world.stdout + world.stderr
    assert re.search(
        r"rank 0\] info: autotuning has not ended: the job was too short, with \d+ of at most \d+ samples. "
        r"Train for \d+ steps or more, or set PERSEUS_AUTOTUNE_STEPS_PER_SAMPLE to less than 2",
        world.stderr,
    )
    quiet = ranks(2, TRAINING.replace("STEPS", "20"), HOROVOD_AUTOTUNE="1", PERSEUS_LOG_LEVEL="off")
    assert "autotuning" not in quiet.stderr


def test_settings_of_the_user_are_not_changed(ranks: Ranks, tmp_path: Path) -> None:
    log = tmp_path / "tune.csv"
    program = TRAINING.replace("STEPS", "100") + "\nreport('done')"
    world = ranks(
        2,
        program,
        HOROVOD_AUTOTUNE="1",
        HOROVOD_AUTOTUNE_LOG=str(log),
        PERSEUS_AUTOTUNE_STEPS_PER_SAMPLE="1",
        PERSEUS_FUSION_THRESHOLD="1000000",
        PERSEUS_CHUNK_BYTES="65536",
    )
    assert world.reports_of(0).strip() == world.reports_of(1).strip() == "done"
    rows = rows_of(log)
    assert {row["fusion_threshold_bytes"] for row in rows} == {"1000000"}
    assert {row["chunk_bytes"] for row in rows} == {"65536"}
    assert len({row["batching_delay_us"] for row in rows}) == 4
    assert rows[-1]["what"] == "kept"
