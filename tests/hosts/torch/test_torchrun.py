"""Runs torchrun on two hosts, which UCX connects."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.job import LIMIT_SECONDS, needs, outputs_of, start_process, wait_until

from ..conftest import TestBeds
from ..network_test_bed import NetworkTestBed

needs("torch")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ucx")]

ROOT = Path(__file__).parents[3]
IN_WORLD = ROOT / "tests" / "distributed" / "in_world"

# The program compares the training of four ranks with the training of one process that has all the data.
STEP = """
import torch
import torch.distributed as dist
if not hasattr(dist.Backend, "PERSEUS"):  # torch before 2.5 does not load the backend by itself
    import perseus_like.torch.distributed
from torch.nn.parallel import DistributedDataParallel
from perseus_like.session import session

dist.init_process_group("perseus")
rank, size = dist.get_rank(), dist.get_world_size()
described = session.core.description()
assert described.startswith("store: 4 ranks, ucx (UCX 1."), described
assert "between 2 hosts" in described, described
assert (session.core.local_rank(), session.core.cross_rank()) == (rank % 2, rank // 2)

def trained(wrap, inputs, targets):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(50, 300), torch.nn.Tanh(), torch.nn.Linear(300, 3)).double()
    wrapped = wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(wrapped(inputs), targets).backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]

generator = torch.Generator().manual_seed(2)
inputs, targets = (torch.randn(8 * size, width, generator=generator).double() for width in (50, 3))
mine = slice(8 * rank, 8 * rank + 8)
for ours, alone in zip(
    trained(DistributedDataParallel, inputs[mine], targets[mine]), trained(lambda model: model, inputs, targets)
):
    torch.testing.assert_close(ours, alone, rtol=0, atol=1e-12)
large = torch.full((1 << 22,), float(rank + 1))
dist.all_reduce(large)
assert large.unique().tolist() == [10.0]
dist.destroy_process_group()
print(f"done {rank}", flush=True)  # one string, because torchrun's Python has no buffer and two ranks share a pipe
"""

LOOP = """
import os, time
import torch
import torch.distributed as dist
if not hasattr(dist.Backend, "PERSEUS"):  # torch before 2.5 does not load the backend by itself
    import perseus_like.torch.distributed
dist.init_process_group("perseus")
tensor = torch.ones(1 << 16)
is_up = False
while True:
    try:
        dist.all_reduce(tensor)
    except RuntimeError as error:
        print(f"raised {dist.get_rank()} {error}", flush=True)
        raise
    tensor.fill_(1)
    if not is_up:
        print(f"up {dist.get_rank()} {os.getpid()}", flush=True)
    is_up = True
"""


def torchrun(
    test_bed: NetworkTestBed, arguments: list[str], folder: Path, **environment: Any
) -> list[subprocess.Popen[str]]:
    """Starts torchrun with two ranks on each host. Each process returns the output of its host's ranks."""
    line = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(len(test_bed.hosts))]
    line += ["--nproc-per-node", "2", "--master-addr", test_bed.address("h1"), "--master-port", "29500"]
    return [
        start_process(test_bed.command(host, [*line, "--node-rank", str(node), *arguments], folder), **environment)
        for node, host in enumerate(test_bed.hosts)
    ]


def test_training_equals_one_process(test_beds: TestBeds, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(textwrap.dedent(STEP))
    processes = torchrun(test_beds(2), ["program.py"], tmp_path)
    outputs = outputs_of(processes)
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    assert sorted(re.findall(r"done (\d)", "".join(outputs))) == ["0", "1", "2", "3"]


def test_the_lines_of_the_readme(test_beds: TestBeds, tmp_path: Path) -> None:
    """A Horovod script runs as it is."""
    (lines,) = re.findall(r"```python\n(import torch\n.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "train.py").write_text(lines)
    processes = torchrun(test_beds(2), ["train.py"], tmp_path)
    outputs = outputs_of(processes)
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    assert sorted(re.findall(r"rank (\d) of 4: loss", "".join(outputs))) == ["0", "1", "2", "3"]


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import numpy as np
import perseus_like.numpy as hvd

hvd.init()
total = hvd.allreduce(np.full(1 << 18, float(hvd.rank())), op=hvd.Sum)
print(f"rank {hvd.rank()} of {hvd.size()}, {hvd.local_rank()} of {hvd.local_size()}: {set(total.tolist())}", flush=True)
"""


def test_ranks_without_torch(test_beds: TestBeds, tmp_path: Path) -> None:
    """Rank 0 listens at the address of MASTER_ADDR only."""
    test_bed = test_beds(2)
    common: dict[str, Any] = {"WORLD_SIZE": "4", "MASTER_ADDR": "h1", "MASTER_PORT": "29500"}
    command = [sys.executable, "-c", WITHOUT_TORCH]
    lines = [test_bed.command(test_bed.hosts[rank // 2], command, tmp_path) for rank in range(4)]
    outputs = outputs_of([start_process(line, RANK=str(rank), **common) for rank, line in enumerate(lines)])
    for rank, output in enumerate(outputs):
        assert f"rank {rank} of 4, {rank % 2} of 2: {{6.0}}\n" in output, outputs
    assert f"ranks meet at {test_bed.address('h1')} port 29501 without a secret" in outputs[0]


def test_collectives_and_messages(test_beds: TestBeds, tmp_path: Path) -> None:
    """The tests of torch.distributed that pass on one host pass on two hosts."""
    files = [str(IN_WORLD / name) for name in ("test_verbs.py", "test_messages.py", "test_errors.py")]
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:tmpdir", "--no-header", "--tb=short"]
    program = ["-m", "pytest", *options, "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), *files]
    processes = torchrun(test_beds(2), program, tmp_path, PERSEUS_IN_WORLD="1")
    outputs = outputs_of(processes)
    assert [process.returncode for process in processes] == [0, 0], "\n".join(text[-6000:] for text in outputs)
    assert len(re.findall(r"\d+ passed", "".join(outputs))) == 4


def test_a_rank_that_is_killed(test_beds: TestBeds, tmp_path: Path) -> None:
    """The ranks of the other host raise an error that names the rank, or end. The job does not hang."""
    (tmp_path / "program.py").write_text(textwrap.dedent(LOOP))
    processes = torchrun(test_beds(2), ["--redirects", "1", "--log-dir", "log", "program.py"], tmp_path)

    def printed() -> str:
        return "".join(file.read_text() for file in tmp_path.glob("log/**/stdout.log"))

    def pids() -> dict[str, str]:
        assert all(process.poll() is None for process in processes), printed()
        return dict(re.findall(r"up (\d) (\d+)\n", printed()))

    wait_until(lambda: len(pids()) == 4, printed)
    up = pids()
    os.kill(int(up["3"]), signal.SIGKILL)
    for rank in ("0", "1"):
        wait_for_end(int(up[rank]))
    outputs = outputs_of(processes)
    assert all(process.returncode != 0 for process in processes)
    for number in (0, 1):
        assert re.search(rf"raised {number} .*rank 3 on h2", printed()) or "rank 3 on h2" in outputs[0], (
            printed(),
            outputs,
        )


def wait_for_end(process: int) -> None:
    """Waits for the end of a process that is not a child of this process."""
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    assert waiting.poll(LIMIT_SECONDS * 1000), f"process {process} is still there"
    os.close(descriptor)
