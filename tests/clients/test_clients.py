"""Runs small programs of other projects over the backend perseus, or over the name horovod (`make test-clients`)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.job import run_to_end, succeeded

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
TRAINER = ["--output_dir", "out", "--use_cpu", "--max_steps", "6", "--report_to", "none", "--save_strategy", "no"]

Run = Callable[..., list[str]]
pytestmark = pytest.mark.timeout(900)  # DeepSpeed takes seconds to be imported, once for every rank and stage


@pytest.fixture
def bin_of() -> Callable[[str], Path]:
    def find(name: str) -> Path:
        folder = ROOT / f".venv-{name}" / "bin"
        if not (folder / "python").exists():
            pytest.skip(f"there is no .venv-{name}; `make test-clients` makes it")
        return folder

    return find


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Returns a function that runs a command to its end and returns what its ranks print after the word RESULT."""

    def start(*command: object, **variables: str) -> list[str]:
        foreign = ("PERSEUS", "PYTHONPATH")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        environment |= {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0"}
        done = succeeded(run_to_end(command, tmp_path, inherited=environment | variables))
        # Some launchers join lines of two ranks.
        return re.findall(r"RESULT (.+?)(?=RESULT|$)", done.stdout, re.MULTILINE)

    return start


def number(result: str) -> float:
    return float(result.rpartition(" ")[2])


def perseusrun(folder: Path) -> list[object]:
    return [folder / "perseusrun", "--no-prefix", "-np", 2]


def test_trainer_under_each_launcher(bin_of: Callable[[str], Path], run: Run) -> None:
    """An unchanged script trains under each launcher, and gets the same parameters as over gloo."""
    folder = bin_of("clients")
    script = [PROGRAMS / "huggingface.py", *TRAINER]
    python = folder / "python"
    over_gloo = run(*perseusrun(folder), "--no-torch", python, *script)
    assert all(each.startswith("gloo of 2") for each in over_gloo)
    runner = [python, "-m", "perseus_like.torch.run"]
    for command in ([*perseusrun(folder), python], [folder / "mpirun", "-np", 2, *runner]):
        results = run(*command, *script)
        assert len(results) == 2
        for result in results:
            assert result.startswith("perseus of 2 steps 6 "), result
            assert number(result) == pytest.approx(number(over_gloo[0]), rel=1e-7)


def test_trainer_that_says_gloo(bin_of: Callable[[str], Path], run: Run) -> None:
    """The Trainer itself asks for gloo, and gets groups of perseus."""
    folder = bin_of("clients")
    script = [PROGRAMS / "huggingface.py", *TRAINER]
    over_gloo = run(*perseusrun(folder), "--no-torch", folder / "python", *script)
    torchrun = [folder / "python", "-m", "torch.distributed.run", "--nproc-per-node", 2]
    for command in ([*perseusrun(folder), "--as-gloo", folder / "python"], torchrun):
        results = run(*command, *script, PERSEUS_AS_GLOO="1")
        assert len(results) == 2
        for result in results:
            assert result.startswith("gloo of 2 steps 6 "), result
            assert "PerseusGroup" in result
            assert number(result) == pytest.approx(number(over_gloo[0]), rel=1e-7)


def test_programs_that_name_gloo_have_the_same_weights(bin_of: Callable[[str], Path]) -> None:
    """DDP, the Trainer, accelerate, DeepSpeed, Lightning and Ray run over gloo and over this library."""
    command: list[str | Path] = [bin_of("clients") / "python", "-m", "benchmarks.clients", "--rounds", "1"]
    done = succeeded(run_to_end(command, ROOT))
    assert len(re.findall(r"(?m)^\| .* \| [\d.]+ ms \| [\d.]+ ms \|", done.stdout)) == 6, done.stdout


def test_a_llama_is_divided_among_ranks(bin_of: Callable[[str], Path], run: Run, tmp_path: Path) -> None:
    """transformers divides the model by its `tp_plan`, and the tokens are those of one process."""
    python = bin_of("clients") / "python"
    program = [PROGRAMS / "llama_generate.py", tmp_path / "model"]
    (alone,) = run(python, *program)
    whole, tokens = re.match(r"one process: (\d+) parameters, (.*)", alone).groups()  # type: ignore[union-attr]
    for size in (2, 4):
        launcher = [python.with_name("perseusrun"), "--no-prefix", "-np", size, "--as-gloo"]
        results = run(*launcher, python, *program)
        assert len(results) == size
        for result in results:
            assert result.startswith("gloo ")
            assert "PerseusGroup" in result
            assert result.endswith(tokens)
            found = re.search(r"(\d+) parameters", result)
            assert found is not None
            assert int(found[1]) < int(whole) * 1.01 / size + 1000, "each rank has its part only"


def test_vllm(bin_of: Callable[[str], Path], run: Run, tmp_path: Path) -> None:
    """The tokens are those of one process, on 2 ranks and on more ranks than this machine has cores."""
    program = [bin_of("vllm") / "python", PROGRAMS / "vllm_generate.py", tmp_path / "model"]
    (alone,) = run(*program, 1)
    tokens = alone.removeprefix("['NoneType']: ")
    assert len(tokens.split()) == 24
    for ranks in (2, 4):
        (divided,) = run(*program, ranks, VLLM_PLUGINS="perseus")
        assert divided == f"{['PerseusCommunicator'] * ranks}: {tokens}"


@pytest.mark.parametrize("size", [2, 4])
def test_sglang(size: int, bin_of: Callable[[str], Path], run: Run) -> None:
    """The groups of sglang have the results of gloo, and add by this library if the plugin is chosen."""
    torchrun = [bin_of("sglang") / "python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", size]
    over_gloo = run(*torchrun, PROGRAMS / "sglang_groups.py", SGLANG_PLUGINS="none")
    results = run(*torchrun, PROGRAMS / "sglang_groups.py", SGLANG_PLUGINS="perseus")
    assert len(results) == len(over_gloo) == size
    assert all(each.startswith("GroupCoordinator ") for each in over_gloo)
    assert results == ["Perseus" + each for each in over_gloo]


def test_deepspeed(bin_of: Callable[[str], Path], run: Run) -> None:
    """Training gives the same result with each stage of ZeRO."""
    folder = bin_of("clients")
    results = [
        result
        for stage in (1, 2, 3)
        for result in run(*perseusrun(folder), folder / "python", PROGRAMS / "deepspeed_zero.py", stage)
    ]
    assert len(results) == 6
    assert all(result.startswith("perseus of 2") for result in results)
    assert [number(result) for result in results] == pytest.approx([number(results[0])] * 6, rel=1e-5)


def test_lightning(bin_of: Callable[[str], Path], run: Run) -> None:
    results = run(bin_of("clients") / "python", PROGRAMS / "lightning_ddp.py")
    assert len(results) == 2
    assert len(set(results)) == 1
    assert results[0].startswith("perseus of 2")


def test_ray(bin_of: Callable[[str], Path], run: Run) -> None:
    assert run(bin_of("clients") / "python", PROGRAMS / "ray_train.py")[0].startswith("perseus of 2")


def test_keras_on_torch(bin_of: Callable[[str], Path], run: Run) -> None:
    folder = bin_of("clients")
    results = run(*perseusrun(folder), folder / "python", PROGRAMS / "keras_torch.py")
    assert len(results) == 2
    assert len(set(results)) == 1
    assert results[0].startswith("perseus of 2")


def horovodrun(folder: Path) -> list[object]:
    return [folder / "horovodrun", "--no-prefix", "-np", 2]


def test_ignite(bin_of: Callable[[str], Path], run: Run) -> None:
    """Training gives the same result if horovodrun starts the ranks and if ignite does, which calls horovod.run."""
    folder = bin_of("horovod")
    program = [folder / "python", PROGRAMS / "ignite_horovod.py"]
    results = run(*horovodrun(folder), *program) + run(*program, "spawn")
    assert len(results) == 4
    assert len(set(results)) == 1
    assert results[0].startswith("horovod of 2")


def test_deepmd_kit(bin_of: Callable[[str], Path], run: Run, tmp_path: Path) -> None:
    folder = bin_of("horovod")
    run(folder / "python", PROGRAMS / "deepmd_data.py")
    train = [folder / "python", PROGRAMS / "deepmd_train.py", "--tf", "train"]
    first, second = run(*horovodrun(folder), *train, "input.json")
    assert first == second
    assert first.startswith("2 ranks, ")
    run(*horovodrun(folder), folder / "dp", "--tf", "train", "--restart", "model.ckpt", "longer.json")
    last = (tmp_path / "lcurve.out").read_text().splitlines()[-1]
    assert last.split()[0] == "30"
    run(*horovodrun(folder), folder / "dp", "--tf", "freeze", "-o", "model.pb")
    assert (tmp_path / "model.pb").stat().st_size > 10_000


def test_the_commands_in_intels_documentation(bin_of: Callable[[str], Path], run: Run, tmp_path: Path) -> None:
    folder = bin_of("ccl")
    (tmp_path / "hostfile").write_text("localhost\n")
    find = "$(python -c 'from oneccl_bindings_for_pytorch import cwd; print(cwd)')"
    script = " ".join(map(str, [PROGRAMS / "huggingface.py", *TRAINER]))
    command = f"""
        set -e
        . {find}/env/setvars.sh
        mpirun -f hostfile -n 4 -ppn 2 -genv OMP_NUM_THREADS=1 python {script} --ddp_backend ccl
        """
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    results = run("bash", "-c", command, PATH=path, MASTER_ADDR="127.0.0.1")
    assert len(results) == 4
    assert len(set(results)) == 1
    assert results[0].startswith("ccl of 4 steps 6 ")
    assert run(folder / "python", "-c", "import torch_ccl; print('RESULT', torch_ccl.__version__)") == ["2.8.0+perseus"]


@pytest.mark.skipif("RUN_GLUE" not in os.environ, reason="RUN_GLUE is not the path of transformers' run_glue.py")
def test_run_glue_unmodified(bin_of: Callable[[str], Path]) -> None:
    """The benchmark compares the loss of two processes with that of one."""
    small = ["--size", "micro", "--samples", "64", "--rounds", "1", "--counts", "2"]
    python = str(bin_of("ccl") / "python")
    command = [python, "-m", "benchmarks.text_classification", "--script", os.environ["RUN_GLUE"], *small]
    done = succeeded(run_to_end(command, ROOT))
    assert done.stdout.splitlines()[-1].startswith("| 2 | ")
