"""Checks that torch's store for `env://` on one host is a file that other users cannot read, without a port."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.job import LIMIT_SECONDS, needs, run_to_end, succeeded, wait_until

from .conftest import AsOtherUser

needs("torch")

PROGRAM = f"""
import os, sys
sys.path.append({str(Path(__file__).parent)!r})
from pathlib import Path
import torch
import torch.distributed as dist
if not hasattr(dist.Backend, "PERSEUS"):  # torch before 2.5 does not import the adapter by itself
    import perseus_like.torch.distributed
from listening import listening_addresses

def store():
    found = dist.distributed_c10d._get_default_store()
    while not hasattr(found, "path"):
        found = found.underlying_store
    return Path(found.path)

for backend in ("perseus", "gloo", "perseus"):
    dist.init_process_group(backend)
    total = torch.ones(1)
    dist.all_reduce(total)
    folder = store().parent
    mode = oct(folder.stat().st_mode & 0o777)
    # gloo and MPI open ports of their own.
    has_other_ports = backend == "gloo" or "PERSEUS_LAUNCHER" not in os.environ
    ports = [] if has_other_ports else listening_addresses(os.getpid())
    print(backend, total.item(), mode, ports, folder, flush=True)
    dist.barrier()
    dist.destroy_process_group()
"""
LAUNCHERS = {
    "perseusrun": [sys.executable, "-m", "perseus_like.launch", "--no-prefix", "-np", "2"],
    "mpirun": [str(Path(sys.executable).with_name("mpirun")), "-n", "2"],
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_store_is_a_file_that_only_this_user_can_read(launcher: str, tmp_path: Path) -> None:
    line = LAUNCHERS[launcher]
    if shutil.which(line[0]) is None:
        pytest.skip(f"no {launcher} beside this Python")
    done = succeeded(run_to_end([*line, sys.executable, "-c", PROGRAM], tmp_path, TMPDIR=str(tmp_path)))
    lines = [text.split(" /")[0] for text in done.stdout.splitlines()]
    assert sorted(lines) == 2 * ["gloo 2.0 0o700 []"] + 4 * ["perseus 2.0 0o700 []"]
    folders = {text.split(" ")[-1] for text in done.stdout.splitlines()}
    assert all(Path(folder).parent == tmp_path for folder in folders)
    assert not any(Path(folder).exists() for folder in folders)


def test_an_address_of_the_user_is_kept() -> None:
    program = """
import torch.distributed as dist
if not hasattr(dist.Backend, "PERSEUS"):  # torch before 2.5 does not import the adapter by itself
    import perseus_like.torch.distributed
dist.init_process_group("gloo", world_size=1, rank=0)
store = dist.distributed_c10d._get_default_store()
while isinstance(store, dist.PrefixStore):
    store = store.underlying_store
print(type(store).__name__)
"""
    line = [*LAUNCHERS["perseusrun"][:-1], "1", sys.executable, "-c", program]
    done = run_to_end(line, MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    assert done.stdout == "TCPStore\n", done.stderr


def test_the_folder_is_removed_if_the_launcher_is_killed(tmp_path: Path) -> None:
    program = "import os, signal; print(os.environ['PERSEUS_TORCH_STORE'].split()[1], flush=True); signal.pause()"
    line = [*LAUNCHERS["perseusrun"][:-1], "1", sys.executable, "-c", program]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}) as job:
        assert job.stdout is not None
        folder = Path(job.stdout.readline().strip())
        assert folder.stat().st_mode & 0o777 == 0o700
        job.kill()
    wait_until(lambda: not folder.exists(), f"{folder} is still there")


def test_another_user_cannot_read_the_store(tmp_path: Path, as_other_user: AsOtherUser) -> None:
    program = "import os; print(os.environ['PERSEUS_TORCH_STORE'].split()[1], flush=True); input()"
    line = [*LAUNCHERS["perseusrun"][:-1], "1", sys.executable, "-c", program]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        as_other_user(_cannot_list, job.stdout.readline().strip())
        job.communicate("\n", timeout=LIMIT_SECONDS)


def _cannot_list(folder: str) -> None:
    with pytest.raises(PermissionError):
        list(Path(folder).iterdir())
