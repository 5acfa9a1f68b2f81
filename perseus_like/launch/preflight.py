"""Checks before a launch that all hosts can be reached and have the same version of this package.

mpirun reports either problem with many unrelated lines, or not at all.
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
from dataclasses import dataclass
from pathlib import Path

from .errors import LaunchError

DEFAULT_SECONDS = 30
# The largest number of remote shells that run at the same time.
_AT_ONCE = 64
_MARK = "perseus-probe "

# The program that each host runs. It is sent through the remote shell's standard input, so it needs no quoting and no
# user sees it on a command line.
_PROBE = """
import sys
if not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # the working directory
sys.path[:0] = {path!r}
import importlib.metadata, importlib.util, json, os
found = {{"package": importlib.util.find_spec("perseus_like") is not None, "version": "unknown (not installed)"}}
try:
    found["version"] = importlib.metadata.version("perseus-like") or found["version"]
except importlib.metadata.PackageNotFoundError:
    pass
found["missing"] = [each for each in {needed!r} if not os.path.exists(each)]
print({mark!r} + json.dumps(found), flush=True)
"""


@dataclass(frozen=True)
class Wanted:
    """The requirements for each host."""

    version: str
    paths: list[str]  # files and folders that must exist at the same path on all hosts


def check_hosts(hosts: Sequence[str], shell: Sequence[str], wanted: Wanted, seconds: float) -> None:
    """Checks all `hosts` in parallel over the remote shell `shell`. Raises LaunchError with each host's problem."""
    troubles = [f"{host} {trouble}" for host, trouble in _troubles(hosts, shell, wanted, seconds)]
    if troubles:
        raise LaunchError(
            "the job was not started: " + "; ".join(troubles) + ". (--no-check-hosts starts it without this check)"
        )


def remote_shell(given: str | None, ssh_args: Sequence[str], seconds: float) -> list[str]:
    """Returns the start of a command line that runs a program on a host. LaunchError if there is no remote shell."""
    program = given or "ssh"
    if shutil.which(program) is None:
        what = f"--remote-shell {given!r}" if given else "ssh, which mpirun uses to reach other hosts"
        raise LaunchError(f"{what}: no such program; install it, or give --remote-shell PATH")
    # The same options as mpirun's own ssh: no user is there to answer a question.
    own = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={max(1, int(seconds))}"]
    return [program, *(own if Path(program).name == "ssh" else []), *ssh_args]


def _troubles(hosts: Sequence[str], shell: Sequence[str], wanted: Wanted, seconds: float) -> list[tuple[str, str]]:
    script = _PROBE.format(path=_search_path(), needed=wanted.paths, mark=_MARK)
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


def _search_path() -> list[str]:
    """Returns the folders of PYTHONPATH, in which the ranks find modules, too."""
    return [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]


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
    return None
