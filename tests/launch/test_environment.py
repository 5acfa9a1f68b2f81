"""Checks the environment variables that the launcher sets for each rank."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.job import wait_until

from .conftest import LAUNCHER, Perseusrun, Script

DUMP = "import json; print(json.dumps(dict(os.environ)))"


def environments(result: subprocess.CompletedProcess[str]) -> dict[int, dict[str, str]]:
    assert result.returncode == 0, result.stderr
    found = {}
    for line in result.stdout.splitlines():
        match = re.fullmatch(r"\[(\d+)\]<stdout>:(.*)", line)
        assert match is not None
        found[int(match[1])] = json.loads(match[2])
    return found


def test_each_rank_has_the_documented_variables(perseusrun: Perseusrun, script: Script) -> None:
    found = environments(perseusrun("-np", "3", sys.executable, script(DUMP)))
    assert sorted(found) == [0, 1, 2]
    for rank, env in found.items():
        expected = {"RANK": rank, "SIZE": 3, "LOCAL_RANK": rank, "LOCAL_SIZE": 3, "CROSS_RANK": 0, "CROSS_SIZE": 1}
        for name, value in expected.items():
            assert env[f"PERSEUS_{name}"] == env[f"HOROVOD_{name}"] == str(value)
        assert (env["RANK"], env["WORLD_SIZE"], env["LOCAL_RANK"]) == (str(rank), "3", str(rank))
        assert (env["LOCAL_WORLD_SIZE"], env["LOCAL_SIZE"]) == ("3", "3")
        assert env["HOROVOD_HOSTNAME"] == socket.gethostname()
        assert env["PERSEUS_LAUNCHER"] == "perseusrun"
        assert re.fullmatch(r"perseus-[0-9a-f]{32}", env["PERSEUS_RENDEZVOUS"])
        assert env["MASTER_ADDR"] == "127.0.0.1"
        assert int(env["MASTER_PORT"]) > 0
    assert len({env["PERSEUS_RENDEZVOUS"] for env in found.values()}) == 1
    assert len({env["MASTER_PORT"] for env in found.values()}) == 1


def test_rendezvous_differs_from_job_to_job(perseusrun: Perseusrun, script: Script) -> None:
    program = script(DUMP)
    names = {environments(perseusrun("-np", "1", sys.executable, program))[0]["PERSEUS_RENDEZVOUS"] for _ in range(2)}
    assert len(names) == 2


def test_threads_are_shared_among_local_ranks(perseusrun: Perseusrun, script: Script) -> None:
    outer = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    result = perseusrun("-np", "2", "--verbose", sys.executable, script(DUMP), env=outer)
    threads = environments(result)[0]["OMP_NUM_THREADS"]
    assert 1 <= int(threads) <= max(1, len(os.sched_getaffinity(0)) // 2)
    assert result.stderr.count(f"OMP_NUM_THREADS={threads}") == 1


def _is_empty(file: Path) -> bool:
    return not file.read_text()


@pytest.fixture
def quota_of_one_core() -> Iterator[Path]:
    """Yields a cgroup below one that may use one core. Skips the test if this user cannot make cgroups."""
    for top, name, value in (("cpu", "cpu.cfs_quota_us", "100000"), ("", "cpu.max", "100000 100000")):
        outer = Path("/sys/fs/cgroup", top, f"perseus-test-{os.getpid()}")
        try:
            outer.mkdir()
            (outer / name).write_text(value)
        except OSError:
            with contextlib.suppress(OSError):
                outer.rmdir()
            continue
        inner = outer / "inner"
        inner.mkdir()
        yield inner
        wait_until(partial(_is_empty, inner / "cgroup.procs"), "processes are left in the cgroup")
        inner.rmdir()
        outer.rmdir()
        return
    pytest.skip("this user cannot make cgroups with a CPU quota")


def test_threads_are_as_many_as_a_cpu_quota_allows(
    perseusrun: Perseusrun, script: Script, quota_of_one_core: Path
) -> None:
    line = ["sh", "-c", f'echo $$ >{quota_of_one_core}/cgroup.procs && exec "$@"', "sh", *LAUNCHER]
    variables = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    result = perseusrun("-np", "1", sys.executable, script(DUMP), launcher=line, env=variables)
    assert environments(result)[0]["OMP_NUM_THREADS"] == "1"


def test_variables_of_the_user_take_precedence(perseusrun: Perseusrun, script: Script) -> None:
    mine = {"OMP_NUM_THREADS": "7", "MASTER_ADDR": "::1", "MASTER_PORT": "4321", "PYTHONUNBUFFERED": ""}
    mine["PYTHONFAULTHANDLER"] = ""
    env = environments(perseusrun("-np", "1", sys.executable, script(DUMP), env={**os.environ, **mine}))[0]
    assert {name: env[name] for name in mine} == mine


def test_forwarding_and_settings(perseusrun: Perseusrun, script: Script) -> None:
    result = perseusrun(
        *("-np", "2", "-x", 'GREETING=it\'s = "here"', "-x", "HOME", "--log-level", "debug"),
        *("--fusion-threshold-mb", "32", "--no-stall-check", "--start-timeout=5", sys.executable, script(DUMP)),
        env={**os.environ, "PERSEUS_LOG_LEVEL": "error"},
    )
    for env in environments(result).values():
        assert env["GREETING"] == 'it\'s = "here"'
        assert env["HOME"] == os.environ["HOME"]
        assert env["PERSEUS_LOG_LEVEL"] == "debug"
        assert env["PERSEUS_FUSION_THRESHOLD"] == str(32 << 20)
        assert env["PERSEUS_STALL_CHECK_DISABLE"] == "1"
        assert env["PERSEUS_START_TIMEOUT"] == "5"


def test_variables_of_an_outer_launcher_are_removed(perseusrun: Perseusrun, script: Script) -> None:
    outer = {
        **os.environ,
        "PERSEUS_LAUNCHER": "perseusrun",
        "PERSEUS_RENDEZVOUS": "perseus-outer",
        "MASTER_PORT": "1",
        "RANK": "9",
        "OMPI_COMM_WORLD_RANK": "9",
        "PMI_RANK": "9",
    }
    env = environments(perseusrun("-np", "1", sys.executable, script(DUMP), env=outer))[0]
    assert env["PERSEUS_RENDEZVOUS"] != "perseus-outer"
    assert env["RANK"] == "0"
    assert env["MASTER_PORT"] != "1"
    assert "OMPI_COMM_WORLD_RANK" not in env
    assert "PMI_RANK" not in env


def test_rank_0_can_listen_on_the_reserved_port(perseusrun: Perseusrun, script: Script) -> None:
    program = script("""
        import socket
        if rank == 0:
            with socket.socket() as server:
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                server.bind((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
                server.listen()
                print("listening")
    """)
    result = perseusrun("-np", "2", sys.executable, program)
    assert result.stdout == "[0]<stdout>:listening\n", result.stderr
