"""Checks the command line for each family of mpirun, with scripts that imitate mpirun.

tests/packaging runs the real ones.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseus_like.launch.mpi import rank_main
from perseus_like.launch.mpi.demultiplex import hydra_output, open_mpi_output
from perseus_like.launch.mpi.family import Family, recognise
from tests.job import LIMIT_SECONDS, succeeded

from ..conftest import Ends, Launched, LinesOf, Perseusrun

VERSIONS = {
    Family.OPEN_MPI_4: ("mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/", "4.1.4"),
    Family.OPEN_MPI_5: (
        "mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/",
        "5.0.11",
    ),
    Family.MPICH: ("HYDRA build details:\n    Version:                                 5.0.2\n", "5.0.2"),
    Family.INTEL: ("Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626 (id: b44796a)", "2021.18.1"),
}
Mpirun = Callable[..., str]
RUN_RANK = [sys.executable, "-IS", str(Path(rank_main.__file__).absolute())]


@pytest.mark.parametrize("family", list(Family))
def test_families_are_recognised(family: Family) -> None:
    text, version = VERSIONS[family]
    assert recognise(text) == (family, version)


def test_unknown_launchers_are_not_recognised() -> None:
    assert recognise("slurm 23.11.4") is None


@pytest.fixture
def mpirun(tmp_path: Path) -> Mpirun:
    """Returns a function that makes an mpirun: it prints the family's version, or runs the shell code `body`."""

    def make(family: Family, body: str = "exit 0") -> str:
        folder = tmp_path / family.name
        folder.mkdir()
        path = folder / "mpirun"
        text, _ = VERSIONS[family]
        path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && {{ cat <<"E"\n{text}\nE\nexit 0; }}\n{body}\n')
        path.chmod(0o755)
        return str(path)

    return make


def dry_run(perseusrun: Perseusrun, *args: str, env: dict[str, str] | None = None) -> tuple[dict[str, str], list[str]]:
    """Returns the variables and the words of the mpirun command line."""
    result = succeeded(perseusrun("--dry-run", *args, env=env))
    words = shlex.split(result.stdout)
    assert result.stdout == shlex.join(words) + "\n"
    variables: dict[str, str] = {}
    if words[0] == "env":
        while "=" in words[1]:
            name, _, variables[name] = words.pop(1).partition("=")
        words.pop(0)
    return variables, words


HOST_LINE = ["-np", "3", "-H", "198.51.100.1:2,198.51.100.2:2"]
EVERYTHING = [
    *HOST_LINE,
    *(
        "--network-interfaces",
        "eth0",
        "-p",
        "2222",
        "-i",
        "/keys/id",
        "--tcp",
        "-x",
        "SECRET=hush hush",
        "--mpi-args",
        "--more 'm m'",
    ),
]
WRAPPED = [*RUN_RANK, "perseus-job", '["python", "train.py", "a b"]']


def forwarded_by_hydra(words: list[str]) -> set[str]:
    """Removes the option that names the forwarded variables from `words`. Returns these names."""
    index = words.index("-genvlist")
    names = words[index + 1].split(",")
    del words[index : index + 2]
    return set(names)


def forwards(words: list[str]) -> list[str]:
    return [words[index + 1] for index, word in enumerate(words) if word == "-x"]


@pytest.mark.parametrize(("family", "prefix"), [(Family.OPEN_MPI_5, "prte"), (Family.OPEN_MPI_4, "orte")])
def test_open_mpi_line(perseusrun: Perseusrun, mpirun: Mpirun, family: Family, prefix: str) -> None:
    path = mpirun(family)
    env = {**os.environ, "PERSEUS_LOG_LEVEL": "info", "PYTHONPATH": "/lib path", "SSH_TTY": "/dev/x"}
    variables, words = dry_run(perseusrun, "--mpirun", path, *EVERYTHING, "python", "train.py", "a b", env=env)
    assert words[:3] == [path, "-np", "3"]
    assert words[-len(WRAPPED) :] == WRAPPED
    line = " ".join(words)
    assert ("--allow-run-as-root" in words) == (os.geteuid() == 0)
    assert "--host 198.51.100.1:2,198.51.100.2:1 --map-by slot:OVERSUBSCRIBE --bind-to none" in line
    assert "--mca btl_tcp_if_include eth0" in line
    if family is Family.OPEN_MPI_5:
        assert "--output tag" in line
        assert "--prtemca plm_ssh_args -p 2222 -i /keys/id" in line
        assert "--prtemca prte_if_include eth0" in line
        assert "--mca pml ob1 --mca btl self,sm,tcp" in line
    else:
        assert "--tag-output" in line
        assert "--mca plm_rsh_args -p 2222 -i /keys/id" in line
        assert "--mca oob_tcp_if_include eth0" in line
        assert "--mca pml ob1 --mca btl self,vader,tcp" in line
    assert words[-len(WRAPPED) - 2 : -len(WRAPPED)] == ["--more", "m m"]
    assert {"SECRET", "PATH", "PYTHONPATH", "PERSEUS_LOG_LEVEL", "PERSEUS_LAUNCHER"} <= set(forwards(words))
    assert not {"HOME", "PWD", "SSH_TTY"} & set(forwards(words))
    assert "hush" not in line
    assert variables["SECRET"] == "***"


def test_mpich_line(perseusrun: Perseusrun, mpirun: Mpirun) -> None:
    path = mpirun(Family.MPICH)
    env = {
        **os.environ,
        "PERSEUS_LOG_LEVEL": "info",
        "SSH_AUTH_SOCK": "/x",
        "XDG_RUNTIME_DIR": "/x",
        "SLURM_JOB_ID": "1",
    }
    variables, words = dry_run(
        perseusrun, "--mpirun", path, *EVERYTHING, "--remote-shell", "/a/sh", "python", "train.py", "a b", env=env
    )
    forwarded = forwarded_by_hydra(words)
    assert {"SECRET", "PATH", "PERSEUS_LOG_LEVEL", "MPIR_CVAR_CH4_NETMOD", "FI_PROVIDER"} <= forwarded
    assert not {"HOME", "PWD", "SSH_AUTH_SOCK", "XDG_RUNTIME_DIR", "SLURM_JOB_ID"} & forwarded
    assert words == [
        *(
            path,
            "-hosts",
            "198.51.100.1:2,198.51.100.2:1",
            "-launcher",
            "ssh",
            "-launcher-exec",
            "/a/sh",
            "-iface",
            "eth0",
        ),
        *("-prepend-pattern", "<perseus-job %r>", "-bind-to", "none", "--more", "m m", "-n", "3", *WRAPPED),
    ]
    assert variables["HYDRA_LAUNCHER_EXTRA_ARGS"] == "-p 2222 -i /keys/id"
    assert (variables["MPIR_CVAR_CH4_NETMOD"], variables["FI_PROVIDER"]) == ("ofi", "tcp")
    assert variables["SECRET"] == "***"


def test_intel_line(perseusrun: Perseusrun, mpirun: Mpirun) -> None:
    path = mpirun(Family.INTEL)
    variables, words = dry_run(perseusrun, "--mpirun", path, *EVERYTHING, "python", "train.py", "a b")
    assert {"SECRET", "I_MPI_FABRICS", "FI_PROVIDER"} <= forwarded_by_hydra(words)
    assert words == [
        *(path, "-hosts", "198.51.100.1,198.51.100.2", "-ppn", "2", "-launcher", "ssh", "-iface", "eth0"),
        *("-prepend-pattern", "<perseus-job %r>", "--more", "m m", "-n", "3", *WRAPPED),
    ]
    assert variables["I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"] == "-p 2222 -i /keys/id"
    assert (variables["I_MPI_FABRICS"], variables["FI_PROVIDER"], variables["I_MPI_PIN"]) == ("shm:ofi", "tcp", "0")


def test_intel_line_for_uneven_hosts_has_a_section_per_host(perseusrun: Perseusrun, mpirun: Mpirun) -> None:
    hosts = "198.51.100.1:1,198.51.100.2:2"
    _, words = dry_run(perseusrun, "--mpirun", mpirun(Family.INTEL), "-H", hosts, "python", "train.py", "a b")
    tail = ["-n", "1", "-host", "198.51.100.1", *WRAPPED, ":", "-n", "2", "-host", "198.51.100.2", *WRAPPED]
    assert words[-len(tail) :] == tail


def test_a_binding_option_of_the_user_replaces_the_default(perseusrun: Perseusrun, mpirun: Mpirun) -> None:
    path = mpirun(Family.OPEN_MPI_5)
    _, words = dry_run(perseusrun, "--mpirun", path, *HOST_LINE, "--binding-args", "--bind-to core", "x")
    assert words.count("--bind-to") == 1
    assert "core" in words


def test_more_ranks_than_cores_yield_under_open_mpi(perseusrun: Perseusrun, mpirun: Mpirun) -> None:
    path = mpirun(Family.OPEN_MPI_5)
    _, many = dry_run(perseusrun, "--mpi", "--mpirun", path, "-np", "100000", "x")
    _, one = dry_run(perseusrun, "--mpi", "--mpirun", path, "-np", "1", "x")
    assert "mpi_yield_when_idle" in many
    assert "mpi_yield_when_idle" not in one
    assert "--host" not in one


def test_mpirun_of_the_prefix_comes_before_path(perseusrun: Perseusrun, mpirun: Mpirun) -> None:
    mine = Path(sys.prefix, "bin", "mpirun")
    on_path = mpirun(Family.MPICH)
    env = {**os.environ, "PATH": f"{Path(on_path).parent}:{os.environ['PATH']}"}
    _, words = dry_run(perseusrun, "--mpi", "-np", "1", "x", env=env)
    assert words[0] == (str(mine) if mine.exists() else on_path)


def test_hosts_that_are_only_this_machine_need_no_mpi(perseusrun: Perseusrun, mpirun: Mpirun) -> None:
    path = mpirun(Family.MPICH)
    for extra, is_mpi in ((), False), (("--mpi",), True):
        result = perseusrun("--dry-run", "-H", "localhost:1,127.0.0.1:1", "--mpirun", path, *extra, "x")
        assert (path in result.stdout) == is_mpi


def test_a_missing_or_unknown_mpirun_is_an_error(perseusrun: Perseusrun, tmp_path: Path) -> None:
    missing = perseusrun("--mpirun", str(tmp_path / "none"), *HOST_LINE, "x")
    assert missing.returncode == 2
    assert "no such program" in missing.stderr
    other = tmp_path / "mpirun"
    other.write_text("#!/bin/sh\necho some other launcher 1.0\n")
    other.chmod(0o755)
    unknown = perseusrun("--mpirun", str(other), *HOST_LINE, "x")
    assert unknown.returncode == 2
    assert "'some other launcher 1.0'" in unknown.stderr


def test_a_job_through_mpirun(perseusrun: Perseusrun, mpirun: Mpirun, tmp_path: Path) -> None:
    """The imitated mpirun runs one rank and marks its lines as Hydra does. Its own messages have no mark."""
    body = """
    while [ "$1" != -n ]; do [ "$1" = -prepend-pattern ] && pattern=$2; shift; done; shift 2
    mark=$(echo "$pattern" | sed s/%r/1/)
    out=$(PMI_RANK=1 "$@" 2>err); code=$?
    printf '%spart' "$mark"; printf '%s and %s\\n' "$mark" "$out"; echo 'words of mpirun'
    sed "s/^/$mark/" err >&2
    exit 255
    """
    path = mpirun(Family.MPICH, body)
    program = tmp_path / "program.py"
    program.write_text("import sys; print(sys.argv[1:]); print('bad luck', file=sys.stderr); sys.exit(7)")
    args = ["--mpi", "--mpirun", path, "-np", "2", "--output-filename", "logs"]
    result = perseusrun(*args, sys.executable, str(program), "a b", ":", "")
    assert result.returncode == 7
    assert result.stdout == "[1]<stdout>:part and ['a b', ':', '']\nwords of mpirun\n"
    assert "[1]<stderr>:bad luck\n" in result.stderr
    assert f"rank 1 on {os.uname().nodename} exited with code 7" in result.stderr
    assert (tmp_path / "logs/rank.1/stderr").read_text() == "bad luck\n"


def test_a_failure_is_noticed_without_more_output(perseusrun: Perseusrun, mpirun: Mpirun) -> None:
    """The imitated mpirun marks each line as Hydra does, and then waits without any output."""
    body = """
    while [ "$1" != -n ]; do [ "$1" = -prepend-pattern ] && pattern=$2; shift; done; shift 2
    PMI_RANK=1 "$@" 2>err
    sed "s/^/$(echo "$pattern" | sed s/%r/1/)/" err >&2
    exec sleep 1000
    """
    result = perseusrun("--mpi", "--mpirun", mpirun(Family.MPICH, body), "-np", "2", "sh", "-c", "exit 3")
    assert result.returncode == 3
    assert f"rank 1 on {os.uname().nodename} exited with code 3" in result.stderr


def test_open_mpi_4_is_not_signalled_while_it_aborts(perseusrun: Perseusrun, mpirun: Mpirun) -> None:
    """The imitated mpirun ends two seconds after its rank, and crashes if it gets a signal before."""
    body = f"""
    while [ "$1" != {shlex.quote(sys.executable)} ]; do shift; done
    OMPI_COMM_WORLD_RANK=1 "$@" 2>err
    trap 'echo Segmentation fault >&2; exit 139' TERM
    sed 's/^/[1,1]<stderr>:/' err >&2
    sleep 2 & wait
    exit 1
    """
    result = perseusrun("--mpi", "--mpirun", mpirun(Family.OPEN_MPI_4, body), "-np", "2", "sh", "-c", "exit 3")
    assert result.returncode == 3
    assert f"rank 1 on {os.uname().nodename} exited with code 3" in result.stderr
    assert "Segmentation fault" not in result.stderr
    assert "terminating mpirun" not in result.stderr


def test_a_stopped_job_exits_with_143_whatever_code_mpirun_returns(
    launched: Launched, lines_of: LinesOf, mpirun: Mpirun
) -> None:
    program = "import signal, sys; signal.signal(15, lambda *_: sys.exit(1)); print('up', flush=True); signal.pause()"
    path = mpirun(Family.OPEN_MPI_5, f'exec {sys.executable} -c "{program}"')
    job = launched("--mpi", "--mpirun", path, "-np", "2", "x")
    lines_of(job, 1)
    job.terminate()
    assert job.wait(LIMIT_SECONDS) == 143


def test_a_signal_that_mpirun_drops_reaches_ranks_that_start_later(
    launched: Launched, lines_of: LinesOf, mpirun: Mpirun
) -> None:
    """The imitated mpirun takes the signal before it starts the rank, and does nothing, as Hydra while it starts."""
    program = (
        "import os, signal, subprocess, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT]); "
        "print('up', flush=True); signal.sigwait([signal.SIGINT]); "
        "signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT]); "
        "rank = sys.argv[sys.argv.index('-n') + 2 :]; "
        "sys.exit(subprocess.run(rank, env={**os.environ, 'PMI_RANK': '0'}).returncode)"
    )
    path = mpirun(Family.MPICH, f'exec {sys.executable} -c "{program}" "$@"')
    waits = (sys.executable, "-c", "import signal; signal.pause()")
    job = launched("--mpi", "--mpirun", path, "-np", "1", "--stop-timeout", "1000", *waits)
    lines_of(job, 1)
    job.send_signal(signal.SIGINT)
    assert job.wait(LIMIT_SECONDS) == 130


def rank_process(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*RUN_RANK, "tag", json.dumps(command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_rank_main_reports_how_the_rank_ended() -> None:
    node = os.uname().nodename
    cases = {
        "exit 0": (0, f"<tag ended 0>{node} exited with code 0\n"),
        "exit 9": (9, f"<tag ended 9>{node} exited with code 9\n"),
        "kill -SEGV $$": (139, f"<tag ended 139>{node} was killed by SIGSEGV\n"),
    }
    for text, (code, output) in cases.items():
        process = rank_process(["sh", "-c", text])
        assert (process.communicate(timeout=LIMIT_SECONDS)[1], process.returncode) == (
            f"<tag began>{node} \n{output}",
            code,
        )


def test_rank_main_forwards_signals_and_its_end_kills_the_rank(ends: Ends) -> None:
    program = "import os, signal, sys; print(os.getpid(), flush=True); signal.pause()"
    node = os.uname().nodename
    began = f"<tag began>{node} \n"
    cases = ((signal.SIGTERM, 143, f"{began}<tag stopped>{node} \n"), (signal.SIGKILL, -9, began))
    for signum, code, words in cases:
        process = rank_process([sys.executable, "-c", program])
        assert process.stdout is not None
        rank = int(process.stdout.readline())
        process.send_signal(signum)
        _, output = process.communicate(timeout=LIMIT_SECONDS)
        assert process.returncode == code
        assert output == words
        assert ends(rank)


@pytest.mark.parametrize("leads_a_group", [True, False])
def test_each_rank_is_in_a_session_of_its_own(leads_a_group: bool) -> None:
    """Each rank gets its own session, because the kernel shares processors among sessions.

    MPICH makes a session for each rank; Open MPI and Intel MPI do not.
    """
    program = "import os; print(os.getsid(0), os.getpgrp(), os.getppid())"
    line = [*RUN_RANK, "tag", json.dumps([sys.executable, "-c", program])]
    set_group = os.setpgrp if leads_a_group else None
    output = subprocess.run(
        line, stdout=subprocess.PIPE, text=True, preexec_fn=set_group, timeout=LIMIT_SECONDS, check=True
    ).stdout
    session, group, parent = output.split()
    assert session == group == parent  # mpirun ends the process group of the process that it started


def test_a_heartbeat_limit_above_the_kernels_maximum_becomes_the_maximum() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as connection,
    ):
        rank_main.set_keepalive(connection, 10**9)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 2**31 - 1


def test_rank_main_without_a_program() -> None:
    process = rank_process(["no-such-program"])
    _, output = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 127
    assert "could not be started" in output


class StoringChannel(bytearray):
    """A channel that stores what it is given."""

    def feed(self, data: bytes) -> None:
        self.extend(data)

    def finish(self) -> None:
        pass


class ChannelOfRank(dict[int | None, StoringChannel]):
    """A dictionary that makes a channel for each rank."""

    def __call__(self, rank: int | None) -> StoringChannel:
        return self.setdefault(rank, StoringChannel())


PIECES = st.lists(
    st.tuples(st.sampled_from([None, 0, 1, 20]), st.text("ab<>[1,] \n", min_size=1, max_size=6)), max_size=20
)


SORTERS = [
    (lambda ranks: hydra_output("job", ranks), b"<job %d>"),
    (lambda ranks: open_mpi_output("", ranks), b"[1,%d]<stdout>:"),
    (lambda ranks: open_mpi_output(" ", ranks), b"[1,%d]<stderr>: "),
]


@pytest.mark.parametrize(("sorter_for", "mark"), SORTERS)
@given(pieces=PIECES, step=st.integers(1, 7))
def test_output_is_sorted_by_rank(
    sorter_for: Callable[[ChannelOfRank], Any], mark: bytes, pieces: list[tuple[int | None, str]], step: int
) -> None:
    stream = b""
    expected: dict[int | None, bytes] = {}
    for rank, text in pieces:
        # Each line of a rank has a mark. A line without a mark, after a whole line, is a message of mpirun.
        own = rank is None
        if own and stream and not stream.endswith(b"\n"):
            continue
        for line in text.encode().splitlines(keepends=True):
            stream += (b"" if own else mark % rank) + line + (b"\n" if own and not line.endswith(b"\n") else b"")
            expected[rank] = expected.get(rank, b"") + line + (b"\n" if own and not line.endswith(b"\n") else b"")
    ranks = ChannelOfRank()
    sorter = sorter_for(ranks)
    for start in range(0, len(stream), step):
        sorter.feed(stream[start : start + step])
    sorter.finish()
    assert {rank: bytes(text) for rank, text in ranks.items()} == expected


def test_ranks_that_mpirun_does_not_start_end_the_job(perseusrun: Perseusrun, mpirun: Mpirun) -> None:
    silent = mpirun(Family.MPICH, "exec sleep 600")
    options = ["--mpi", "--mpirun", silent, "-np", "3", "--start-timeout", "1", "-H", "localhost:2,127.0.0.1:1"]
    result = perseusrun(*options, "--no-check-hosts", sys.executable, "train.py")
    assert result.returncode == 1, result.stderr
    late = "not started within 1 s (--start-timeout): mpirun could not start a process there"
    assert f"ranks 0, 1 on localhost {late}" in result.stderr
    assert f"rank 2 on 127.0.0.1 {late}" in result.stderr
