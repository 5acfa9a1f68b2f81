"""Starts elastic jobs on the hosts of a network-namespace test bed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.elastic.job import Job, Start, jobs_in

from ..network_test_bed import NetworkTestBed


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Returns a function that launches an elastic job on h1: `start(test_bed, "--min-np", "2", hosts="h1:1,h2:1")`."""
    with jobs_in(tmp_path) as begin:

        def run(
            test_bed: NetworkTestBed,
            *options: str,
            hosts: str,
            program: str = "train_numpy.py",
            pause: str = "0.02",
            shell: str = "",
            is_static: bool = False,
        ) -> Job:
            launcher = test_bed.command("h1", [sys.executable, "-m", "perseus_like.launch"])
            network = ("--remote-shell", shell or test_bed.remote_shell, "--network-interfaces", "eth0", "--tcp")
            return begin(program, (pause,), (*network, *options), hosts, launcher, is_static)

        yield run
