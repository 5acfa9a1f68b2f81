"""rapidformer (bindings/rapidformer) on two processes, with models and data made here: `make test-rapidformer`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.job import run_to_end, succeeded

ROOT = Path(__file__).parents[2]
BIN = ROOT / ".venv-rapidformer" / "bin"
EXAMPLES = ROOT / "bindings" / "rapidformer" / "examples"
TOKENIZER = ["--tokenizer-type", "BertWordPieceLowerCase", "--vocab-file", "vocab.txt"]
BERT, LLAMA = ["--pretrained-model-name-or-path", "bert"], ["--pretrained-model-name-or-path", "llama"]
STEPS = ["--lr", "1e-3", "--log-interval", "1"]
TEXTS = ["--task", "language_modeling", *LLAMA, *TOKENIZER, "--data-path", "texts", "--seq-length", "16", *STEPS]
CORPUS = ["--data-impl", "mmap", "--split", "90,10", "--micro-batch-size", "2", "--global-batch-size", "8", *STEPS]
BERT_CORPUS = [*BERT, *TOKENIZER, "--data-path", "corpus_text_sentence", "--seq-length", "32", *CORPUS]

Environment = dict[str, str]
Train = Callable[..., dict[str, Any]]
pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not BIN.exists(), reason="there is no .venv-rapidformer; `make test-rapidformer` makes it"),
]


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which all commands run."""
    folder = tmp_path_factory.mktemp("data")
    subprocess.run([sys.executable, Path(__file__).parent / "programs" / "rapidformer_data.py", folder], check=True)
    for level in (["--split-sentences"], ["--append-eod"]):
        words = ["--input", "corpus.jsonl", "--output-prefix", "corpus", *TOKENIZER, *level]
        succeeded(run(folder, [BIN / "python", "-m", "rapidformer.preprocess", *words]))
    return folder


def variables(processes: int) -> Environment:
    foreign = ("PERSEUS", "PYTHONPATH", "RAPIDFORMER", "NNODES", "NODE_RANK", "MASTER", "HF_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    devices = ",".join(map(str, range(processes)))
    made = {"CUDA_VISIBLE_DEVICES": devices, "HF_HUB_OFFLINE": "1"}
    return {**kept, **made, "PATH": f"{BIN}{os.pathsep}{kept['PATH']}"}


def run(folder: Path, command: list[Any], processes: int = 2, **more: str) -> subprocess.CompletedProcess[str]:
    modules = {"HF_MODULES_CACHE": str(folder / "modules")}
    return run_to_end(command, folder, inherited=variables(processes) | modules | more)


@pytest.fixture
def train(data: Path, tmp_path: Path) -> Train:
    """train(*OPTIONS) trains on two processes. Returns losses, metrics and speed."""

    def start(*options: Any, processes: int = 2, launcher: tuple[Any, ...] = (BIN / "rapidformer",)) -> dict[str, Any]:
        file = tmp_path / "result.json"
        file.unlink(missing_ok=True)
        done = succeeded(run(data, [*launcher, *options], processes, RAPIDFORMER_RESULT=str(file)))
        found: dict[str, Any] = json.loads(file.read_text())
        return {**found, "output": done.stdout}

    return start


TASKS = {
    "sequence_classification": (["--data-path", "glue", "--data-name", "mrpc", *BERT], {"accuracy", "f1"}),
    "token_classification": (["--data-path", "tags", *BERT], {"accuracy"}),
    "question_answering": (["--data-path", "squad", *BERT], {"exact_match", "f1_of_tokens"}),
    "language_modeling": (["--data-path", "texts", *BERT], {"loss", "perplexity"}),
}


@pytest.mark.parametrize("task", TASKS)
def test_fine_tuning(train: Train, task: str) -> None:
    """Two processes have the losses of one, because the samples of a step are the same."""
    options, metrics = TASKS[task]
    common = ["--task", task, *options, *TOKENIZER, "--epochs", "4", "--seq-length", "32", *STEPS]
    two = train(*common, "--micro-batch-size", "4", "--global-batch-size", "16")
    assert two["metrics"].keys() == metrics
    assert sum(two["losses"][-3:]) < sum(two["losses"][:3])
    if task == "sequence_classification":  # the mean over tokens depends on how samples are put together
        one = train(*common, "--micro-batch-size", "16", processes=1)
        assert two["losses"] == pytest.approx(one["losses"], rel=1e-4)
        assert two["metrics"] == pytest.approx(one["metrics"])


def test_a_task_is_learned(train: Train) -> None:
    """Words of three are tagged, which a model learns at once."""
    options, _ = TASKS["token_classification"]
    common = ["--task", "token_classification", *options, *TOKENIZER, "--seq-length", "16"]
    found = train(*common, "--epochs", "12", "--lr", "1e-2", "--micro-batch-size", "8")
    assert found["metrics"]["accuracy"] > 0.95


@pytest.fixture(scope="session")
def plain_losses(data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of one process without switches."""
    file = tmp_path_factory.mktemp("plain") / "result.json"
    command = [BIN / "rapidformer", *TEXTS, "--train-iters", "4", "--micro-batch-size", "8"]
    succeeded(run(data, command, 1, RAPIDFORMER_RESULT=str(file)))
    found: list[float] = json.loads(file.read_text())["losses"]
    return found


SWITCHES = {
    "": 1e-4,
    "--zero-1-memory-optimization": 1e-4,
    "--zero-2-memory-optimization": 1e-4,
    "--zero-3-memory-optimization": 1e-4,
    "--fsdp-memory-optimization --checkpoint-activations": 1e-4,
    "--tensor-model-parallel-size 2": 1e-4,
    "--onnx-runtime-training": 1e-4,
    "--mixed-precision": 1e-3,
    "--mixed-precision --fsdp-memory-optimization": 1e-3,
}


@pytest.mark.parametrize("switches", SWITCHES)
def test_switches_do_not_change_the_losses(train: Train, plain_losses: list[float], switches: str) -> None:
    found = train(
        *TEXTS, "--train-iters", "4", "--micro-batch-size", "2", "--global-batch-size", "8", *switches.split()
    )
    assert found["losses"] == pytest.approx(plain_losses, rel=SWITCHES[switches])
    assert ("torch.compile is used" in found["output"]) == ("--onnx-runtime-training" in switches)
    assert ("parameters and optimizer states once per host" in found["output"]) == ("--zero-1" in switches)


def test_launchers(train: Train, plain_losses: list[float]) -> None:
    """The job that mpirun, torchrun or perseusrun starts is the same."""
    options = [*TEXTS, "--train-iters", "4", "--micro-batch-size", "4"]
    program = (BIN / "python", "-m", "rapidformer")
    torchrun = (BIN / "torchrun", "--nproc-per-node", "2", "-m", "rapidformer")
    mpirun = (BIN / "mpirun", "-np", "2", *program)
    perseusrun = (BIN / "perseusrun", "--no-torch", "--no-prefix", "-np", "2", *program)
    for launcher in (mpirun, torchrun, perseusrun):
        assert train(*options, launcher=launcher)["losses"] == pytest.approx(plain_losses, rel=1e-4)


@pytest.mark.parametrize("switches", ["", "--zero-1-memory-optimization", "--zero-3-memory-optimization",
                                      "--tensor-model-parallel-size 2"])  # fmt: skip
def test_a_killed_run_resumes_with_the_same_losses(data: Path, train: Train, tmp_path: Path, switches: str) -> None:
    options = [*TEXTS, "--train-iters", "6", "--micro-batch-size", "4", *switches.split()]
    whole = train(*options)["losses"]
    saving = [*options, "--save", tmp_path / "saved", "--load", tmp_path / "saved", "--save-interval", "2"]
    command = list(map(str, [BIN / "rapidformer", *saving]))
    with subprocess.Popen(command, cwd=data, env=variables(2), stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        for line in killed.stdout:
            if "checkpoint of iteration 2 " in line:
                break
        killed.send_signal(signal.SIGTERM)
        killed.stdout.read()
    (tmp_path / "saved" / "iter_0000004.partial").mkdir(exist_ok=True)  # as if it had been killed while it saved
    resumed = train(*saving)
    assert "continues from" in resumed["output"]
    assert 0 < len(resumed["losses"]) <= 4
    assert resumed["losses"] == pytest.approx(whole[-len(resumed["losses"]) :], rel=1e-6)
    assert (tmp_path / "saved" / "iter_0000006" / "model" / "config.json").exists()


def test_a_saved_model_is_a_model_of_transformers(train: Train, tmp_path: Path) -> None:
    options, _ = TASKS["sequence_classification"]
    task = ["--task", "sequence_classification", *options, *TOKENIZER, "--seq-length", "32", "--micro-batch-size", "4"]
    first = train(*task, "--train-iters", "3", "--fsdp-memory-optimization", "--save", tmp_path)
    model = tmp_path / "iter_0000003" / "model"
    again = [*task, "--train-iters", "1", "--lr", "0", "--pretrained-model-name-or-path", model]
    assert train(*again)["metrics"] == pytest.approx(first["metrics"])


def test_a_checkpoint_of_other_switches_is_refused(data: Path, train: Train, tmp_path: Path) -> None:
    options = [*TEXTS, "--train-iters", "2", "--micro-batch-size", "4"]
    train(*options, "--save", tmp_path)
    done = run(data, [BIN / "rapidformer", *options, "--load", tmp_path, "--zero-3-memory-optimization"])
    assert done.returncode == 2
    assert "is of 2 processes, and this job is 2 processes --zero-3-memory-optimization; start it with" in done.stderr


def test_pretraining(train: Train) -> None:
    options = ["--task", "pretraining", *BERT_CORPUS, "--train-iters", "12", "--num-layers", "3"]
    found = train(*options, "--zero-1-memory-optimization")
    assert sum(found["losses"][-3:]) < sum(found["losses"][:3])
    assert found["losses"][:2] == train(*options, "--train-iters", "2", "--lr-decay-iters", "12")["losses"][:2]
    corpus = [*LLAMA, *TOKENIZER, "--data-path", "corpus_text_document", "--seq-length", "16", *CORPUS]
    found = train("--task", "pretraining", *corpus, "--train-iters", "3", "--tensor-model-parallel-size", "2")
    assert len(found["losses"]) == 3


REFUSED = {
    "--tensor-model-parallel-size 2": (BERT, "has no tp_plan, so --tensor-model-parallel-size 2 cannot divide it"),
    "--seq-length 65": (BERT, "--seq-length 65 is more than the model's 64 positions"),
    "--data-name cola": (BERT, "there is no data set glue cola"),
    "--global-batch-size 96": (BERT, "the training data has 48 samples, less than one step of --global-batch-size 96"),
}


@pytest.mark.parametrize("options", REFUSED)
def test_what_the_model_or_the_data_refuse(data: Path, options: str) -> None:
    """All processes see it before the first step. One line says it."""
    model, text = REFUSED[options]
    task = ["--task", "sequence_classification", *model, *TOKENIZER, "--data-path", "glue", "--data-name", "mrpc"]
    done = run(data, [BIN / "rapidformer", *task, "--epochs", "1", *options.split()])
    assert done.returncode == 2
    said = [line for line in done.stderr.splitlines() if line.startswith("rapidformer: ")]
    assert len(said) == 1, done.stderr
    assert text in said[0]
    assert "Traceback" not in done.stderr


def test_stages_are_needed_for_a_pipeline(data: Path) -> None:
    script = ["--user-script", EXAMPLES / "pretrain_bert.py", *BERT_CORPUS, "--train-iters", "1"]
    done = run(data, [BIN / "rapidformer", *script, "--pipeline-model-parallel-size", "2"])
    assert done.returncode == 2
    assert "MyBertPreTrainer hands over no stages; it must take pre_process and post_process" in done.stderr


def test_the_template_of_fine_tuning(train: Train) -> None:
    task = ["--data-path", "glue", "--data-name", "mrpc", "--epochs", "1", "--seq-length", "32", *STEPS]
    found = train(
        "--user-script", EXAMPLES / "finetune_bert_mrpc.py", *BERT, *TOKENIZER, *task, "--micro-batch-size", "4"
    )
    assert found["metrics"]["count"] == 11  # samples that fill up the last batch are not counted
    assert len(found["losses"]) == 6


def test_the_template_of_pretraining(train: Train) -> None:
    """The template and the built-in task are the same training."""
    script = train("--user-script", EXAMPLES / "pretrain_bert.py", *BERT_CORPUS, "--train-iters", "3")
    task = train("--task", "pretraining", *BERT_CORPUS, "--train-iters", "3")
    assert script["losses"] == pytest.approx(task["losses"], rel=1e-5)


def test_a_pipeline_and_divided_layers(train: Train) -> None:
    """Two stages of two processes each are the same training as two stages of one process each."""
    sizes = [
        "--hidden-size",
        "32",
        "--num-layers",
        "2",
        "--num-attention-heads",
        "4",
        "--max-position-embeddings",
        "16",
    ]
    data = ["--data-path", "corpus_text_document", "--seq-length", "16", "--vocab-size", "40", *CORPUS, *TOKENIZER]
    common = ["--user-script", EXAMPLES / "pretrain_gpt.py", *sizes, *data, "--train-iters", "3"]
    pipeline = [*common, "--pipeline-model-parallel-size", "2"]
    two = train(*pipeline)
    assert train(*pipeline, "--tensor-model-parallel-size", "2", processes=4)["losses"] == pytest.approx(
        two["losses"], rel=1e-4
    )
    assert "a model in stages is not evaluated" in two["output"]
    assert len(train(*common)["losses"]) == 3


def test_a_loop_of_a_users_own(data: Path) -> None:
    """The loss is the mean over both processes, and the parts of the optimizer's state are steps of one optimizer."""
    task = ["--data-path", "glue", "--data-name", "mrpc", "--epochs", "2", "--seq-length", "32", *STEPS]
    losses = []
    for switches in ([], ["--zero-1-memory-optimization"], ["--fsdp-memory-optimization"]):
        command = ["--user-script", EXAMPLES / "loop_bert_mrpc.py", *BERT, *TOKENIZER, *task, "--micro-batch-size", "4"]
        done = succeeded(run(data, [BIN / "rapidformer", *command, *switches]))
        losses.append(
            [float(line.rpartition(" ")[2]) for line in done.stdout.splitlines() if line.startswith("epoch ")]
        )
    assert len(losses[0]) == 2
    assert losses[1] == pytest.approx(losses[0], abs=2e-6)
    assert losses[2] == pytest.approx(losses[0], abs=2e-6)


def test_an_optimizer_without_a_kernel_is_sharded_by_torch(data: Path, tmp_path: Path) -> None:
    """The losses are those without the switch, and a line says why parameters are not shared."""
    script = tmp_path / "loop.py"
    example = (EXAMPLES / "loop_bert_mrpc.py").read_text()
    script.write_text(example.replace("torch.optim.AdamW", "torch.optim.Adafactor"))
    task = ["--data-path", "glue", "--data-name", "mrpc", "--epochs", "1", "--seq-length", "32", *STEPS]
    command = [BIN / "rapidformer", "--user-script", script, *BERT, *TOKENIZER, *task, "--micro-batch-size", "4"]
    plain, sharded = (run(data, [*command, *switches]) for switches in ([], ["--zero-1-memory-optimization"]))
    assert plain.returncode == sharded.returncode == 0, plain.stderr + sharded.stderr
    losses = [[line for line in done.stdout.splitlines() if line.startswith("epoch ")] for done in (plain, sharded)]
    assert len(losses[0]) == 1
    assert losses[0] == losses[1]
    assert "torch's ZeroRedundancyOptimizer, because ZeroRedundancyOptimizer cannot shard Adafactor" in sharded.stdout


def test_bench_prints_a_table(data: Path) -> None:
    common = [*TEXTS, "--train-iters", "3", "--micro-batch-size", "4"]
    done = run(data, [BIN / "rapidformer", "bench", *common, "--compare", "", "--zero-1-memory-optimization"])
    assert done.returncode == 0, done.stderr
    head, _, first, second = done.stdout.splitlines()
    assert head == "| switches | samples/s | speed-up | peak memory of a process | last loss |"
    assert first.startswith("| (none) | ")
    assert " | 1.00× | " in first
    assert second.startswith("| --zero-1-memory-optimization | ")
    assert second.split("|")[5] == first.split("|")[5]


def test_the_benchmark_of_text_classification(tmp_path: Path) -> None:
    """All contenders have equal losses, which the benchmark itself checks."""
    command = [BIN / "python", "-m", "benchmarks.text_classification", "--quick", "--output", tmp_path]
    succeeded(run(ROOT, command))
    found = json.loads((tmp_path / "text_classification.json").read_text())
    contenders = ["one process", "DDP over gloo", "DDP over perseus", "our DDP", "hvd.DistributedOptimizer"]
    assert list(found["rows"][0]["contenders"]) == contenders
    assert found["facts"]["losses"] == "equal for all contenders, in each of 2 steps"
    assert all("samples/s, accuracy " in found["facts"][name] for name in contenders)
    assert (tmp_path / "text_classification.png").exists()


def test_old_arguments_of_the_trainer(tmp_path: Path) -> None:
    """A command of Intel's older pages. Rank 0 says what replaces each argument and what has no effect."""
    script = Path(__file__).parent / "programs" / "huggingface.py"
    new = ["--output_dir", "out", "--max_steps", "2", "--report_to", "none", "--save_strategy", "no"]
    old = ["--no_cuda", "True", "--xpu_backend", "ccl", "--overwrite_output_dir"]
    command = [BIN / "mpirun", "-np", "2", BIN / "python", "-m", "perseus_like.torch.run", script, *new, *old]
    done = succeeded(run(tmp_path, command, KMP_AFFINITY="compact"))
    assert done.stdout.count("RESULT perseus of 2 steps 2 ") == 2
    notes = [line for line in done.stderr.splitlines() if line.startswith("perseus_like.torch.run: ")]
    assert [note.split()[1].rstrip(":") for note in notes] == [
        *("KMP_AFFINITY", "--no_cuda", "--xpu_backend", "--overwrite_output_dir"),
    ]
