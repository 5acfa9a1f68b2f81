"""Tests of import aliases, each installed in the ways that users have."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.job import LIMIT_SECONDS, needs

needs("torch")

Program = Callable[[str], str]
API = Path(__file__).parents[1] / "data" / "horovod_api.json"
ALIAS = [sys.executable, "-m", "perseus_like.names", "horovod"]

IDENTITIES = f"""
    import importlib, json, pickle, sys
    import horovod, horovod.torch as hvd
    import perseus_like, perseus_like.torch

    others = ("horovod.tensorflow", "horovod.keras")  # another test imports them, since they take long
    # In Horovod, importing horovod.torch imports every module.
    for name in json.load(open({str(API)!r})):
        if name.startswith(others):
            continue
        module = horovod
        for part in name.split(".")[1:]:
            module = getattr(module, part)
    assert hvd.mpi_ops._basics.rank is hvd.rank
    assert hvd is perseus_like.torch and perseus_like.torch.__spec__.name == "perseus_like.torch"
    for name in json.load(open({str(API)!r})):
        if name != "horovod" and not name.startswith(others):
            ours = name.replace("horovod", "perseus_like", 1)
            try:
                expected = importlib.import_module(ours)
            except ModuleNotFoundError as error:
                assert ours.startswith(error.name), error  # listed as missing in tests/names/test_horovod_names.py
                continue
            assert importlib.import_module(name) is expected, name
    assert horovod.run is perseus_like.run and horovod.__version__ == "0.28.1"
    from horovod.common.exceptions import HorovodInternalError
    assert pickle.loads(pickle.dumps(HorovodInternalError)) is hvd.HorovodInternalError
    import perseus.torch.horovod
    assert perseus.torch.horovod is hvd
    hvd.init()
    assert hvd.allreduce(__import__("torch").ones(2), op=hvd.Sum).tolist() == [hvd.size()] * 2
    print("as one", hvd.size(), sys.argv[1:])
"""


@pytest.fixture
def program(tmp_path: Path) -> Program:
    def write(text: str) -> str:
        path = tmp_path / "program.py"
        path.write_text(textwrap.dedent(text))
        return str(path)

    return write


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)


def run_successfully(*command: str, **variables: str) -> str:
    result = run(*command, **variables)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_perseus_can_be_imported_and_horovod_cannot() -> None:
    code = """
    import importlib.util, perseus, perseus.torch.horovod as hvd, perseus_like.torch
    assert hvd is perseus_like.torch and perseus.__version__
    assert "horovod" not in sys.modules
    print(importlib.util.find_spec("horovod"))
    assert importlib.util.find_spec("perseus.foo") is None
    assert importlib.util.find_spec("perseus.torch.nothing") is None
    assert importlib.util.find_spec("perseus.torch.horovod") is not None
    """
    out = run_successfully(sys.executable, "-c", "import sys\n" + textwrap.dedent(code))
    assert "perseus_like" not in out


def test_keras_and_tensorflow(program: Program) -> None:
    needs("tensorflow")
    path = program(
        f"""
        import importlib, json
        import horovod.keras, perseus.keras.horovod, perseus.tensorflow.horovod
        import perseus_like.keras, perseus_like.tensorflow.keras

        assert horovod.keras is perseus.keras.horovod is perseus_like.keras
        assert perseus.tensorflow.horovod is perseus_like.tensorflow
        for name in json.load(open({str(API)!r})):
            if name.startswith(("horovod.tensorflow", "horovod.keras")):
                ours = name.replace("horovod", "perseus_like", 1)
                assert importlib.import_module(name) is importlib.import_module(ours), name
        import horovod.tensorflow as hvd
        hvd.init()
        assert hvd.allreduce([1.0, 2.0], op=hvd.Sum).numpy().tolist() == [1.0, 2.0]
        assert horovod.keras.callbacks.MetricAverageCallback.__module__ == "perseus_like.keras.callbacks"
        print("all there")
        """
    )
    assert run_successfully(*ALIAS, "--", path) == "all there\n"


@pytest.mark.slow
def test_a_program_that_is_run_through_the_alias(program: Program) -> None:
    assert run_successfully(*ALIAS, "--", program(IDENTITIES), "a b", "--", "-x") == "as one 1 ['a b', '--', '-x']\n"
    assert run_successfully(*ALIAS, "--", "-c", "import horovod.torch; print(__name__)") == "__main__\n"


def test_horovods_launcher_as_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # `-m` searches the working directory before the installed packages
    launcher = (*ALIAS, "--", "-m", "horovod.runner.launch")
    assert run_successfully(*launcher, "-np", "2", "--no-prefix", "echo", "hello") == "hello\n" * 2


def test_the_version_and_the_build_as_horovodrun_prints_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    launcher = (*ALIAS, "--", "-m", "horovod.runner.launch")
    assert run_successfully(*launcher, "--version") == "0.28.1\n"
    table = run_successfully(*launcher, "--check-build")
    lines = table.splitlines()
    assert lines[0] == "Horovod v0.28.1:"
    titles = ["Available Frameworks:", "Available Controllers:", "Available Tensor Operations:"]
    assert [line for line in lines[1:] if line.endswith(":")] == titles
    assert re.search(r"^    \[[X ]\] PyTorch$", table, re.MULTILINE)
    assert table.count("    [X] MPI\n") == 2
    assert table.endswith("Gloo\n")


def test_a_job_through_the_alias(program: Program) -> None:
    command = [sys.executable, "-m", "perseus_like.launch", "-np", "2", "--no-prefix", "--as-horovod"]
    assert run_successfully(*command, sys.executable, program(IDENTITIES), "x") == "as one 2 ['x']\n" * 2


def test_the_printed_folder_works_in_pythonpath(program: Program) -> None:
    folder = run_successfully(*ALIAS).strip()
    assert [entry.name for entry in Path(folder).iterdir()] == ["horovod"]
    assert run_successfully(sys.executable, program(IDENTITIES), PYTHONPATH=folder) == "as one 1 []\n"


def test_wrong_usage() -> None:
    for arguments in ([], ["spark"], ["horovod", "script.py"]):
        result = run(sys.executable, "-m", "perseus_like.names", *arguments)
        assert result.returncode == 2
        assert result.stderr.startswith("usage:")


MISSING = {
    "import horovod.spark": ("ModuleNotFoundError", "horovod.spark", "TorchDistributor"),
    "import horovod.ray": ("ModuleNotFoundError", "horovod.ray", "TorchTrainer"),
    "import horovod.torch.nothing.deeper": ("ModuleNotFoundError", "horovod.torch.nothing", "perseus_like.torch."),
    "import horovod.spark.torch.estimator": ("ModuleNotFoundError", "horovod.spark", "TorchDistributor"),
    "from horovod.ray import RayExecutor": ("ModuleNotFoundError", "horovod.ray", "TorchTrainer"),
    "from horovod import spark": ("ImportError", "horovod", "TorchDistributor"),
    "from horovod.runner.launch import _run_static": ("ImportError", "horovod.runner.launch", "_HorovodArgs"),
    "from horovod.torch import nothing": ("ImportError", "horovod.torch", "perseus_like.torch.nothing"),
    "from horovod.torch.mpi_ops import nothing": ("ImportError", "horovod.torch.mpi_ops", "perseus_like.torch.mpi"),
    "import horovod.torch; horovod.torch.nothing": ("AttributeError", "horovod.torch", "perseus_like.torch.nothing"),
    "import perseus.caffe": ("ModuleNotFoundError", "perseus.caffe", "perseus_like.caffe"),
    "from perseus.torch import nothing": ("ImportError", "perseus.torch", "perseus_like.torch.nothing"),
}


def test_errors_name_the_missing_module_and_its_replacement(program: Program) -> None:
    path = program(
        f"""
        import json
        import horovod.torch as hvd
        for statement in {list(MISSING)!r}:
            try:
                exec(statement)
            except Exception as error:
                print(json.dumps([statement, type(error).__name__, str(error)]))
        assert not hasattr(hvd, "nothing") and getattr(hvd, "nothing", 3) == 3
        """
    )
    errors = {
        statement: (kind, text)
        for statement, kind, text in map(json.loads, run_successfully(*ALIAS, "--", path).splitlines())
    }
    assert errors.keys() == MISSING.keys()
    for statement, (kind, theirs, ours) in MISSING.items():
        assert errors[statement][0] == kind
        assert f"'{theirs}" in errors[statement][1], errors[statement]
        assert ours in errors[statement][1], errors[statement]


@pytest.mark.slow
def test_functions_on_ranks_through_the_alias(program: Program) -> None:
    """A script calls horovod.run with a function that imports horovod on the ranks."""
    path = program(
        """
        import horovod
        from horovod.runner import run

        def train(scale):
            import horovod.torch as hvd
            import torch
            hvd.init()
            return hvd.rank(), hvd.allreduce(torch.tensor(scale), op=hvd.Sum).item()

        if __name__ == "__main__":
            assert horovod.run is run
            print(horovod.run(train, args=(2.0,), np=2))
        """
    )
    assert run_successfully(*ALIAS, "--", path) == "[(0, 4.0), (1, 4.0)]\n"
