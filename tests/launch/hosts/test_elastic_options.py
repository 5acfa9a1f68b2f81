"""Checks the options that an elastic job on several hosts passes to each generation's perseusrun and to its helpers."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from perseus_like.launch.command_line import parse_options
from perseus_like.launch.elastic.cluster import _passed_on
from perseus_like.runner import launch

from ..conftest import LinesOf


@pytest.mark.parametrize("switch", ["--no-check-hosts", "--no-torch", "--torch", "--oversubscribe", "--verbose"])
def test_switches_are_passed_on(switch: str) -> None:
    options = parse_options(["-np", "2", "-H", "a:1,b:1", "--min-np", "1", switch, "python", "train.py"])
    assert switch in _passed_on(options)
    assert switch not in _passed_on(parse_options(["-np", "2", "-H", "a:1,b:1", "--min-np", "1", "python", "train.py"]))


# The second process ends at SIGTERM, but only after the first process has answered it.
SUPERVISED = """
import os, sys
from perseus_like.launch.output import Screen, Style
from perseus_like.launch.processes.supervise import Supervisor

answer = sys.argv[1]
os.mkfifo(answer)
serving = f"trap 'echo here > {answer}' USR1; echo serves; while :; do sleep 0.05; done"
working = f"trap 'kill -USR1 $0; read line < {answer}; exit 0' TERM; echo works; while :; do sleep 0.05; done"
screen = Screen(Style(True, False, None), 2)

def start(command, *more, **options):
    channels = [screen.channel(None, name) for name in ("stdout", "stderr")]
    return supervisor.start(command, ["sh", "-c", command, *more], dict(os.environ), None, *channels, lambda: False,
                            **options)

with Supervisor(screen, "job", 600.0) as supervisor:
    agent = start(serving, stop_signal=None)
    rank = start(working, str(agent.pid))
    supervisor.run(is_over=lambda: rank.status is not None)
    print("over", rank.status, flush=True)
"""


def test_the_agent_of_a_job_ends_after_the_ranks(tmp_path: Path, lines_of: LinesOf) -> None:
    job = subprocess.Popen([sys.executable, "-c", SUPERVISED, tmp_path / "fifo"], stdout=subprocess.PIPE, text=True)
    try:
        assert {line.strip() for line in lines_of(job, 2)} == {"serves", "works"}
        job.send_signal(signal.SIGTERM)
        assert job.stdout is not None
        assert "over 0" in job.stdout.read()
    finally:
        job.kill()


def test_horovods_run_returns_the_results_of_an_elastic_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "hosts.sh"
    script.write_text("#!/bin/sh\necho localhost:2\n")
    script.chmod(0o755)
    options = ["--min-np=1", f"--host-discovery-script={script}"]
    monkeypatch.setattr(launch, "options_of", lambda args: options)
    args = SimpleNamespace(run_func=lambda: 7, num_proc=1, executable=None, command=None, check_build=False)
    assert launch._run(args) == [7, 7]
