"""Checks that a bucket stays in private memory if /dev/shm has no room for it, and that no rank dies of SIGBUS."""

import os
import shutil

import pytest
import torch

from perseus_like.torch.compat.core import keeps_identity
from tests.job import Start

PROGRAM = """
import logging
import torch
import torch.distributed as dist
import perseus_like.torch.distributed

logging.basicConfig()
dist.init_process_group("perseus")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1500, 1500), bucket_cap_mb=4)
for _ in range(4):
    model(torch.ones(1, 1500)).sum().backward()
assert model.module.weight.grad[0, 0].item() == 4.0
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_a_bucket_stays_in_private_memory(run_job: Start) -> None:
    if not keeps_identity():
        pytest.skip(f"buckets do not move with torch {torch.__version__}")
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("mounting a small /dev/shm needs root and unshare")
    mount = 'mount -t tmpfs -o size=2m tmpfs /dev/shm && exec "$@"'
    ended = run_job(2, PROGRAM, wrapper=["unshare", "--mount", "sh", "-c", mount, "sh"])
    assert ended.code == 0, ended.stderr
    warnings = [line for line in ended.stderr.splitlines() if "stays in private memory" in line]
    assert len(warnings) == 2, ended.stderr  # one on each rank
    assert all("No space left on device" in line for line in warnings), warnings
