"""Errors of the launcher. `rank_main` imports this file by its folder, without the package."""

from __future__ import annotations

import errno
import re
import shlex
import shutil
import signal
from pathlib import Path

# Remedies if the system lacks something to start a program with.
_REMEDIES = {
    errno.EMFILE: "raise the limit of open files (ulimit -Hn)",
    errno.EAGAIN: "raise the limit of processes (ulimit -u, or pids.max of the container)",
    errno.ENOMEM: "start fewer ranks, or use a host with more memory",
}


class LaunchError(Exception):
    """The job was not started. The text says what is wrong and what to do."""

    def __init__(self, text: str, exit_code: int = 2) -> None:
        super().__init__(text)
        self.exit_code = exit_code


_HINTS = {
    signal.SIGKILL: "the kernel does this if memory runs out",
    signal.SIGBUS: "the kernel does this if a file in memory has no room: give the container a larger /dev/shm, as in "
    "docker run --shm-size=1g",
}


def describe_code(code: int) -> str:
    """Describes the end of a process in words. `code` is its exit code, or −1 times its signal."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        found = signal.Signals(-code)
    except ValueError:
        return f"was killed by signal {-code}"
    hint = f" ({_HINTS[found]})" if found in _HINTS else ""
    return f"was killed by {found.name}{hint}"


def explain_start_failure(program: str, error: OSError) -> tuple[str, int]:
    """Returns the error text of a program that could not be started, and the exit code that a shell reports."""
    if error.errno == errno.ENOEXEC:
        text = "it is no program of this system, and its first line does not begin with #!"
        return f"cannot run {program!r}: {text}; name its interpreter before it, as in sh script.sh", 126
    if not isinstance(error, FileNotFoundError):
        remedy = _REMEDIES.get(error.errno or 0, "give a program that this user may run")
        return f"cannot run {program!r}: {error.strerror}; {remedy}", 126
    found = shutil.which(program)
    if found is None and (program.endswith(".py") or "/" in program):
        return _no_such_file(Path(program).absolute()), 127
    if found is None and re.search(r"[\s;&|<>]", program):
        return f"{program!r}: no such program; for a line of a shell, write sh -c {shlex.quote(program)}", 127
    if found is None:
        return f"{program!r}: no such program; give its path, or add its folder to PATH", 127
    # The file exists, but the interpreter or loader that it names does not.
    interpreter = _interpreter(Path(found))
    if interpreter and interpreter.endswith("\r"):
        text = f"its lines end with CR LF, as on Windows, so that its interpreter would be {interpreter!r}"
        return f"cannot run {program!r}: {text}; convert the file: sed -i 's/\\r$//' {shlex.quote(found)}", 127
    needed = f"its interpreter {interpreter!r}, named in its first line," if interpreter else "its dynamic loader"
    return f"cannot run {program!r}: {needed} does not exist; install it", 127


def _no_such_file(path: Path) -> str:
    """Returns the error text for a missing file, with the name in its folder that resembles it most, if one does."""
    import difflib  # its import takes longer than that of this file, and few jobs need it

    names = sorted(file.name for file in path.parent.glob("*") if file.is_file())
    similar = [name for name in names if Path(name).suffix == path.suffix]
    near = difflib.get_close_matches(path.name, similar, n=1, cutoff=0.75)
    return f"no such file: {path}; " + (f"did you mean {near[0]}?" if near else "give the path of a file that exists")


def _interpreter(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            first = file.readline(4096)
    except OSError:
        return None
    # To the kernel, a carriage return is part of the name.
    words = re.split(rb"[ \t]+", first[2:].strip(b" \t\n")) if first.startswith(b"#!") else []
    return words[0].decode(errors="replace") if words else None
