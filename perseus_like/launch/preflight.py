"""Checks before a launch that all hosts can be reached and have the same version of this package.

An mpirun reports either problem with many unrelated lines, or not at all.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from .command_line import Options
from .start_errors import LaunchError

DEFAULT_SECONDS = 30
# The largest number of remote shells that run at the same time.
_AT_ONCE = 64
# The time in which a host must be able to connect to this host. A firewall that drops packets leaves it unanswered.
_MOST_SECONDS_BACK = 5.0
_MARK = "perseus-probe "

# The program that each host runs. It is sent through the remote shell's standard input, so it needs no quoting and no
# user sees it on a command line.
_PROBE = """
import sys
if not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # the working directory
sys.path[:0] = {path!r}
import errno, importlib.metadata, importlib.util, json, os, select, socket, time
found = {{"package": importlib.util.find_spec("perseus_like") is not None, "version": "unknown (not installed)"}}
try:
    found["version"] = importlib.metadata.version("perseus-like") or found["version"]
except importlib.metadata.PackageNotFoundError:
    pass
found["missing"] = [each for each in {needed!r} if not os.path.exists(each)]
waiting = []
for address, port in {way_back!r}:
    attempt = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    attempt.setblocking(False)
    if attempt.connect_ex((address, port)) in (0, errno.EINPROGRESS):
        waiting.append(attempt)
found["reaches"] = not {way_back!r}
deadline = time.monotonic() + {seconds!r}
while waiting and not found["reaches"] and time.monotonic() < deadline:
    for attempt in select.select([], waiting, [], max(0, deadline - time.monotonic()))[1]:
        waiting.remove(attempt)
        found["reaches"] = found["reaches"] or attempt.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
print({mark!r} + json.dumps(found), flush=True)
"""


@dataclass(frozen=True)
class Wanted:
    """The requirements for each host."""

    version: str
    paths: list[str]  # files and folders that must exist at the same path on all hosts
    # The addresses and ports at which this host listens. Each host must be able to connect to one of them.
    way_back: list[tuple[str, int]] = field(default_factory=list)


def check_hosts(hosts: Sequence[str], shell: Sequence[str], wanted: Wanted, seconds: float) -> None:
    """Checks all `hosts` in parallel over the remote shell `shell`. Raises LaunchError with each host's problem."""
    _raise(_troubles(hosts, shell, wanted, seconds))


# Runs a line of the shell on a host, which both follow, as a step of a Slurm job, whatever other steps run. Programs of
# the line may use all processors of the job there.
_SRUN = "exec srun --quiet --overlap --nodes=1 --ntasks=1 --mpi=none --cpu-bind=none --nodelist"
SRUN = ["sh", "-c", _SRUN + ' "$0" sh -c "$1"']


def batch_shell(options: Options) -> list[str] | None:
    """Returns the remote shell of the batch system whose hosts the job uses, if it has one and no other is given."""
    return SRUN if options.batch_system == "Slurm" and not options.remote_shell and shutil.which("srun") else None


def name_of(shell: Sequence[str]) -> str:
    """Returns the name of a remote shell's program."""
    return "srun" if shell == SRUN else Path(shell[0]).name


def check_allocation(hosts: Sequence[str], shell: Sequence[str], wanted: Wanted, seconds: float) -> str:
    """Checks the hosts of a batch job through its own remote shell.

    Raises LaunchError with each host's problem. If no host answers, among them this one, the shell does not work in
    this batch system. That is not the hosts' fault, and the reason is returned.
    """
    troubles = _troubles(hosts, shell, wanted, seconds)
    if len(troubles) == len(hosts):
        return f"the hosts were not checked: {name_of(shell)} reaches none of them; the first one {troubles[0][1]}"
    _raise(troubles)
    return ""


def _raise(troubles: Sequence[tuple[str, str]]) -> None:
    if troubles:
        listed = "; ".join(f"{host} {trouble}" for host, trouble in troubles)
        raise LaunchError(f"the job was not started: {listed}. (--no-check-hosts starts it without this check)")


def remote_shell(given: str | None, ssh_args: Sequence[str], seconds: float) -> list[str]:
    """Returns the start of a command line that runs a program on a host. LaunchError if there is no remote shell."""
    program = given or "ssh"
    if shutil.which(program) is None:
        what = f"--remote-shell {given!r}" if given else "ssh, which reaches the other hosts"
        raise LaunchError(f"{what}: no such program; install it, or give --remote-shell PATH")
    # The same options as mpirun's own ssh: no user is there to answer a question.
    own = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={max(1, int(seconds))}"]
    return [program, *(own if Path(program).name == "ssh" else []), *ssh_args]


def _troubles(hosts: Sequence[str], shell: Sequence[str], wanted: Wanted, seconds: float) -> list[tuple[str, str]]:
    script = _PROBE.format(
        path=[entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry],
        needed=wanted.paths,
        way_back=wanted.way_back,
        seconds=min(_MOST_SECONDS_BACK, seconds / 2),
        mark=_MARK,
    )
    probes: list[subprocess.Popen[str]] = []

    def look(host: str) -> str | None:
        probe = _start(host, shell)
        probes.append(probe)
        try:
            out, err = probe.communicate(script, seconds)
        except subprocess.TimeoutExpired:
            _end(probe)
            probe.communicate()
            return f"did not answer within {seconds:g} s"
        return _judge(out, err, probe.returncode, wanted)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        try:
            found = list(pool.map(look, hosts))
        except BaseException:  # for example KeyboardInterrupt
            pool.shutdown(wait=False, cancel_futures=True)
            for probe in probes:
                _end(probe)
            raise
    return [(host, trouble) for host, trouble in zip(hosts, found, strict=True) if trouble]


def _start(host: str, shell: Sequence[str]) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    # The path is quoted for the shell of the other host, since it may contain blanks.
    remote = "exec '" + sys.executable.replace("'", "'\\''") + "' -"
    return subprocess.Popen(
        [*shell, host.strip("[]"), remote],
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def _end(probe: subprocess.Popen[str]) -> None:
    """Kills a probe and the processes that it has started, which hold its output open."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(probe.pid, signal.SIGKILL)


def _judge(out: str, err: str, code: int, wanted: Wanted) -> str | None:
    _, mark, answer = out.partition(_MARK)  # skips the output of the shell's start-up files
    if not mark:
        words = (err.strip().splitlines() or [f"exit code {code}"])[-1]
        if code in {126, 127}:
            return f"has no {sys.executable} ({words}); install Python there at the same path"
        return f"cannot be reached ({words})"
    found = json.loads(answer.partition("\n")[0])
    if not found["package"]:
        return f"has no perseus_like for {sys.executable}; install it there"
    if found["version"] != wanted.version:
        return f"has perseus_like {found['version']}, and this host {wanted.version}; install the same"
    if found["missing"]:
        return f"has no {', '.join(found['missing'])}; it must be at the same path on all hosts"
    if not found["reaches"]:
        addresses = ", ".join(sorted({address for address, _ in wanted.way_back}))
        return (
            f"cannot connect to this host ({addresses}), which its ranks must do; let the firewall of this host accept "
            "connections from there, or give the interface with --network-interfaces"
        )
    return None
