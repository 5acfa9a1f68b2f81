"""Tests of groups in which some processes have been in groups before and others are new."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.job import LIMIT_SECONDS

# A survivor makes a new world whenever its world breaks. A replacement starts with its first world.
PROGRAM = """
import os, sys, torch
from datetime import timedelta
import torch.distributed as dist
if not hasattr(dist.Backend, "PERSEUS"):  # torch before 2.5 does not load the backend by itself
    import perseus_like.torch.distributed

port, rank = map(int, sys.argv[1:])
store = dist.TCPStore("127.0.0.1", port, is_master=False)
worlds = 0
while True:
    dist.init_process_group("perseus", store=store, rank=rank, world_size=3, timeout=timedelta(seconds=100))
    pair = dist.new_group([0, 2])
    worlds += 1
    total = torch.ones(1)
    dist.all_reduce(total)
    if rank != 1:
        dist.all_reduce(total, group=pair)
    print("world", worlds, total.item(), flush=True)
    try:
        while True:
            dist.all_reduce(total)
            if store.add("end", 0):
                store.add("ended", 1)
                sys.exit(0)
    except RuntimeError:
        if store.add("ended", 0):
            sys.exit(0)
    dist.destroy_process_group()
"""


@pytest.mark.slow
def test_replacements_join_survivors(tmp_path: Path) -> None:
    """After each loss of a rank, among them rank 0, the survivors and the replacement make a new world."""
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    store: Any = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    with ExitStack() as stack:

        def start(rank: int) -> subprocess.Popen[str]:
            line = [sys.executable, str(tmp_path / "program.py"), str(store.port), str(rank)]
            process = stack.enter_context(subprocess.Popen(line, stdout=subprocess.PIPE, text=True, cwd=tmp_path))
            stack.callback(process.kill)
            return process

        def next_line(process: subprocess.Popen[str]) -> str:
            assert process.stdout is not None
            return process.stdout.readline().strip()

        ranks = [start(rank) for rank in range(3)]
        assert [next_line(rank) for rank in ranks] == ["world 1 6.0", "world 1 3.0", "world 1 6.0"]
        for victim, worlds in ((2, [2, 2, 1]), (0, [1, 3, 2]), (2, [2, 4, 1])):
            ranks[victim].send_signal(signal.SIGKILL)
            ranks[victim].wait()
            ranks[victim] = start(victim)
            assert [next_line(rank) for rank in ranks] == [
                f"world {count} {3.0 if rank == 1 else 6.0}" for rank, count in enumerate(worlds)
            ]
        store.add("end", 1)
        assert [rank.wait(LIMIT_SECONDS) for rank in ranks] == [0, 0, 0]
