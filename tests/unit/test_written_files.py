"""Checks that files are written completely or not at all."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from perseus_like.host_facts import replacing
from tests.job import LIMIT_SECONDS


def test_a_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "model.weights.h5"
    with replacing(path) as file:
        file.write_text("new")
        assert file.name.endswith(".weights.h5")
        assert not path.exists()
    assert path.read_text() == "new"
    assert [each.name for each in tmp_path.iterdir()] == ["model.weights.h5"]


def test_a_failure_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "states"
    path.write_text("old")
    with pytest.raises(OSError, match="full"):
        _write_half(path)
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["states"]


KILLED = """
import os, signal, sys
from pathlib import Path
from perseus_like.host_facts import replacing

with replacing(Path(sys.argv[1])) as file, file.open("w") as states:
    states.write("ne")
    states.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "states"
    path.write_text("old")
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], timeout=LIMIT_SECONDS, check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_text() == "old"
    with replacing(path) as file:
        file.write_text("new")
    assert path.read_text() == "new"


def test_a_link_points_to_the_new_file(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "best"
    link.symlink_to(tmp_path / "elsewhere" / "file")
    with replacing(link) as file:
        file.write_text("new")
    assert link.is_symlink()
    assert link.read_text() == "new"


def test_a_folder_is_not_replaced(tmp_path: Path) -> None:
    with replacing(tmp_path) as same:
        (same / "within").touch()
    assert tmp_path.is_dir()
    assert (tmp_path / "within").exists()


def _write_half(path: Path) -> None:
    with replacing(path) as file:
        file.write_text("ne")
        raise OSError("disk full")
