"""Tests of the check of all hosts before a launch. The remote shell runs on this host and imitates unfit hosts."""

from __future__ import annotations

import os
import select
import socket
import sys
from pathlib import Path

import pytest

from perseus_like.host_facts import installed_version
from perseus_like.launch.preflight import Wanted, check_allocation, check_hosts
from perseus_like.launch.start_errors import LaunchError
from tests.job import LIMIT_SECONDS

# The probe is on standard input. Without its second line, the probe does not find the modules of this host.
SHELL = """#!/bin/sh
case $1 in
  fit) exec sh -c "$2" ;;
  gone) echo "ssh: connect to host $1 port 22: No route to host" >&2; exit 255 ;;
  bare) sed '/^sys.path/d' | "@PYTHON@" -IS - ;;
  other) sed '/^sys.path/d' | PYTHONPATH="FOLDER/other" sh -c "$2" ;;
  strange) exec sh -c "exec '/no/such/python' -" ;;
  silent) echo $$ >"FOLDER/silent"; sleep 600; true ;;
esac
"""


@pytest.fixture
def shell(tmp_path: Path) -> list[str]:
    metadata = tmp_path / "other" / "perseus_like-0.0.1.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: perseus-like\nVersion: 0.0.1\n")
    (tmp_path / "other" / "perseus_like").mkdir()
    (tmp_path / "other" / "perseus_like" / "__init__.py").touch()
    program = tmp_path / "shell"
    program.write_text(SHELL.replace("FOLDER", str(tmp_path)).replace("@PYTHON@", sys.executable))
    program.chmod(0o755)
    return [str(program)]


@pytest.mark.parametrize(
    ("host", "trouble"),
    [
        ("gone", "gone cannot be reached (ssh: connect to host gone port 22: No route to host)"),
        ("bare", f"bare has no perseus_like for {sys.executable}; install it there"),
        ("other", f"other has perseus_like 0.0.1, and this host {installed_version()}; install the same"),
        ("strange", f"strange has no {sys.executable}"),
    ],
)
def test_the_error_names_the_unfit_host(host: str, trouble: str, shell: list[str]) -> None:
    with pytest.raises(LaunchError) as raised:
        check_hosts(["fit", host, "fit"], shell, Wanted(installed_version(), [os.devnull]), 60)
    assert trouble in str(raised.value)
    assert "fit " not in str(raised.value).replace(host, "")


def test_the_shell_of_a_batch_system(tmp_path: Path) -> None:
    """A host that cannot be reached is an error if another one can be: otherwise the shell itself does not work."""
    shell = tmp_path / "srun"
    shell.write_text("""#!/bin/sh
case $2 in
  fit) exec sh -c "$3" ;;
  *) echo "srun: error: Unable to create step for job 7: Required node not available" >&2; exit 1 ;;
esac
""")
    shell.chmod(0o755)
    line, wanted = [str(shell), "--nodelist"], Wanted(installed_version(), [os.devnull])
    assert check_allocation(["fit", "fit"], line, wanted, 60) == ""
    with pytest.raises(LaunchError, match=r"started: gone cannot be reached .*Required node not avail"):
        check_allocation(["fit", "gone"], line, wanted, 60)
    note = check_allocation(["gone", "lost"], line, wanted, 60)
    assert "reaches none of them; the first one cannot be reached (srun: error: Unable to create step" in note


def test_the_error_names_the_missing_file(shell: list[str]) -> None:
    check_hosts(["fit"], shell, Wanted(installed_version(), [os.devnull]), 60)
    with pytest.raises(LaunchError, match="fit has no /no/such/mpirun; it must be at the same path on all hosts"):
        check_hosts(["fit"], shell, Wanted(installed_version(), ["/no/such/mpirun"]), 60)


def test_the_error_names_a_silent_host_and_the_other_unfit_hosts(shell: list[str], tmp_path: Path) -> None:
    """The remote shell of the silent host has a child that keeps the output open."""
    with pytest.raises(LaunchError) as raised:
        check_hosts(["silent", "gone", "fit"], shell, Wanted(installed_version(), []), 6)
    assert "started: silent did not answer within 6 s; gone cannot be reached" in str(raised.value)
    assert "fit" not in str(raised.value)
    try:
        descriptor = os.pidfd_open(int((tmp_path / "silent").read_text()))
    except ProcessLookupError:
        return
    assert select.select([descriptor], [], [], LIMIT_SECONDS)[0], "the process of the remote shell has not ended"
    os.close(descriptor)


def test_the_error_names_a_host_that_cannot_connect_back(shell: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as open_port, socket.socket() as closed_port:
        closed_port.bind(("127.0.0.1", 0))  # it does not listen
        refused, accepted = closed_port.getsockname(), open_port.getsockname()
        check_hosts(["fit"], shell, Wanted(installed_version(), [], [refused, accepted]), 60)
        with pytest.raises(
            LaunchError, match=r"fit cannot connect to this host \(127.0.0.1\), which its ranks must do"
        ):
            check_hosts(["fit"], shell, Wanted(installed_version(), [], [refused]), 60)
