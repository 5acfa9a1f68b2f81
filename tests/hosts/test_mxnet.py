"""Checks MXNet's batch normalization over the ranks of one host in a job on several hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.job import python_of, run_to_end, succeeded

from .conftest import TestBeds

PROGRAM = """
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

import perseus_like.mxnet as hvd

hvd.init()
rank, size, host, within = hvd.rank(), hvd.size(), hvd.cross_rank(), hvd.local_size()
random = np.random.RandomState(7)
whole, by_result = (random.randn(size * 3, 5, 4, 4).astype("float32") for _ in range(2))


def run(layer, rows):
    layer.initialize()
    values = mx.nd.array(whole[rows])
    values.attach_grad()
    with autograd.record():
        result = layer(values)
    result.backward(mx.nd.array(by_result[rows]))
    return result.asnumpy(), values.grad.asnumpy(), layer.running_mean.data().asnumpy()


for scope, first, ranks in ((0, rank - hvd.local_rank(), within), (1, 0, size)):
    mine = run(mx.gluon.contrib.nn.PerseusSyncBatchNorm(comm_scope=scope, in_channels=5), slice(rank * 3, rank * 3 + 3))
    theirs = run(gluon.nn.BatchNorm(in_channels=5), slice(first * 3, (first + ranks) * 3))
    rows = slice((rank - first) * 3, (rank - first) * 3 + 3)
    for one, other in zip(mine, (theirs[0][rows], theirs[1][rows], theirs[2])):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
print("results are right on host", host, flush=True)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("ucx")
def test_batch_normalization_over_the_ranks_of_a_host(test_beds: TestBeds, tmp_path: Path) -> None:
    python = python_of("mxnet")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    test_bed = test_beds(2)
    line = test_bed.perseusrun(dict(zip(test_bed.hosts, [2, 2], strict=True)))
    done = succeeded(run_to_end([*line, python, program], tmp_path))
    assert [done.stdout.count(f"results are right on host {host}") for host in range(2)] == [2, 2]
