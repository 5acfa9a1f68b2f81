"""A Slurm cluster of two hosts in a network-namespace test bed."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.job import run_to_end, wait_until

from .links import why_unsupported
from .network_test_bed import NetworkTestBed

Run = Callable[..., "subprocess.CompletedProcess[str]"]
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


def why_missing() -> str:
    """Returns why this machine cannot have the cluster. Empty if it can."""
    if missing := [name for name in NEEDED if shutil.which(name, path=PATH) is None]:
        return f"no Slurm: {', '.join(missing)} not found"
    reason = why_unsupported(None)
    return f"no network-namespace test bed: {reason}" if reason else ""


@contextlib.contextmanager
def slurm_cluster(folder: Path) -> Iterator[Run]:
    """Yields a function that runs a command on the first of two hosts, which have four processors each.

    For example: `slurm("srun", "-n", "4", …)`.
    """
    for name in ("munge", "state", "spool-h1", "spool-h2"):
        (folder / name).mkdir()
    (folder / "munge" / "key").write_bytes(os.urandom(1024))
    (folder / "munge" / "key").chmod(0o400)
    (folder / "slurm.conf").write_text(CONFIGURATION.format(folder=folder))
    variables: dict[str, Any] = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": PATH}
    log = (folder / "log").open("a")
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

        place = folder / "munge"
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        daemon(["munged", "--foreground", "--force", *[f"--{name}={place / file}" for name, file in files.items()]])
        daemon(test_bed.command("h1", ["slurmctld", "-D"]))
        for host in test_bed.hosts:
            daemon(test_bed.command(host, ["unshare", "--mount", "sh", "-ec", SLURMD, str(folder / f"cgroup-{host}")]))
        info = test_bed.command("h1", ["sinfo", "-h", "-o", "%D %t"])
        wait_until(lambda: run_to_end(info, **variables).stdout == "2 idle\n", (folder / "log").read_text)

        def run(*words: str, **more: Any) -> subprocess.CompletedProcess[str]:
            return run_to_end(test_bed.command("h1", list(words), folder), joined=True, **variables, **more)

        yield run
