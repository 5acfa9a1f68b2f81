"""rapidformer's command line, checks and schedule, which need neither transformers nor a job."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from perseus_like.launch.program import module_command
from tests.job import run_to_end

FOLDER = Path(__file__).parents[2] / "bindings" / "rapidformer"
MODEL = ["--pretrained-model-name-or-path", "bert"]
TASK = ["--task", "sequence_classification", *MODEL, "--data-path", "glue", "--epochs", "1"]
PRETRAINING = ["--task", "pretraining", *MODEL, "--data-path", "corpus", "--data-impl", "mmap", "--seq-length", "16"]

Said = Callable[..., str]


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Said:
    """said(*ARGUMENTS) is the line with which the command refuses. Model, data and script exist, and are empty."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    for name in ("bert", "glue"):
        (tmp_path / name).mkdir()
    for name in ("corpus.bin", "corpus.idx", "script.py", "vocab.txt"):
        (tmp_path / name).touch()

    def run(*arguments: str) -> str:
        from rapidformer.__main__ import main

        assert main(arguments) == 2
        out, error = capsys.readouterr()
        assert out == ""
        assert error.startswith("rapidformer: ")
        assert error.count("\n") == 1
        return error.removeprefix("rapidformer: ").rstrip("\n")

    return run


WRONG: list[tuple[list[str], str]] = [
    ([], "give one of --task and --user-script"),
    ([*TASK, "--user-script", "script.py"], "give one of --task and --user-script"),
    (["--task", "translation"], "argument --task: invalid choice: 'translation'"),
    ([*TASK, "--fp16"], "unrecognized arguments: --fp16; `rapidformer --help` lists the options"),
    ([*TASK, "--lr", "fast"], "argument --lr: invalid float value: 'fast'"),
    ([*TASK, "--zero-1-memory-optimization", "--fsdp-memory-optimization"],
     "--zero-1-memory-optimization and --fsdp-memory-optimization exclude each other; give one of them"),
    ([*TASK, "--zero-3-memory-optimization", "--tensor-model-parallel-size", "2"],
     "--zero-3-memory-optimization and --tensor-model-parallel-size exclude each other; give one of them"),
    ([*TASK, "--onnx-runtime-training", "--tensor-model-parallel-size", "2"],
     "--onnx-runtime-training does not compile a model that processes divide; leave it out"),
    ([*TASK, "--tensor-model-parallel-size", "3"],
     "--tensor-model-parallel-size 3 times --pipeline-model-parallel-size 1; start a multiple of 3"),
    ([*TASK, "--pipeline-model-parallel-size", "2"], "needs a model in stages, and --task"),
    (["--user-script", "script.py", "--pipeline-model-parallel-size", "2", "--num-layers", "3"],
     "--num-layers 3 is not a multiple of --pipeline-model-parallel-size 2"),
    ([*TASK, "--micro-batch-size", "8", "--global-batch-size", "24"],
     "--global-batch-size 24 is not a multiple of --micro-batch-size 8 times 2 data-parallel processes, which is 16"),
    ([*TASK, "--micro-batch-size", "0"], "--micro-batch-size 0 is less than 1"),
    ([*TASK, "--train-iters", "5"], "--epochs and --train-iters exclude each other; give one of them"),
    ([*TASK, "--lr-warmup-iters", "5", "--lr-warmup-fraction", "0.1"],
     "--lr-warmup-iters and --lr-warmup-fraction exclude each other; give one of them"),
    ([*TASK, "--lr", "1e-3", "--min-lr", "1e-2"], "--min-lr 0.01 is more than --lr 0.001"),
    ([*TASK, "--hidden-size", "30", "--num-attention-heads", "4"],
     "--hidden-size 30 is not a multiple of --num-attention-heads 4"),
    ([*TASK, "--data-impl", "mmap"], "--data-impl mmap is for --task pretraining"),
    ([*TASK, "--data-path", "./mrpc"], "there is no data set ./mrpc (--data-path)"),
    ([*TASK, "--vocab-file", "words.txt"], "there is no file words.txt (--vocab-file)"),
    ([*TASK, "--load", "saved"], "there is no folder saved (--load)"),
    (["--user-script", "train.py"], "there is no file train.py (--user-script)"),
    (["--task", "pretraining", *MODEL], "--task pretraining needs --data-path"),
    (PRETRAINING, "--task pretraining needs --train-iters"),
    ([*PRETRAINING, "--train-iters", "5", "--data-path", "books"],
     "there is no file books.idx (--data-path is the name without .bin and .idx); `python -m rapidformer.preprocess`"),
    ([*PRETRAINING, "--train-iters", "5", "--split", "0,1"],
     "--split 0,1 is not one to three numbers with commas, for example 980,20"),
    ([*PRETRAINING, "--train-iters", "5", "--max-position-embeddings", "8"],
     "--seq-length 16 is more than --max-position-embeddings 8"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "text"), WRONG, ids=[text for _, text in WRONG])
def test_wrong_input_is_one_line_before_anything_starts(said: Said, arguments: list[str], text: str) -> None:
    assert text in said(*arguments)


def test_wrong_variables_are_one_line(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNODES", "two")
    assert said(*TASK) == "the variable NNODES is 'two', not a number"
    monkeypatch.setenv("NNODES", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert said(*TASK) == "NNODES is 2, so MASTER_ADDR must name the first host"


def test_bench_checks_all_sets_of_switches_first(said: Said) -> None:
    text = said("bench", *TASK, "--compare", "", "--zero-1-memory-optimization --zero-2-memory-optimization")
    assert text.startswith("with the switches '--zero-1-memory-optimization --zero-2-memory-optimization': ")
    assert said("bench", *TASK).startswith("bench needs --compare and sets of switches")
    assert said("bench", *TASK, "--compare", "--fp16").startswith("bench: unknown options --fp16")


def test_the_commands_without_transformers(tmp_path: Path) -> None:
    """`--help` and the check of files work before anything heavy is imported."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_to_end([sys.executable, "-m", *arguments], PYTHONPATH=str(FOLDER))

    said = run("rapidformer", "--help").stdout
    for switch in ("--task", "--fsdp-memory-optimization", "--pipeline-model-parallel-size", "--lr-decay-style"):
        assert switch in said
    words = ["--output-prefix", "out", "--tokenizer-type", "BertWordPieceLowerCase", "--vocab-file", "vocab.txt"]
    done = run("rapidformer.preprocess", "--input", "texts.jsonl", *words)
    assert (done.returncode, done.stderr) == (2, "rapidformer.preprocess: there is no file texts.jsonl (--input)\n")


@pytest.fixture
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.mark.usefixtures("on_path")
def test_the_command_that_starts_the_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from rapidformer import launch

    monkeypatch.setattr(launch, "NVIDIA", tmp_path / "no driver")
    one_host = launch.command(["--lr", "1"], {"CUDA_VISIBLE_DEVICES": "0,1,2"})
    assert one_host[1:] == [
        *(*module_command("perseus_like.launch")[1:], "--no-torch", "--no-prefix", "-np", "3"),
        *(*module_command("rapidformer.__main__"), "--lr", "1"),
    ]
    several = {"CUDA_VISIBLE_DEVICES": "0", "NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "7"}
    said = " ".join(launch.command([], several))
    assert said.endswith(
        " torch.distributed.run --nnodes 2 --nproc-per-node 1 --node-rank 1 --master-addr a --master-port 7 "
        + " ".join(module_command("rapidformer.__main__")[1:])
    )
    assert launch.job_size(several) == 2


@pytest.mark.usefixtures("on_path")
@pytest.mark.parametrize(
    ("options", "rates"),
    [
        ("--lr-warmup-iters 2 --lr-decay-iters 6", [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]),
        ("--lr-decay-style constant", [1.0] * 8),
        ("--lr-decay-style cosine --min-lr 0.5", [1.0, 0.9810, 0.9268, 0.8457, 0.75, 0.6543, 0.5732, 0.5190]),
        ("--lr-warmup-fraction 0.5", [0.25, 0.5, 0.75, 1.0, 1.0, 0.75, 0.5, 0.25]),
    ],
)
def test_the_learning_rate(options: str, rates: list[float]) -> None:
    from rapidformer import options as table

    share = table.learning_rates(table.parse(["--lr", "1", *options.split()]), 8)
    assert [share(iteration) for iteration in range(8)] == pytest.approx(rates, abs=1e-4)


@pytest.mark.usefixtures("on_path")
def test_labels_of_words_and_answers() -> None:
    """Tokens of one word share a label, which the first one has. An answer that is cut off is at token 0."""
    from rapidformer import finetuning_data as data

    assert data.labels_of([None, 0, 0, 1, None], [7, 8]) == [-100, 7, -100, 8, -100]
    # [CLS] q [SEP] the red cat [SEP]
    offsets, sequences = [(0, 0), (0, 1), (0, 0), (0, 3), (4, 7), (8, 11), (0, 0)], [None, 0, None, 1, 1, 1, None]
    assert data.span_of(offsets, sequences, 4, 11) == (4, 5)
    assert data.span_of(offsets, sequences, 8, 14) == (0, 0)
    assert data.span_of(offsets, sequences, -1, -1) == (0, 0)
