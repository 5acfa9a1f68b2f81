"""Runs short forms of the PyTorch examples."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch

from tests.job import run_to_end, succeeded

Example = Callable[..., CompletedProcess[str]]
ROOT = Path(__file__).parents[2]
DIGITS = "pytorch/digits.py"


@pytest.mark.slow
def test_digits_learns(run_example: Example) -> None:
    done = succeeded(run_example(DIGITS))
    assert "2 ranks, test accuracy" in done.stdout.splitlines()[-1]
    assert accuracies(done.stdout)[-1] >= 97


@pytest.fixture
def comparison(tmp_path: Path) -> str:
    """Copies the examples to the working directory, and returns the name of the module that `make demo` runs."""
    shutil.copytree(ROOT / "examples/pytorch", tmp_path / "examples/pytorch")
    return "examples.pytorch.digits_compared"


@pytest.mark.slow
def test_the_comparison_says_what_was_measured(tmp_path: Path, comparison: str) -> None:
    launcher = [sys.executable, "-m", "perseus_like.launch", "--no-prefix", "-np", 2, "-m", comparison]
    small = ["--epochs", 2, "--width", 8, "--target", 0]
    done = succeeded(run_to_end([*launcher, *small], tmp_path))
    assert len(accuracies(done.stdout)) == 2
    accuracy, times, words = done.stdout.splitlines()[-3:]
    assert "2 ranks, test accuracy" in accuracy
    assert re.search(r"parameters differ by at most \S+, allowed 1e-04$", times)
    fast = r"\d+\.\d times as fast as "
    threads = rf", {fast}one process with 2 threads" if len(os.sched_getaffinity(0)) > 1 else ""
    assert re.fullmatch(
        rf"2 ranks with 1 thread each: {fast}one process, {fast}torch's DDP over gloo{threads}, same weights", words
    )


def test_the_words_are_right_whatever_was_measured(tmp_path: Path, comparison: str) -> None:
    program = f"""
from {comparison} import in_words
seconds = {{"ranks": 2.0, "one process": 1.8, "torch's DDP over gloo": 3.0}}
print(in_words(2, 1, seconds, 1e-7))
print(in_words(3, 4, seconds, 0.5))
"""
    done = run_to_end([sys.executable, "-c", program], tmp_path)
    measured = "0.9 times as fast as one process, 1.5 times as fast as torch's DDP over gloo"
    assert done.stdout.splitlines() == [
        f"2 ranks with 1 thread each: {measured}, same weights",
        f"3 ranks with 4 threads each: {measured}, but weights differ by 5e-01: FAILED",
    ], done.stderr


@pytest.mark.slow
def test_digits_fails_below_its_target(run_example: Example) -> None:
    done = run_example(DIGITS, "--epochs", 1, "--target", 0.999)
    assert done.returncode == 1
    assert "FAILED" in done.stdout


@pytest.mark.slow
def test_digits_shows_progress_on_rank_0_only(run_example: Example) -> None:
    done = succeeded(run_example(DIGITS, "--epochs", 1, "--target", 0))
    assert len(accuracies(done.stdout)) == 1
    # 2 ranks with 16 images per step each need 45 steps for 1440 images.
    assert done.stderr.count("| 0/45 [") == 1, done.stderr


@pytest.mark.slow
def test_digits_resumed_gives_the_same_weights_as_without_interruption(run_example: Example, tmp_path: Path) -> None:
    straight, resumed = tmp_path / "straight.pt", tmp_path / "resumed.pt"
    for epochs, path in ((3, straight), (1, resumed), (3, resumed)):
        done = succeeded(run_example(DIGITS, "--epochs", epochs, "--target", 0, "--checkpoint", path))
    assert f"resuming from {resumed} after 1 epochs" in done.stdout
    assert len(accuracies(done.stdout)) == 2
    one, other = (torch.load(path, weights_only=True) for path in (straight, resumed))
    assert one["epochs"] == other["epochs"] == 3
    for name, values in one["model"].items():
        torch.testing.assert_close(other["model"][name], values, rtol=0, atol=0)
    assert sorted(tmp_path.iterdir()) == sorted([straight, resumed]), "an unfinished checkpoint was left"


@pytest.mark.slow
def test_digits_resumes_on_another_number_of_ranks(run_example: Example, tmp_path: Path) -> None:
    path = tmp_path / "digits.pt"
    for ranks, epochs in ((1, 1), (3, 2)):
        done = succeeded(run_example(DIGITS, "--epochs", epochs, "--target", 0, "--checkpoint", path, ranks=ranks))
    assert "after 1 epochs" in done.stdout


@pytest.mark.slow
def test_imagenet_with_the_arguments_of_one_process(run_example: Example, tmp_path: Path) -> None:
    single = ["--world-size", 1, "--rank", 0, "--dist-url", "tcp://127.0.0.1:88", "--dist-backend", "nccl"]
    for epochs in (1, 2):
        short = ["--images", 256, "--epochs", epochs, "--resume", tmp_path / "checkpoint.pt", "--target", 90]
        done = succeeded(run_example("pytorch/imagenet_perseus.py", *single, *short))
        assert f"Epoch [{epochs}] Acc@1" in done.stdout
        assert "on 2 ranks" in done.stdout
    assert "Epoch [1]" not in done.stdout


@pytest.mark.slow
def test_character_model_learns(run_example: Example) -> None:
    done = succeeded(run_example("pytorch/character_model.py", "--steps", 60, "--compression", "bf16"))
    bits = [float(found) for found in re.findall(r"step \d+: ([\d.]+) bits per character", done.stdout)]
    assert len(bits) == 2
    assert bits[1] < bits[0] < 5  # guessing among 96 symbols takes 6.6 bits
    assert "def " in done.stdout


@pytest.mark.slow
def test_synthetic_benchmark_counts_images_of_all_ranks(run_example: Example) -> None:
    short = ["--batch-size", 2, "--image-size", 32, "--batches-per-iteration", 1, "--iterations", 2]
    for model in ("resnet", "mlp"):
        done = succeeded(run_example("pytorch/synthetic_benchmark.py", "--model", model, *short))
        assert done.stdout.count("Iter #") == 2
        each = re.search(r"Img/sec per CPU: ([\d.]+)", done.stdout)
        total = re.search(r"Total img/sec on 2 CPU\(s\): ([\d.]+)", done.stdout)
        assert each is not None
        assert total is not None
        assert float(total[1]) > float(each[1]) > 0


SMALL_RESNET = [
    *["--depth", 18, "--width", 8, "--image-size", 32, "--classes", 4, "--train-images", 128, "--test-images", 33],
    *["--base-lr", 0.05, "--warmup-epochs", 1],
]


@pytest.mark.slow
def test_resnet_learns(run_example: Example) -> None:
    done = run_example("pytorch/imagenet_resnet.py", *SMALL_RESNET, "--batch-size", 16, "--epochs", 3, "--target", 0.4)
    assert done.returncode == 0, done.stdout + done.stderr
    losses = [float(found) for found in re.findall(r"loss ([\d.]+)", done.stdout)]
    assert losses[-1] < losses[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        [
            *["--sync-batch-norm", "all", "--batches-per-allreduce", 3, "--bf16", "--channels-last", "--clip", 1],
            *["--label-smoothing", 0.1, "--compression", "bf16", "--groups", 3, "--gradient-predivide-factor", 2],
            *["--checkpoint-activations"],
        ],
        ["--adasum", "--depth", 50, "--workers", 1, "--sync-batch-norm", "host", "--no-cuda"],
        ["--compression", "top_k", "--compile", "eager"],
    ],
    ids=["many", "adasum", "compiled"],
)
def test_resnet_with_other_options(options: list[object], run_example: Example) -> None:
    done = run_example("pytorch/imagenet_resnet.py", *SMALL_RESNET, "--batch-size", 8, "--epochs", 1, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "epoch 1: loss" in done.stdout


@pytest.mark.slow
def test_resnet_resumes(run_example: Example, tmp_path: Path) -> None:
    for epochs in (1, 2):
        more = ["--batch-size", 16, "--epochs", epochs, "--checkpoints", tmp_path]
        done = succeeded(run_example("pytorch/imagenet_resnet.py", *SMALL_RESNET, *more))
        assert re.findall(r"epoch (\d+)", done.stdout) == [str(epochs)]
    assert [path.name for path in tmp_path.iterdir()] == ["last.pt"]


@pytest.mark.slow
def test_teams_on_process_sets_vote(run_example: Example) -> None:
    done = succeeded(run_example("pytorch/process_sets.py", "--epochs", 4, ranks=3))
    assert "team 0, ranks [0]" in done.stdout
    assert "team 1, ranks [1, 2]" in done.stdout
    assert "3 ranks in 2 teams, the vote: 9" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "ranks", "line"),
    [
        ("pytorch/partial_fc.py", 3, "333 of 1000 classes on rank 0"),
        ("pytorch/tensor_and_data_parallel.py", 4, "2 times 2 ranks"),
    ],
)
def test_divided_models_train_as_one_process(run_example: Example, example: str, ranks: int, line: str) -> None:
    losses = []
    for number in (1, ranks):
        # The batch of 36 images is divisible by all of these numbers of ranks.
        done = succeeded(run_example(example, "--epochs", 3, "--batch-size", 36, "--target", 0, ranks=number))
        losses.append(losses_of(done.stdout))
    assert line in done.stdout
    assert losses[0][-1] < losses[0][0]
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)


@pytest.mark.slow
def test_torchs_own_data_parallelism_over_the_backend(run_example: Example) -> None:
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6):
        pytest.skip("FSDP2 is in torch 2.6 or later")
    losses, kept = [], []
    for by, ranks in (("ddp", 1), ("ddp", 2), ("fsdp", 2)):
        done = run_example("pytorch/distributed_backend.py", "--by", by, "--epochs", 3, "--target", 0.8, ranks=ranks)
        assert done.returncode == 0, done.stdout + done.stderr
        losses.append(losses_of(done.stdout))
        kept += [int(found) for found in re.findall(r"(\d+) numbers of optimizer state", done.stdout)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)
    assert losses[2] == pytest.approx(losses[0], rel=1e-2)
    assert kept[0] == kept[1] == 2 * kept[2]


@pytest.mark.slow
def test_gan_learns_to_draw_points_near_the_real_ones(run_example: Example) -> None:
    done = succeeded(run_example("pytorch/gan.py", "--steps", 750))
    shares = [int(share) for share in re.findall(r"(\d+)% of the points", done.stdout)]
    assert len(shares) == 3
    assert shares[0] < shares[-1]


def losses_of(output: str) -> list[float]:
    found = [float(loss) for loss in re.findall(r"^epoch \d+: loss ([\d.]+)", output, re.MULTILINE)]
    assert len(found) == 3, output
    return found


def accuracies(output: str) -> list[float]:
    return [float(found) for found in re.findall(r"^epoch \d+: test accuracy ([\d.]+)%", output, re.MULTILINE)]
