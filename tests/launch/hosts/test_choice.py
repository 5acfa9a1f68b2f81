"""Tests the choice between ssh and an mpirun for the ranks of several hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from perseus_like.launch import choice
from perseus_like.launch.command_line import check_build, parse_options
from perseus_like.launch.mpi import family
from perseus_like.launch.start_errors import LaunchError

LIBRARY = "/usr/lib/libucp.so.0"
MPI_ONLY = (["--mpi"], ["--mpirun", "/m"], ["--mpi-args", "-v"], ["--binding-args", "-v"], ["--bind-to", "core"])


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PERSEUS_HOST_TRANSPORT", "PERSEUS_UCX_LIBRARY", "PERSEUS_ELASTIC"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Makes what the parameter names the only libraries of this machine: "ucx", "mpi", both or nothing."""

    def locate() -> Path:
        if "mpi" not in request.param:
            raise LaunchError("no mpirun found")
        return Path("/usr/bin/mpirun")

    def find_ucx(given: str) -> check_build.Row:
        return check_build.Row("UCX", "ucx" in request.param and given != "/wrong", "1.22.0", given or LIBRARY)

    monkeypatch.setattr(check_build, "find_ucx", find_ucx)
    monkeypatch.setattr(family, "locate", locate)


def chosen(*words: str, hosts: int = 2) -> tuple[bool, str]:
    return choice.choose_start(parse_options([*words, "train.py"]), hosts)


@pytest.mark.parametrize(
    ("installed", "expected"),
    [
        ("ucx", (False, f"UCX was found ({LIBRARY})")),
        ("ucx mpi", (False, f"UCX was found ({LIBRARY})")),
        ("mpi", (True, "UCX was not found")),
    ],
    indirect=["installed"],
)
@pytest.mark.usefixtures("installed")
def test_what_is_installed_decides(expected: tuple[bool, str]) -> None:
    assert chosen() == expected


@pytest.mark.parametrize("installed", ["ucx mpi"], indirect=True)
@pytest.mark.usefixtures("installed")
def test_options_and_variables_of_mpi_choose_mpirun(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [chosen(*words)[0] for words in MPI_ONLY] == [True] * len(MPI_ONLY)
    assert chosen("-x", "PERSEUS_UCX_LIBRARY=/wrong") == (True, "UCX was not found")
    assert chosen("-x", "PERSEUS_HOST_TRANSPORT=mpi") == (True, "PERSEUS_HOST_TRANSPORT=mpi")
    monkeypatch.setenv("PERSEUS_HOST_TRANSPORT", "mpi")
    assert chosen() == (True, "PERSEUS_HOST_TRANSPORT=mpi")


@pytest.mark.parametrize("installed", ["mpi"], indirect=True)
@pytest.mark.usefixtures("installed")
def test_a_request_of_ucx_chooses_ssh() -> None:
    assert chosen("-x", "PERSEUS_HOST_TRANSPORT=ucx") == (False, "PERSEUS_HOST_TRANSPORT=ucx")
    assert chosen("--mpi", "--gloo") == (False, "--gloo")
    assert chosen("--gloo", "--mpi-args", "-v") == (False, "--gloo")
    assert chosen("--gloo", "--mpi")[0] is True


@pytest.mark.parametrize("installed", ["ucx mpi", "ucx"], indirect=True)
@pytest.mark.usefixtures("installed")
def test_an_allocation_is_left_to_mpirun(request: pytest.FixtureRequest) -> None:
    options = parse_options(["train.py"])
    options.is_batch, options.batch_system = True, "Slurm"
    has_mpi = "mpi" in request.node.callspec.params["installed"]
    assert choice.choose_start(options, 2)[0] is has_mpi


@pytest.mark.parametrize("installed", [""], indirect=True)
@pytest.mark.usefixtures("installed")
def test_without_ucx_and_mpi_the_error_has_both_remedies() -> None:
    with pytest.raises(LaunchError, match=r"pip install 'perseus-like\[ucx\]' or apt install libucx0, or an MPI"):
        chosen()
    assert chosen(hosts=1) == (False, "all ranks are on one host")
