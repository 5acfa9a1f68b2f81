"""Before a job starts on other hosts: can they be reached, and is the same version of this package there?

mpirun's own words for either are many lines about something else, or none.
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
# Remote shells at the same time.
_AT_ONCE = 64
_MARK = "perseus-probe "

# Comes in through the remote shell's input, so that nothing has to be quoted and nobody sees it on a command line.
_PROBE = """
import importlib.metadata, importlib.util, json, os, sys
sys.path[:0] = {path!r}
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
    """What has to be as it is here."""

    version: str
    paths: list[str]  # files and folders at the same place everywhere


def check_hosts(hosts: Sequence[str], shell: Sequence[str], wanted: Wanted, seconds: float) -> None:
    """Looks at all `hosts` at the same time by `shell`. Raises LaunchError that names those not fit, and why."""
    troubles = [f"{host} {trouble}" for host, trouble in _troubles(hosts, shell, wanted, seconds)]
    if troubles:
        raise LaunchError("the job was not started: " + "; ".join(troubles) + ". (--no-check-hosts: do not look)")


def remote_shell(given: str | None, ssh_args: Sequence[str], seconds: float) -> list[str]:
    """The beginning of a command line that runs something on a host. Raises LaunchError without a program for it."""
    program = given or "ssh"
    if shutil.which(program) is None:
        what = f"--remote-shell {given!r}" if given else "ssh, by which mpirun reaches other hosts"
        raise LaunchError(f"{what}: no such program")
    # As mpirun's own: nobody is there to answer a question.
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
        except BaseException:  # Ctrl-C, say
            pool.shutdown(wait=False, cancel_futures=True)
            for probe in probes:
                _end(probe)
            raise
    return [(host, trouble) for host, trouble in zip(hosts, found, strict=True) if trouble]


def _start(host: str, shell: Sequence[str]) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    # The path may contain blanks: quoted for the shell at the other end.
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
    """With what it has started, which holds its output open."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(probe.pid, signal.SIGKILL)


def _search_path() -> list[str]:
    """Where ranks find modules besides Python's own places."""
    return [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]


def _judge(out: str, err: str, code: int, wanted: Wanted) -> str | None:
    _, mark, answer = out.partition(_MARK)  # after what the shell's start-up files print, even without a newline
    if not mark:
        words = (err.strip().splitlines() or [f"exit code {code}"])[-1]
        if code in {126, 127}:
            return f"has no {sys.executable} ({words})"
        return f"cannot be reached ({words})"
    found = json.loads(answer.partition("\n")[0])
    if not found["package"]:
        return f"has no perseus_like for {sys.executable}; install it there"
    if found["version"] != wanted.version:
        return f"has perseus_like {found['version']}, and this host {wanted.version}; install the same"
    if found["missing"]:
        return f"has no {', '.join(found['missing'])}; it must be at the same place on all hosts"
    return None
