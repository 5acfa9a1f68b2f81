"""Tests of the published files: versions, the files of the sdist, and the checks at the end of `make wheels`."""

from __future__ import annotations

import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.job import run_to_end, succeeded

ROOT = Path(__file__).parents[2]
SETTINGS = {"user.name": "A", "user.email": "a@example.org", "tag.gpgsign": "false", "commit.gpgsign": "false"}
GIT = ["git", *(part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}"))]


NO_GIT = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed here")


def output(*command: str | Path, folder: Path) -> str:
    done = succeeded(run_to_end(command, folder))
    return done.stdout


def version_of(folder: Path) -> str:
    return output(sys.executable, "-m", "setuptools_scm", folder=folder).strip()


@NO_GIT
def test_the_version_comes_from_tags(tmp_path: Path) -> None:
    shutil.copy2(ROOT / "pyproject.toml", tmp_path)
    assert version_of(tmp_path) == "0.1.dev0", "sources without git"
    output("git", "init", "-q", folder=tmp_path)
    output("git", "add", ".", folder=tmp_path)
    output(*GIT, "commit", "-q", "-m", "first", folder=tmp_path)
    assert version_of(tmp_path) == "0.1.dev1", "a repository without tags"
    output(*GIT, "tag", "v1.2.3", folder=tmp_path)
    assert version_of(tmp_path) == "1.2.3"
    output(*GIT, "commit", "-q", "--allow-empty", "-m", "second", folder=tmp_path)
    assert version_of(tmp_path) == "1.2.4.dev1"


def test_package_core_and_distribution_have_one_version() -> None:
    program = (
        "import importlib.metadata, perseus, perseus_like, perseus_like._core as core; installed = importlib.metadata;"
        "print(installed.version('perseus-like'), perseus_like.__version__, perseus.__version__, core.__version__)"
    )
    versions = output(sys.executable, "-c", program, folder=Path.home()).split()
    assert len(versions) == 4
    assert len(set(versions)) == 1, versions


@NO_GIT
def test_the_sdist_has_all_files_of_git(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("the sources are no clone")
    clone = tmp_path / "clone"
    output("git", "clone", "-q", "--depth", "1", ROOT.as_uri(), clone, folder=tmp_path)
    build = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    output(sys.executable, "-c", build, tmp_path, folder=clone)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        packed = {name.partition("/")[2] for name in opened.getnames()}
    known = set(output("git", "ls-files", folder=clone).splitlines())
    assert {"Makefile", "CHANGELOG.md", "tests/conftest.py", "docs/architecture.md"} <= known
    assert known - packed == set()


def test_the_checks_of_wheels_find_what_is_wrong(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel that is built on this machine needs its C++ runtime, which published wheels must not."""
    monkeypatch.syspath_prepend(str(ROOT / "wheels"))
    import check

    problems = list(check.checked(wheel))
    assert any("it needs libstdc++.so.6" in problem for problem in problems)
    assert not [problem for problem in problems if "stripped" in problem or "exports" in problem]
    monkeypatch.setattr(check, "LARGEST_BYTES", 1000)
    assert "the limit is 1000" in next(check.checked(wheel))


@pytest.mark.slow
def test_a_wheel_is_built_from_the_sdist(tmp_path: Path) -> None:
    """pip builds it in an environment of its own, as on a user's machine."""
    build = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    output(sys.executable, "-c", build, tmp_path, folder=ROOT)
    (sdist,) = tmp_path.glob("*.tar.gz")
    output(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", tmp_path, sdist, folder=tmp_path)
    (built,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        assert any(name.startswith("perseus_like/_core.") for name in archive.namelist())
