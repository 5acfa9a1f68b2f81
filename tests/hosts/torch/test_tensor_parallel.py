"""Runs models that transformers and vLLM divide among ranks on two hosts (`make test-clients`), which UCX connects."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.job import LIMIT_SECONDS

from ..conftest import UCX_LIBRARY, TestBeds
from ..network_test_bed import NetworkTestBed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * LIMIT_SECONDS)]

ROOT = Path(__file__).parents[3]
PROGRAMS = ROOT / "tests" / "clients" / "programs"
LAUNCHERS = ("torchrun", "perseusrun")


def python_of(name: str) -> Path:
    python = ROOT / f".venv-{name}" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"there is no .venv-{name}; `make test-clients` makes it")
    if not UCX_LIBRARY.exists():
        pytest.skip("no UCX of MPICH's wheel beside this Python")
    return python


class Hosts:
    """Runs commands on two hosts. `variables` are in their environment."""

    def __init__(self, test_bed: NetworkTestBed, folder: Path, **variables: str) -> None:
        self.test_bed = test_bed
        self._folder = folder
        foreign = ("PERSEUS", "PYTHONPATH", "VLLM")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        own = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
        self._environment = {**kept, **own, "PERSEUS_UCX_LIBRARY": str(UCX_LIBRARY), **variables}

    def start(self, host: str, command: Sequence[object]) -> subprocess.Popen[bytes]:
        with (self._folder / f"{host}.log").open("w") as log:
            return subprocess.Popen(
                self.test_bed.command(host, list(map(str, command)), self._folder),
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def results(self, *commands: Sequence[object]) -> list[str]:
        """Runs a command on each of the first hosts to its end. Returns what the ranks print after the word RESULT."""
        hosts = self.test_bed.hosts[: len(commands)]
        processes = [self.start(host, command) for host, command in zip(hosts, commands, strict=True)]
        codes = []
        with suppress(subprocess.TimeoutExpired):
            codes += [process.wait(LIMIT_SECONDS) for process in processes]
        logs = [file.read_text() for file in sorted(self._folder.glob("*.log"))]
        assert codes == [0] * len(commands), "\n".join(log[-6000:] for log in logs)
        # Some launchers join lines of two ranks.
        return re.findall(r"RESULT (.+?)(?=RESULT|$)", "".join(logs[: len(commands)]), re.MULTILINE)

    def launched(self, launcher: str, ranks: int, program: Sequence[object]) -> list[str]:
        """Returns the results of a program with `ranks` ranks on each host."""
        python = program[0]
        hosts = self.test_bed.hosts
        if launcher == "perseusrun":
            where = ["-H", ",".join(f"{host}:{ranks}" for host in hosts), "--remote-shell", self.test_bed.remote_shell]
            return self.results([python, "-m", "perseus_like.launch", "--no-prefix", *where, *program])
        line = [python, "-m", "torch.distributed.run", "--nnodes", len(hosts), "--nproc-per-node", ranks]
        line += ["--master-addr", self.test_bed.address("h1"), "--master-port", 29500]
        return self.results(*([*line, "--node-rank", node, *program[1:]] for node in range(len(hosts))))


def test_a_llama_of_transformers(test_beds: TestBeds, tmp_path: Path) -> None:
    """The tokens are those of one process, with one and two ranks on each host, under each launcher."""
    program = [python_of("clients"), PROGRAMS / "llama_generate.py", tmp_path / "model"]
    hosts = Hosts(test_beds(2), tmp_path, PERSEUS_AS_GLOO="1")
    (alone,) = hosts.results(program)
    tokens = alone.rpartition("tokens ")[2]
    for launcher in LAUNCHERS:
        for ranks in (1, 2):
            results = hosts.launched(launcher, ranks, program)
            assert len(results) == 2 * ranks
            for result in results:
                assert "PerseusGroup" in result
                assert result.endswith(tokens)


def test_vllm(test_beds: TestBeds, tmp_path: Path) -> None:
    """The tokens are those of one process, if vLLM starts the ranks of each host and if a launcher does."""
    program = [python_of("vllm"), PROGRAMS / "vllm_generate.py", tmp_path / "model"]
    hosts = Hosts(test_beds(2), tmp_path, VLLM_PLUGINS="perseus")
    (alone,) = hosts.results([*program, 1])
    tokens = alone.partition(": ")[2]
    assert len(tokens.split()) == 24
    several = [*program, 2, hosts.test_bed.address("h1")]
    hosts.start("h2", [*several, 1])  # runs until it is killed, also over gloo
    assert hosts.results([*several, 0]) == [f"{['PerseusCommunicator'] * 2}: {tokens}"]
    hosts.test_bed.crash("h2")
    for launcher in LAUNCHERS:
        assert hosts.launched(launcher, 1, [*program, 2]) == [f"['PerseusCommunicator']: {tokens}"] * 2
