"""Runs torchft's manager over ReconfigurableGroup, as torchft's own example does, on one host and on three.

There is a lighthouse, and each replica is one process. Between hosts, UCX connects the replicas.
"""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.job import LIMIT_SECONDS, python_of

from ..conftest import UCX_LIBRARY, TestBeds
from ..network_test_bed import NetworkTestBed

Popen = subprocess.Popen

LIGHTHOUSE = """
import sys
from torchft.coordination import LighthouseServer

server = LighthouseServer(bind="[::]:0", min_replicas=1, join_timeout_ms=1000, heartbeat_timeout_ms=2000)
print(server.address(), flush=True)
sys.stdin.read()
server.shutdown()
"""

REPLICA = """
import hashlib, os, sys
from datetime import timedelta
import torch
from torch import nn
from torch.distributed import TCPStore
from torchft import DistributedDataParallel, Manager, Optimizer
from torchft.checkpointing.pg_transport import PGTransport
from perseus_like.torch.distributed.reconfigurable import ReconfigurableGroup

lighthouse, number = sys.argv[1], int(sys.argv[2])
address = os.environ["ADDRESS"]
store = TCPStore(address, 0, is_master=True, wait_for_workers=False)

def load_state_dict(state):
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])

def state_dict():
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

pg = ReconfigurableGroup(timeout=timedelta(seconds=30))
manager = Manager(
    pg=pg,
    min_replica_size=1,
    load_state_dict=load_state_dict,
    state_dict=state_dict,
    replica_id=f"replica_{number}",
    lighthouse_addr=lighthouse,
    store_addr=address,
    store_port=store.port,
    rank=0,
    world_size=1,
    timeout=timedelta(seconds=30),
    checkpoint_transport=PGTransport(pg, timeout=timedelta(seconds=30), device=torch.device("cpu")),
)
torch.manual_seed(number)  # replicas begin with different weights, which the manager must make equal
model = DistributedDataParallel(manager, nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1)))
optimizer = Optimizer(manager, torch.optim.AdamW(model.parameters(), lr=1e-3))
generator = torch.Generator().manual_seed(os.getpid())
while not os.path.exists("end") or manager.current_step() < int(open("end").read()):
    before = manager.current_step()
    inputs = torch.randn(16, 8, generator=generator)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True)).backward()
    optimizer.step()
    if manager.current_step() > before:
        weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
        line = f"{manager.current_step()} {manager.num_participants()} {hashlib.sha256(weights).hexdigest()}"
        with open(f"steps-{number}", "a") as file:
            file.write(line + "\\n")
manager.shutdown(wait=False)
pg.shutdown()
"""


STORE = """
import sys
from torch.distributed import TCPStore

store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""

INTERFACE = """
import json, sys
from datetime import timedelta
import torch
import torch.distributed as dist
from torch.distributed import HashStore, TCPStore
from torch.distributed import _functional_collectives as functional
from torch.distributed.distributed_c10d import _resolve_process_group
from torchft.process_group import ProcessGroup, reconfigure_with_store
from perseus_like.torch.distributed.reconfigurable import ReconfigurableGroup

port, rank = int(sys.argv[1]), int(sys.argv[2])
missing = [name for name in vars(ProcessGroup) if not name.startswith("_") and not hasattr(ReconfigurableGroup, name)]
assert not missing, missing

dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
pg = ReconfigurableGroup(timeout=timedelta(seconds=30))
pg.set_rank_info(f"replica_{rank}", 0, 1, global_rank=rank)
assert json.loads(pg.get_reconfigure_handle())["global_rank"] == rank
assert pg.register("for_functions") is pg
assert _resolve_process_group(pg.group_name) is pg
name = pg.group_name
for generation, members in enumerate(([0, 1, 2], [2, 0], [1, 2, 0])):
    if rank not in members:
        continue
    reconfigure_with_store(pg, f"127.0.0.1:{port}/{generation}", members.index(rank), len(members))
    assert pg.group_name == name and (pg.rank(), pg.size()) == (members.index(rank), len(members))
    expected = float(sum(members))
    assert functional.all_reduce(torch.full((3,), float(rank)), "sum", pg).tolist() == [expected] * 3
    gathered = functional.all_gather_tensor(torch.tensor([rank]), 0, pg)
    assert gathered.tolist() == members
done = TCPStore("127.0.0.1", port, is_master=False)  # an abort would also fail the last collective of the others
done.set(f"done/{rank}", "")
done.wait([f"done/{peer}" for peer in range(3)], timedelta(seconds=30))
if rank == 0:
    pg.abort()
assert (pg.errored() is not None) == (rank == 0)
if rank == 0:
    assert "replica_0 was aborted" in str(pg.errored()), pg.errored()
pg.unregister()
try:
    _resolve_process_group(name)
    raise SystemExit("the group is still registered")
except (LookupError, RuntimeError, ValueError):
    print("PASSED")
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Popen[str]]]:
    """Returns a function that starts a program in the environment that has torchft. A file gets its standard error."""
    python = python_of("torch-clients")
    with ExitStack() as stack:

        def run(
            name: str, text: str, *arguments: str, test_bed: NetworkTestBed | None = None, host: str = ""
        ) -> Popen[str]:
            program = tmp_path / f"{name}.py"
            if not program.exists():  # a process that has just been started may be reading it
                program.write_text(textwrap.dedent(text))
            line = [str(python), program.name, *arguments]
            process = Popen(
                test_bed.command(host, line, tmp_path) if test_bed else line,
                cwd=tmp_path,
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "CUDA_VISIBLE_DEVICES": "",
                    "ADDRESS": test_bed.address(host) if test_bed else "127.0.0.1",
                    "PERSEUS_UCX_LIBRARY": str(UCX_LIBRARY),
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stack.enter_context((tmp_path / f"{name}.log").open("a")),
                text=True,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        yield run


@pytest.mark.slow
@pytest.mark.parametrize(("hosts", "kills"), [(1, 1), (1, 3), (3, 3)])
def test_a_replica_is_killed_and_comes_back(
    hosts: int, kills: int, start: Callable[..., Popen[str]], test_beds: TestBeds, tmp_path: Path
) -> None:
    """The other replica trains on without the lost one, which gets the weights when it is back. Then both are equal."""
    if hosts > 1 and not UCX_LIBRARY.exists():
        pytest.skip("no UCX of MPICH's wheel beside this Python")
    test_bed = test_beds(hosts) if hosts > 1 else None

    def start_at(host: str, name: str, *arguments: str) -> Popen[str]:
        return start(name, *arguments, test_bed=test_bed, host=host)

    lighthouse = start_at("h1", "lighthouse", LIGHTHOUSE)
    assert lighthouse.stdout is not None
    address = lighthouse.stdout.readline().strip()

    def steps(number: int) -> dict[int, tuple[int, str]]:
        """Returns, for each step, the number of replicas that took part, and the digest of the weights after it."""
        file = tmp_path / f"steps-{number}"
        lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        return {int(step): (int(participants), digest) for step, participants, digest in lines}

    def wait(number: int, after: int, wanted: int) -> int:
        """Waits for three more steps of a replica with `wanted` participants. Returns the last of these steps."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while (
            len(found := [step for step, (count, _) in steps(number).items() if step > after and count == wanted]) < 3
        ):
            assert time.monotonic() < deadline, "\n".join(log.read_text()[-6000:] for log in tmp_path.glob("*.log"))
            time.sleep(0.05)
        return found[-1]

    replicas = [start_at(f"h{2 + number}", f"replica-{number}", REPLICA, address, str(number)) for number in range(2)]
    last = wait(1, 0, wanted=2)
    for _ in range(kills):
        for pid in test_bed.processes("h3") if test_bed else [replicas[1].pid]:
            os.kill(pid, signal.SIGKILL)
        replicas[1].wait()
        alone = wait(0, last, wanted=1)
        replicas[1] = start_at("h3", "replica-1", REPLICA, address, "1")
        last = wait(1, alone, wanted=2)
    (tmp_path / "end").write_text(str(last + 300))
    assert [replica.wait(LIMIT_SECONDS) for replica in replicas] == [0, 0]
    first, second = steps(0), steps(1)
    both = [step for step in first if first[step][0] == 2 and second.get(step, (0,))[0] == 2]
    assert last + 300 in both
    assert [first[step][1] for step in both] == [second[step][1] for step in both]


@pytest.mark.slow
def test_the_interface_of_torchfts_process_groups(start: Callable[..., Popen[str]], tmp_path: Path) -> None:
    """The group has each public name of torchft's base class. Functional collectives go on after a change of ranks."""
    store = start("store", STORE)
    assert store.stdout is not None
    port = store.stdout.readline().strip()
    ranks = [start("interface", INTERFACE, port, str(rank)) for rank in range(3)]
    ends = [(rank.communicate(timeout=LIMIT_SECONDS)[0], rank.returncode) for rank in ranks]
    assert ends == [("PASSED\n", 0)] * 3, (tmp_path / "interface.log").read_text()[-6000:]
