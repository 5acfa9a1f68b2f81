"""Tests of jobs that a real Slurm starts on two hosts: by `srun`, and by perseusrun inside an allocation."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.job import wait_until

from .links import why_unsupported
from .network_test_bed import NetworkTestBed

pytestmark = pytest.mark.slow  # the tests start the daemons of a cluster

ToEnd = Callable[..., "subprocess.CompletedProcess[str]"]
NEEDED = ("munged", "slurmctld", "slurmd", "srun", "salloc", "sinfo")
# PATH may lack the folders of Slurm's daemons on a machine that does not run Slurm itself.
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])

CONFIGURATION = """
ClusterName=testbed
SlurmctldHost=h1
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
KillWait=5
NodeName=h[1-2] CPUs=4 State=UNKNOWN
PartitionName=all Nodes=h[1-2] Default=YES MaxTime=INFINITE State=UP
"""

# slurmd needs the machine's control groups, which the /sys of a host in the test bed hides.
SLURMD = """
umount /sys
mkdir "$0"
mount --rbind /sys/fs/cgroup "$0"
mount -t sysfs sysfs /sys
mount --rbind "$0" /sys/fs/cgroup
exec slurmd -D
"""

PROGRAM = """
import numpy as np
import perseus_like.numpy as hvd
from perseus_like.session import session

hvd.init()
total = hvd.allreduce(np.full(1 << 18, float(hvd.rank())), op=hvd.Sum)
places = f"{hvd.rank()} of {hvd.size()}, {hvd.local_rank()} of {hvd.local_size()}"
assert "mpi" in session.core.description(), session.core.description()
print(f"rank {places}, {hvd.cross_rank()} of {hvd.cross_size()}: {set(total.tolist())}\\n", end="", flush=True)
"""

KILLED = """
import os, signal
import numpy as np
import perseus_like.numpy as hvd
from perseus_like.errors import PeerLostError

hvd.init()
try:
    hvd.barrier()  # other ranks may still be in it when rank 3 dies
    if hvd.rank() == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    hvd.allreduce(np.ones(1), name="after")
except PeerLostError as error:
    print(f"rank {hvd.rank()} raised {error}\\n", end="", flush=True)
    raise SystemExit(3) from None
"""

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def slurm(tmp_path: Path, to_end: ToEnd) -> Iterator[Run]:
    """Returns a function that runs a command on the first of two hosts, which have four processors each.

    For example: `slurm("srun", "-n", "4", …)`.
    """
    missing = [name for name in NEEDED if shutil.which(name, path=PATH) is None]
    if missing:
        pytest.skip(f"no Slurm: {', '.join(missing)} not found")
    if (reason := why_unsupported(None)) is not None:
        pytest.skip(f"no network-namespace test bed: {reason}")
    for folder in ("munge", "state", "spool-h1", "spool-h2"):
        (tmp_path / folder).mkdir()
    (tmp_path / "munge" / "key").write_bytes(os.urandom(1024))
    (tmp_path / "munge" / "key").chmod(0o400)
    (tmp_path / "slurm.conf").write_text(CONFIGURATION.format(folder=tmp_path))
    variables = {"SLURM_CONF": str(tmp_path / "slurm.conf"), "PATH": PATH}
    log = (tmp_path / "log").open("a")
    with NetworkTestBed(2) as test_bed, log, contextlib.ExitStack() as stack:

        def daemon(command: list[str]) -> None:
            started = subprocess.Popen(
                command,
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            stack.callback(started.wait)
            stack.callback(started.terminate)

        place = tmp_path / "munge"
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        daemon(["munged", "--foreground", "--force", *[f"--{name}={place / file}" for name, file in files.items()]])
        daemon(test_bed.command("h1", ["slurmctld", "-D"]))
        for host in test_bed.hosts:
            daemon(
                test_bed.command(host, ["unshare", "--mount", "sh", "-ec", SLURMD, str(tmp_path / f"cgroup-{host}")])
            )
        info = test_bed.command("h1", ["sinfo", "-h", "-o", "%D %t"])
        wait_until(lambda: to_end(info, **variables).stdout == "2 idle\n", (tmp_path / "log").read_text)

        def run(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
            return to_end(test_bed.command("h1", list(words), tmp_path), joined=True, **variables, **more)

        yield run


def with_pmi(slurm: Run, kind: str) -> str:
    """Returns srun's option for a kind of PMI. Skips the test if this Slurm does not have this kind."""
    if kind not in slurm("srun", "--mpi=list").stdout.split():
        pytest.skip(f"this Slurm has no --mpi={kind}")
    return f"--mpi={kind}"


def test_srun_on_two_hosts(slurm: Run) -> None:
    done = slurm("srun", with_pmi(slurm, "pmi2"), "-N", "2", "--ntasks-per-node", "2", sys.executable, "-c", PROGRAM)
    assert done.returncode == 0, done.stdout
    lines = sorted(re.findall(r"rank .*", done.stdout))
    assert lines == [f"rank {rank} of 4, {rank % 2} of 2, {rank // 2} of 2: {{6.0}}" for rank in range(4)], done.stdout


@pytest.mark.parametrize("has_secret", [False, True])
def test_srun_without_a_pmi_on_two_hosts(slurm: Run, has_secret: bool, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of these tests")
    secret = {"PERSEUS_SECRET_FILE": str(tmp_path / "secret")} if has_secret else {}
    line = ["srun", "--mpi=none", "-N", "2", "--ntasks-per-node", "2", sys.executable, "-c", PROGRAM]
    done = slurm(*line, **secret)
    assert done.returncode == 0, done.stdout
    lines = sorted(re.findall(r"rank \d of .*", done.stdout))
    assert lines == [f"rank {rank} of 4, {rank % 2} of 2, {rank // 2} of 2: {{6.0}}" for rank in range(4)], done.stdout
    assert done.stdout.count("without a secret") == (0 if has_secret else 1), done.stdout


def test_a_rank_that_is_missing_under_srun_is_named(slurm: Run) -> None:
    program = f"import os; os.environ['SLURM_PROCID'] == '1' or exec({PROGRAM!r})"
    line = ["srun", "--mpi=none", "--kill-on-bad-exit=0", "-N", "2", "-n", "3", sys.executable, "-c", program]
    done = slurm(*line, PERSEUS_START_TIMEOUT="20")
    assert done.returncode != 0
    assert done.stdout.count("ranks of 3 are missing: 1. Rank 0 listens at 10.77.0.1 port") == 2, done.stdout


@pytest.mark.parametrize("shell", ["sbatch", "salloc", "srun"])
def test_a_program_in_the_shell_of_an_allocation_is_alone(slurm: Run, shell: str, tmp_path: Path) -> None:
    program = [sys.executable, "-c", "import perseus_like.numpy as hvd; hvd.init(); print('size', hvd.size())"]
    if shell == "sbatch":
        script = f"#!/bin/sh\n{shlex.join(program)}\n"
        (tmp_path / "job.sh").write_text(script)
        done = slurm("sbatch", "--wait", "--output=out", "-N", "2", "--ntasks-per-node", "2", "job.sh")
        assert "size 1\n" in (tmp_path / "out").read_text(), done.stdout
    else:
        # srun gives the program a terminal.
        line = ["-N", "2", "--ntasks-per-node", "2"] if shell == "salloc" else ["--mpi=none", "--pty"]
        done = slurm("script", "-qec", shlex.join([shell, *line, *program]), "/dev/null")
        assert "size 1" in done.stdout, done.stdout


def test_a_rank_that_is_killed_on_the_other_host(slurm: Run) -> None:
    done = slurm("srun", with_pmi(slurm, "pmi2"), "-N", "2", "--ntasks-per-node", "2", sys.executable, "-c", KILLED)
    assert done.returncode != 0, done.stdout
    raised = set(re.findall(r"rank (\d) raised .*rank 3 on h2", done.stdout))
    assert raised == {"0", "1", "2"}, done.stdout


def test_perseusrun_in_an_allocation(slurm: Run) -> None:
    """perseusrun takes hosts and ranks from the allocation, and starts the ranks without ssh."""
    launch = [sys.executable, "-m", "perseus_like.launch", "--no-prefix", sys.executable, "-c", PROGRAM]
    done = slurm("salloc", "-N", "2", "--ntasks-per-node", "2", *launch)
    assert done.returncode == 0, done.stdout
    assert len(re.findall(r"rank \d of 4, \d of 2, \d of 2: \{6\.0\}", done.stdout)) == 4, done.stdout
