"""The speed-up of transformers' run_glue.py over processes and hosts, as Intel's and Optimum's pages show it.

    .venv-ccl/bin/python -m benchmarks.run_glue run_glue.py             # 1, 2 and 4 processes of one host
    .venv-ccl/bin/python -m benchmarks.run_glue run_glue.py --hosts     # 1, 2 and 4 hosts; as root

`make test-clients` makes the environment. run_glue.py is examples/pytorch/text-classification/run_glue.py of a release
of transformers that the installed one (4.56) accepts, unmodified: commit 242e7fc66cfc has been run. Its command line
is the one of those pages, with `--ddp_backend ccl` for this library and `--ddp_backend gloo` for gloo, in turns.

The model is made from a config without dropout, and the data are sentences made from a seed, so no network is needed.
Each process computes on one thread. Every number of processes trains one epoch on the same global batches, so all have
the same loss afterwards, which is checked. The hosts are network namespaces of this machine, so they share its cores.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent))
from tests.hosts.links import Links, why_unsupported
from tests.hosts.network_test_bed import NetworkTestBed

from .text_classification import FIRST, SIZES, Data

ONE, GLOO, OURS = "one process", "gloo", "perseus"
BACKENDS = {GLOO: "gloo", OURS: "ccl"}
SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
LENGTH, BATCH = 128, 32  # BATCH samples for all processes together
TIMEOUT = 1200.0
# run_glue.py loads this metric by its name, which is then a path in the working folder.
METRIC = """
import datasets
import evaluate

class Accuracy(evaluate.Metric):
    def _info(self):
        features = datasets.Features({"predictions": datasets.Value("int32"), "references": datasets.Value("int32")})
        return evaluate.MetricInfo(description="accuracy", citation="", features=features)

    def _compute(self, predictions, references):
        return {"accuracy": sum(a == b for a, b in zip(predictions, references)) / len(references)}
"""


@dataclass(frozen=True)
class Trained:
    seconds: float
    loss: float  # on the validation data, after the epoch. The Trainer's loss in training is that of rank 0 alone.


def sentences(data: Data) -> Iterator[dict[str, Any]]:
    """Writes the pairs of token numbers as words, which the tokenizer turns into the same numbers again."""
    for row, kinds, label in zip(data.words.tolist(), data.kinds.tolist(), data.labels.tolist(), strict=True):
        first = [f"w{word}" for word, kind in zip(row, kinds, strict=True) if word >= FIRST and kind == 0]
        second = [f"w{word}" for word, kind in zip(row, kinds, strict=True) if word >= FIRST and kind == 1]
        yield {"sentence1": " ".join(first), "sentence2": " ".join(second), "label": label}


def make_files(folder: Path, size: str, samples: int) -> None:
    """Makes the model, its tokenizer, the data and the metric."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    layers, width, heads, words = SIZES[size]
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=words + len(SPECIAL), hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=4 * width, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(folder / "model")
    vocabulary = folder / "vocabulary.txt"
    vocabulary.write_text("\n".join([*SPECIAL, *(f"w{word}" for word in range(words))]))
    BertTokenizerFast(str(vocabulary), model_max_length=LENGTH).save_pretrained(folder / "model")
    for name, count, seed in (("train", samples, 1), ("validation", 4 * BATCH, 2)):
        lines = [json.dumps(each) for each in sentences(Data.made(count, words, seed))]
        (folder / f"{name}.json").write_text("\n".join(lines))
    (folder / "accuracy").mkdir()
    (folder / "accuracy" / "accuracy.py").write_text(METRIC)


def arguments_of_script(contender: str, count: int) -> list[str]:
    """Returns the arguments of run_glue.py, for paths in the working folder."""
    files = "--model_name_or_path model --train_file train.json --validation_file validation.json --output_dir out"
    training = f"--do_train --do_eval --num_train_epochs 1 --learning_rate 2e-5 --max_seq_length {LENGTH}"
    batches = f"--per_device_train_batch_size {BATCH // count} --dataloader_drop_last True"
    rest = "--use_cpu --overwrite_output_dir --save_strategy no --logging_strategy no --report_to none"
    backend = "" if contender == ONE else f"--ddp_backend {BACKENDS[contender]}"
    return f"{files} {training} {batches} {rest} --disable_tqdm True {backend}".split()


class Cluster:
    """Starts processes on this machine, or one process on each host of a network-namespace test bed."""

    def __init__(self, script: Path, folder: Path, test_bed: NetworkTestBed | None) -> None:
        self._script, self._folder, self._test_bed = script, folder, test_bed

    def train(self, contender: str, count: int) -> Trained:
        """Trains one epoch with `count` processes. Raises SystemExit with the output if that fails."""
        program = [sys.executable, str(self._script), *arguments_of_script(contender, count)]
        command = program if contender == ONE else [*self._mpirun(count), *program]
        if self._test_bed is not None:
            command = self._test_bed.command(self._test_bed.hosts[0], command, self._folder)
        done = subprocess.run(
            command, cwd=self._folder, env=self._environment(), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=TIMEOUT, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise SystemExit(
                f"{contender}, {count} processes: code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
            )
        train, valid = (
            json.loads((self._folder / "out" / f"{name}_results.json").read_text()) for name in ("train", "eval")
        )
        return Trained(train["train_runtime"], valid["eval_loss"])

    def _mpirun(self, count: int) -> list[str]:
        hosts = self._test_bed.hosts if self._test_bed is not None else ["localhost"]
        (self._folder / "hostfile").write_text("".join(f"{host}\n" for host in hosts))
        each = 1 if self._test_bed is not None else count
        line = [str(Path(sys.executable).with_name("mpirun")), "-f", "hostfile", "-n", str(count), "-ppn", str(each)]
        if self._test_bed is not None:
            line += ["-launcher", "ssh", "-launcher-exec", self._test_bed.remote_shell, "-iface", "eth0"]
        return [*line, "-genv", "OMP_NUM_THREADS=1"]

    def _environment(self) -> dict[str, str]:
        test_bed = self._test_bed
        variables = {
            "OMP_NUM_THREADS": "1",
            "CCL_WORKER_COUNT": "1",  # what env/setvars.sh sets
            "MASTER_ADDR": "127.0.0.1" if test_bed is None else test_bed.address(test_bed.hosts[0]),
            "MASTER_PORT": str(free_port()),
            "HF_HOME": str(self._folder / "cache"),
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_OFFLINE": "1",
        }
        if test_bed is not None:
            variables |= {"GLOO_SOCKET_IFNAME": "eth0", "PERSEUS_NETWORK_INTERFACES": "eth0"}
        return {**os.environ, **variables}


def free_port() -> int:
    with socket.create_server(("", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


def measure(options: Any, folder: Path, count: int) -> dict[str, Trained]:
    """Returns the median time of the rounds, and the loss, of each contender."""
    with contextlib.ExitStack() as stack:
        test_bed = stack.enter_context(NetworkTestBed(count, Links(options.rate))) if options.hosts else None
        cluster = Cluster(options.script.resolve(), folder, test_bed)
        names = [ONE] if count == 1 else list(BACKENDS)
        rounds: dict[str, list[Trained]] = {name: [] for name in names}
        for number in range(options.rounds):
            for place in range(len(names)):
                name = names[(place + number) % len(names)]
                rounds[name].append(cluster.train(name, count))
    return {
        name: Trained(statistics.median(each.seconds for each in found), found[-1].loss)
        for name, found in rounds.items()
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("script", type=Path, help="transformers' run_glue.py")
    parser.add_argument("--counts", type=int, nargs="+", default=[2, 4], help="of processes (default %(default)s)")
    parser.add_argument("--hosts", action="store_true", help="one process on each of as many hosts; needs root")
    parser.add_argument("--rate", default="10gbit", help="of a host's link (default %(default)s)")
    parser.add_argument("--size", default="small", choices=SIZES, help="of the model (default %(default)s)")
    parser.add_argument("--samples", type=int, default=320, help="of the epoch (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(default %(default)s)")
    options = parser.parse_args(arguments)
    if bad := [count for count in options.counts if count < 2 or BATCH % count]:
        parser.error(f"--counts {bad[0]}: 2, 4, 8, 16 or 32 processes can share batches of {BATCH} samples")
    if options.hosts and (reason := why_unsupported(Links(options.rate))) is not None:
        print(f"no network-namespace test bed here: {reason}", file=sys.stderr)
        return 77
    with tempfile.TemporaryDirectory(prefix="perseus-run-glue-") as folder:
        make_files(Path(folder), options.size, options.samples)
        one = measure(options, Path(folder), 1)[ONE]
        print(f"| {'hosts' if options.hosts else 'processes'} | {GLOO} | speed-up | {OURS} | speed-up |")
        print(f"|---|---|---|---|---|\n| 1 | {one.seconds:.1f} s | | {one.seconds:.1f} s | |", flush=True)
        for count in options.counts:
            found = measure(options, Path(folder), count)
            for name, trained in found.items():
                if not math.isclose(trained.loss, one.loss, rel_tol=1e-4):
                    raise SystemExit(f"{name}, {count}: the loss is {trained.loss}, that of one process {one.loss}")
            cells = [f"{found[name].seconds:.1f} s | {one.seconds / found[name].seconds:.2f}" for name in BACKENDS]
            print(f"| {count} | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
