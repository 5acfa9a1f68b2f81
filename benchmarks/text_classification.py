"""Fine-tuning BERT for one epoch of a task of MRPC's shape, by one process, DDP, our DDP and DistributedOptimizer.

    python -m benchmarks.text_classification -np 2 --size tiny
    .venv-ccl/bin/python -m benchmarks.text_classification --script run_glue.py            # 1, 2 and 4 processes
    .venv-ccl/bin/python -m benchmarks.text_classification --script run_glue.py --hosts    # hosts; as root

The model is made from a config, and the data from a seed, so no network is needed. A global batch has the same samples
for every contender, so all must have the same losses, which is checked. Contenders alternate: each trains an epoch from
the same weights, and each round begins with another one. Every process computes on one thread, also one process alone.
Scaling efficiency is the time of one process over that of all, divided by their number. Needs transformers, tabulate
and matplotlib.

With `--script`, transformers' run_glue.py trains, as Intel's and Optimum's pages show it: with their command line, and
with `--ddp_backend ccl` for this library and `--ddp_backend gloo` for gloo, in turns. `make test-clients` makes the
environment. The script is examples/pytorch/text-classification/run_glue.py of a release of transformers that the
installed one (4.56) accepts, unmodified: commit 242e7fc66cfc has been run. Hosts are network namespaces of this
machine, so they share its cores.
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
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from . import ROOT, harness, peers
from .harness import Result, World
from .report import Data

ONE, DDP = "one process", "DDP over gloo"
OVER_OURS, OUR_DDP, OURS = "DDP over perseus", "our DDP", "hvd.DistributedOptimizer"
LENGTH, RATE, BATCH = 128, 2e-5, 16  # BATCH samples for each rank
TRAIN, VALID = 3668, 408  # the samples of MRPC
SIZES = {  # layers, width, heads, vocabulary
    "micro": (1, 32, 2, 200),
    "tiny": (2, 128, 2, 2000),
    "small": (4, 256, 4, 30522),
    "base": (12, 768, 12, 30522),
}
SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
PAD, CLS, SEP, FIRST = 0, 1, 2, 3
Losses = list[float]


def make_model(size: str, more_words: int = 0) -> Any:
    """Makes the model without dropout, because dropout would differ between contenders."""
    from transformers import BertConfig, BertForSequenceClassification

    layers, width, heads, words = SIZES[size]
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=words + more_words, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=4 * width, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return BertForSequenceClassification(config)


@dataclass
class Pairs:
    """Pairs of sentences. Two thirds of the pairs are paraphrases: they have most words in common."""

    words: torch.Tensor
    kinds: torch.Tensor
    labels: torch.Tensor

    @staticmethod
    def made(count: int, vocabulary: int, seed: int) -> Pairs:
        generator = torch.Generator().manual_seed(seed)
        words, kinds = torch.full((count, LENGTH), PAD), torch.zeros(count, LENGTH, dtype=torch.int64)
        labels = (torch.rand(count, generator=generator) < 0.67).long()
        cls, sep = torch.tensor([CLS]), torch.tensor([SEP])
        for row in range(count):
            length = int(torch.randint(15, 60, (), generator=generator))
            first = torch.randint(FIRST, vocabulary, (length,), generator=generator)
            second = torch.randint(FIRST, vocabulary, (length,), generator=generator)
            if labels[row]:
                kept = torch.rand(length, generator=generator) < 0.8
                second = torch.where(kept, first, second)
            pair = torch.cat([cls, first, sep, second, sep])
            words[row, : len(pair)] = pair
            kinds[row, length + 2 : len(pair)] = 1
        return Pairs(words, kinds, labels)

    def batch(self, start: int, count: int) -> dict[str, torch.Tensor]:
        part = slice(start, start + count)
        words = self.words[part]
        mask, kinds, labels = (words != PAD).long(), self.kinds[part], self.labels[part]
        return {"input_ids": words, "attention_mask": mask, "token_type_ids": kinds, "labels": labels}


# --- one epoch -------------------------------------------------------------------------------------------------------


class Contender:
    """A model in training, by one process or by all ranks, which share each global batch."""

    def __init__(self, name: str, world: World, size: str, wrap: Callable[[Any], tuple[Any, Any]]) -> None:
        self.name, self.world = name, world
        self.alone = name == ONE
        self._part, self._parts = (0, 1) if self.alone else (world.rank, world.size)
        self.bare = make_model(size)
        self.model, self.optimizer = wrap(self.bare)
        self._weights = {key: value.clone() for key, value in self.bare.state_dict().items()}

    def epoch(self, data: Pairs) -> tuple[float, Losses]:
        """Trains one epoch from the first weights. Returns the seconds and the mean loss of each global batch."""
        self.bare.load_state_dict(self._weights)
        self.optimizer.state.clear()
        self.model.train()
        whole = BATCH * self.world.size
        own, losses = whole // self._parts, []
        begun = time.perf_counter()
        for start in range(0, len(data.labels) - whole + 1, whole):
            self.optimizer.zero_grad()
            loss = self.model(**data.batch(start + self._part * own, own)).loss.mean()
            torch.autograd.backward(loss)
            self.optimizer.step()
            losses.append(loss.detach())
        return time.perf_counter() - begun, torch.stack(losses).tolist()

    @torch.no_grad()
    def accuracy(self, data: Pairs) -> float:
        """Returns the share of the validation data that this rank's model classifies correctly."""
        self.bare.eval()
        right = 0
        for start in range(0, len(data.labels), BATCH):
            batch = data.batch(start, BATCH)
            right += int((self.bare(**batch).logits.argmax(-1) == batch["labels"]).sum())
        return right / len(data.labels)


def contenders(world: World, size: str) -> Iterator[Contender]:
    import perseus_like.torch as hvd
    from perseus_like.torch.nn import parallel

    def adamw(model: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=RATE)

    def ddp(group: Any) -> Callable[[Any], tuple[Any, Any]]:
        return lambda model: (nn.parallel.DistributedDataParallel(model, process_group=group), adamw(model))

    def horovod(model: Any) -> tuple[Any, Any]:
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        return model, hvd.DistributedOptimizer(adamw(model), named_parameters=model.named_parameters())

    yield Contender(ONE, world, size, lambda model: (model, adamw(model)))
    yield Contender(DDP, world, size, ddp(None))
    yield Contender(OVER_OURS, world, size, ddp(dist.new_group(backend="perseus")))
    yield Contender(OUR_DDP, world, size, lambda model: (parallel.DistributedDataParallel(model), adamw(model)))
    yield Contender(OURS, world, size, horovod)


def alternate(world: World, trained: dict[str, Contender], data: Pairs, rounds: int) -> dict[str, Data]:
    """Trains every contender in every round. Raises AssertionError if losses differ."""
    times: dict[str, list[float]] = {name: [] for name in trained}
    reference: Losses = []
    steps = len(data.labels) // (BATCH * world.size)
    for name in harness.in_turns(list(trained), rounds):
        contender = trained[name]
        takes_part = world.rank == 0 or not contender.alone
        world.barrier()
        seconds, losses = contender.epoch(data) if takes_part else (0.0, [0.0] * steps)
        world.barrier()
        times[name].append(world.most([seconds])[0])
        losses = [loss / (1 if contender.alone else world.size) for loss in world.total(losses)]
        reference = reference or losses
        if not torch.allclose(torch.tensor(losses), torch.tensor(reference), rtol=1e-3, atol=1e-4):
            raise AssertionError(f"the losses of {name} are {losses}, the first contender's {reference}")
    return {name: harness.summary(found) for name, found in times.items()}


def on_every_rank(options: Any) -> None:
    world = World()
    peers.start_gloo(world)
    size = "micro" if options.quick else options.size or "tiny"
    whole = BATCH * world.size
    count = 2 * whole if options.quick else (options.samples or TRAIN) // whole * whole
    data = Pairs.made(count, SIZES[size][3], seed=1)
    valid = Pairs.made(BATCH if options.quick else VALID, SIZES[size][3], seed=2)
    trained = {each.name: each for each in contenders(world, size)}
    summaries = alternate(world, trained, data, 1 if options.quick else options.rounds)
    result = Result("text_classification", "One epoch of fine-tuning", world, options, (OURS, OUR_DDP, OVER_OURS))
    result.add_row(f"BERT {size}, {count} pairs of {LENGTH} tokens", summaries)
    one = summaries[ONE]["median"]
    for name, contender in trained.items():
        seconds = summaries[name]["median"]
        accuracy = contender.accuracy(valid) if world.rank == 0 or not contender.alone else 0.0
        efficiency = "" if contender.alone else f", scaling efficiency {one / seconds / world.size:.0%}"
        result.facts[name] = f"{count / seconds:.1f} samples/s, accuracy {accuracy:.4f}{efficiency}"
    result.facts["losses"] = f"equal for all contenders, in each of {count // whole} steps"
    result.publish()


# --- run_glue.py -----------------------------------------------------------------------------------------------------

BACKENDS = {"gloo": "gloo", "perseus": "ccl"}
GLOBAL_BATCH = 32
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
# Paths are in the working folder.
ARGUMENTS = f"""
--model_name_or_path model --train_file train.json --validation_file validation.json --output_dir out
--do_train --do_eval --num_train_epochs 1 --learning_rate {RATE} --max_seq_length {LENGTH} --dataloader_drop_last True
--use_cpu --overwrite_output_dir --save_strategy no --logging_strategy no --report_to none --disable_tqdm True
"""


def sentences(data: Pairs) -> Iterator[str]:
    """Writes the pairs of token numbers as words, which the tokenizer turns into the same numbers again."""
    for row, kinds, label in zip(data.words.tolist(), data.kinds.tolist(), data.labels.tolist(), strict=True):
        parts: tuple[list[str], list[str]] = ([], [])
        for word, kind in zip(row, kinds, strict=True):
            if word >= FIRST:
                parts[kind].append(f"w{word}")
        yield json.dumps({"sentence1": " ".join(parts[0]), "sentence2": " ".join(parts[1]), "label": label})


def make_files(folder: Path, size: str, samples: int) -> None:
    """Makes the model, its tokenizer, the data and the metric."""
    from transformers import BertTokenizerFast

    words = SIZES[size][3]
    make_model(size, len(SPECIAL)).save_pretrained(folder / "model")
    vocabulary = folder / "vocabulary.txt"
    vocabulary.write_text("\n".join([*SPECIAL, *(f"w{word}" for word in range(words))]))
    BertTokenizerFast(str(vocabulary), model_max_length=LENGTH).save_pretrained(folder / "model")
    for name, count, seed in (("train", samples, 1), ("validation", 4 * GLOBAL_BATCH, 2)):
        (folder / f"{name}.json").write_text("\n".join(sentences(Pairs.made(count, words, seed))))
    (folder / "accuracy").mkdir()
    (folder / "accuracy" / "accuracy.py").write_text(METRIC)


def train_by_script(script: Path, folder: Path, test_bed: Any, name: str, count: int) -> tuple[float, float]:
    """Trains one epoch with `count` processes. Returns the seconds, and the loss on the validation data afterwards."""
    program = [sys.executable, str(script.resolve()), *ARGUMENTS.split()]
    program += ["--per_device_train_batch_size", str(GLOBAL_BATCH // count)]
    with socket.create_server(("", 0)) as free:
        port = str(free.getsockname()[1])
    offline = {"HF_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    # env/setvars.sh sets the number of workers.
    environment = {**os.environ, **offline, "OMP_NUM_THREADS": "1", "CCL_WORKER_COUNT": "1", "MASTER_PORT": port}
    environment["MASTER_ADDR"] = "127.0.0.1" if test_bed is None else test_bed.address(test_bed.hosts[0])
    if name != ONE:
        hosts, each = (["localhost"], count) if test_bed is None else (test_bed.hosts, 1)
        (folder / "hostfile").write_text("".join(f"{host}\n" for host in hosts))
        line = [str(Path(sys.executable).with_name("mpirun")), "-f", "hostfile", "-n", str(count), "-ppn", str(each)]
        if test_bed is not None:
            line += ["-launcher", "ssh", "-launcher-exec", test_bed.remote_shell, "-iface", "eth0"]
        program = [*line, "-genv", "OMP_NUM_THREADS=1", *program, "--ddp_backend", BACKENDS[name]]
    if test_bed is not None:
        environment |= {"GLOO_SOCKET_IFNAME": "eth0", "PERSEUS_NETWORK_INTERFACES": "eth0"}
        program = test_bed.command(test_bed.hosts[0], program, folder)
    quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    done = subprocess.run(program, cwd=folder, env=environment, timeout=1200, check=False, **quiet)
    if done.returncode != 0:
        raise SystemExit(f"{name}, {count} processes: {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    train, valid = (json.loads((folder / "out" / f"{part}_results.json").read_text()) for part in ("train", "eval"))
    return train["train_runtime"], valid["eval_loss"]


def over_processes(options: Any) -> int:
    """Prints the speed-up of run_glue.py over processes or hosts. Every number of them must have the same loss."""
    sys.path.append(str(ROOT))
    from tests.hosts.links import Links, why_unsupported
    from tests.hosts.network_test_bed import NetworkTestBed

    links = Links(options.rate)
    if options.hosts and (reason := why_unsupported(links)) is not None:
        print(f"no network-namespace test bed here: {reason}", file=sys.stderr)
        return 77
    print(
        f"| {'hosts' if options.hosts else 'processes'} | gloo | speed-up | perseus | speed-up |\n|---|---|---|---|---|"
    )
    one, loss = 0.0, 0.0
    with tempfile.TemporaryDirectory(prefix="perseus-run-glue-") as name:
        folder = Path(name)
        make_files(folder, options.size or "small", options.samples or 320)
        for count in (1, *options.counts):
            times: dict[str, list[float]] = {}
            with NetworkTestBed(count, links) if options.hosts else contextlib.nullcontext() as test_bed:
                for way in harness.in_turns([ONE] if count == 1 else list(BACKENDS), options.rounds):
                    seconds, found = train_by_script(options.script, folder, test_bed, way, count)
                    loss = loss or found
                    if not math.isclose(found, loss, rel_tol=1e-4):
                        raise SystemExit(f"{way}, {count}: the loss is {found}, that of one process {loss}")
                    times.setdefault(way, []).append(seconds)
            medians = [statistics.median(taken) for taken in times.values()]
            one = one or medians[0]
            cells = [
                f"{median:.1f} s | {one / median:.2f}" if count > 1 else f"{median:.1f} s | " for median in medians
            ]
            print(f"| {count} | {' | '.join(cells if count > 1 else cells * 2)} |", flush=True)
    return 0


def start(options: Any, arguments: Sequence[str]) -> int:
    if bad := [count for count in options.counts if count < 2 or GLOBAL_BATCH % count]:
        raise SystemExit(f"--counts {bad[0]}: 2, 4, 8, 16 or 32 processes can share batches of {GLOBAL_BATCH} samples")
    if options.script:
        return over_processes(options)
    if options.samples is not None and options.samples < BATCH * options.np:
        raise SystemExit(f"--samples {options.samples} is less than one step of {BATCH * options.np}")
    return harness.start_job(arguments, options)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", choices=SIZES, help="size of the model (default tiny, with --script small)")
    parser.add_argument(
        "--samples", type=int, help=f"samples of an epoch (default {TRAIN}, as MRPC; with --script 320)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="epochs of each contender (default %(default)s)")
    parser.add_argument("--script", type=Path, help="transformers' run_glue.py")
    parser.add_argument("--counts", type=int, nargs="+", default=[2, 4], help="processes of --script (%(default)s)")
    parser.add_argument("--hosts", action="store_true", help="one process of --script on each of as many hosts")
    parser.add_argument("--rate", default="10gbit", help="of a host's link (default %(default)s)")
    parser.set_defaults(timeout=7200)


if __name__ == "__main__":
    harness.main(on_every_rank, add_options=add_options, start=start)
