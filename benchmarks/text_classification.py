"""Fine-tuning BERT for one epoch of a task of MRPC's shape, by one process, DDP, our DDP and DistributedOptimizer.

    python -m benchmarks.text_classification -np 2 --size tiny

The model is made from a config, and the data from a seed, so no network is needed. A global batch has the same samples
for every contender, so all must have the same losses, which is checked. Contenders alternate: each trains an epoch from
the same weights, and each round begins with another one. Every process computes on one thread, also one process alone.
Scaling efficiency is the time of one process over that of all, divided by their number.

Needs transformers, tabulate and matplotlib.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from . import harness, peers
from .harness import Summary, World
from .record import Result, Row, publish

ONE, DATA_PARALLEL, DDP = "one process", "torch.nn.DataParallel", "DDP over gloo"
OVER_OURS, OUR_DDP, OURS = "DDP over perseus", "our DDP", "hvd.DistributedOptimizer"
LENGTH, RATE, BATCH = 128, 2e-5, 16  # BATCH samples for each rank
TRAIN, VALID = 3668, 408  # the samples of MRPC
SIZES = {  # layers, width, heads, vocabulary
    "micro": (1, 32, 2, 200),
    "tiny": (2, 128, 2, 2000),
    "small": (4, 256, 4, 30522),
    "base": (12, 768, 12, 30522),
}
PAD, CLS, SEP, FIRST = 0, 1, 2, 3
Losses = list[float]


def make_model(size: str) -> Any:
    """Makes the model without dropout, because dropout would differ between contenders."""
    from transformers import BertConfig, BertForSequenceClassification

    layers, width, heads, words = SIZES[size]
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=words, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=4 * width, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return BertForSequenceClassification(config)


@dataclass
class Data:
    """Pairs of sentences. Two thirds of the pairs are paraphrases: they have most words in common."""

    words: torch.Tensor
    kinds: torch.Tensor
    labels: torch.Tensor

    @staticmethod
    def made(count: int, vocabulary: int, seed: int) -> Data:
        generator = torch.Generator().manual_seed(seed)
        words, kinds = torch.full((count, LENGTH), PAD), torch.zeros(count, LENGTH, dtype=torch.int64)
        labels = (torch.rand(count, generator=generator) < 0.67).long()
        for row in range(count):
            length = int(torch.randint(15, 60, (), generator=generator))
            first = torch.randint(FIRST, vocabulary, (length,), generator=generator)
            second = torch.randint(FIRST, vocabulary, (length,), generator=generator)
            if labels[row]:
                kept = torch.rand(length, generator=generator) < 0.8
                second = torch.where(kept, first, second)
            cls, sep = torch.tensor([CLS]), torch.tensor([SEP])
            pair = torch.cat([cls, first, sep, second, sep])
            words[row, : len(pair)] = pair
            kinds[row, length + 2 : len(pair)] = 1
        return Data(words, kinds, labels)

    def batch(self, samples: slice) -> dict[str, torch.Tensor]:
        words = self.words[samples]
        mask = (words != PAD).long()
        return {
            "input_ids": words,
            "attention_mask": mask,
            "token_type_ids": self.kinds[samples],
            "labels": self.labels[samples],
        }


class Contender:
    """A model in training, by one process or by all ranks, which share each global batch."""

    def __init__(self, name: str, world: World, size: str, wrap: Callable[[Any], tuple[Any, Any]]) -> None:
        self.name, self.world = name, world
        self.alone = name in (ONE, DATA_PARALLEL)
        self._part: int = 0 if self.alone else world.rank
        self._parts: int = 1 if self.alone else world.size
        self.bare = make_model(size)
        self.model, self.optimizer = wrap(self.bare)
        self._weights = {key: value.clone() for key, value in self.bare.state_dict().items()}
        self.device = next(self.bare.parameters()).device

    def epoch(self, data: Data) -> tuple[float, Losses]:
        """Trains one epoch from the first weights. Returns the seconds and the mean loss of each global batch."""
        self.bare.load_state_dict(self._weights)
        self.optimizer.state.clear()
        self.model.train()
        whole = BATCH * self.world.size
        losses = []
        begun = time.perf_counter()
        for start in range(0, len(data.labels) - whole + 1, whole):
            mine = start + self._part * (whole // self._parts)
            batch = data.batch(slice(mine, mine + whole // self._parts))
            self.optimizer.zero_grad()
            loss = self.model(**{key: value.to(self.device) for key, value in batch.items()}).loss.mean()
            torch.autograd.backward(loss)
            self.optimizer.step()
            losses.append(loss.detach())
        seconds = time.perf_counter() - begun
        return seconds, torch.stack(losses).tolist()

    def accuracy(self, data: Data) -> float:
        """Returns the share of the validation data that this rank's model classifies correctly."""
        self.bare.eval()
        right = 0
        with torch.no_grad():
            for start in range(0, len(data.labels), BATCH):
                batch = data.batch(slice(start, start + BATCH))
                found = self.bare(**{key: value.to(self.device) for key, value in batch.items()}).logits.argmax(-1)
                right += int((found.cpu() == batch["labels"]).sum())
        return right / len(data.labels)


def adamw(model: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=RATE)


def contenders(world: World, size: str) -> Iterator[Contender]:
    import perseus_like.torch as hvd
    from perseus_like.torch.nn import parallel

    def ddp(group: Any) -> Callable[[Any], tuple[Any, Any]]:
        return lambda model: (nn.parallel.DistributedDataParallel(model, process_group=group), adamw(model))

    def horovod(model: Any) -> tuple[Any, Any]:
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        return model, hvd.DistributedOptimizer(adamw(model), named_parameters=model.named_parameters())

    yield Contender(ONE, world, size, lambda model: (model, adamw(model)))
    if torch.cuda.device_count() > 1:
        yield Contender(DATA_PARALLEL, world, size, lambda model: (nn.DataParallel(model.cuda()), adamw(model)))
    yield Contender(DDP, world, size, ddp(None))
    yield Contender(OVER_OURS, world, size, ddp(dist.new_group(backend="perseus")))
    yield Contender(OUR_DDP, world, size, lambda model: (parallel.DistributedDataParallel(model), adamw(model)))
    yield Contender(OURS, world, size, horovod)


def alternate(world: World, trained: Sequence[Contender], data: Data, rounds: int) -> dict[str, Summary]:
    """Trains every contender in every round. Raises AssertionError if losses differ."""
    times: dict[str, list[float]] = {each.name: [] for each in trained}
    reference: Losses | None = None
    for number in range(rounds):
        for place in range(len(trained)):
            contender = trained[(place + number) % len(trained)]
            world.barrier()
            seconds = 0.0
            losses: Losses = []
            if world.rank == 0 or not contender.alone:
                seconds, losses = contender.epoch(data)
            world.barrier()
            times[contender.name].append(world.most([seconds])[0])
            losses = mean_over_ranks(world, losses, contender.alone, data)
            reference = losses if reference is None else reference
            if not torch.allclose(torch.tensor(losses), torch.tensor(reference), rtol=1e-3, atol=1e-4):
                raise AssertionError(f"the losses of {contender.name} are {losses}, the first contender's {reference}")
    return {name: Summary.of(found, found, 1) for name, found in times.items()}


def mean_over_ranks(world: World, losses: Losses, alone: bool, data: Data) -> Losses:
    """Returns the mean loss of each global batch, on every rank."""
    import perseus_like.torch as hvd

    steps = len(data.labels) // (BATCH * world.size)
    mine = torch.tensor(losses if losses else [0.0] * steps, dtype=torch.float64)
    total: list[float] = (hvd.allreduce(mine, op=hvd.Sum, name="losses") / (1 if alone else world.size)).tolist()
    return total


def facts(world: World, trained: Sequence[Contender], summaries: dict[str, Summary], count: int, valid: Data) -> Any:
    """Returns samples/s, scaling efficiency and accuracy of each contender, in words."""
    one = summaries[ONE].median
    found = {}
    for contender in trained:
        seconds = summaries[contender.name].median
        accuracy = contender.accuracy(valid) if world.rank == 0 or not contender.alone else 0.0
        text = f"{count / seconds:.1f} samples/s, accuracy {accuracy:.4f}"
        if not contender.alone:
            text += f", scaling efficiency {one / seconds / world.size:.0%}"
        found[contender.name] = text
    return found


def on_every_rank(options: Any) -> None:
    torch.set_num_threads(1)
    world = World()
    peers.start_gloo(world)
    size = "micro" if options.quick else options.size
    whole = BATCH * world.size
    count = 2 * whole if options.quick else options.samples // whole * whole
    data = Data.made(count, SIZES[size][3], seed=1)
    valid = Data.made(BATCH if options.quick else VALID, SIZES[size][3], seed=2)
    trained = list(contenders(world, size))
    summaries = alternate(world, trained, data, 1 if options.quick else options.rounds)
    work = f"BERT {size}, {count} pairs of {LENGTH} tokens"
    ours = (OURS, OUR_DDP, OVER_OURS)
    result = Result("text_classification", "One epoch of fine-tuning", world, ours, quick=options.quick)
    result.rows.append(Row(work, summaries))
    result.facts.update(facts(world, trained, summaries, count, valid))
    result.facts["losses"] = f"equal for all contenders, in each of {count // whole} steps"
    publish(result, options.output)
    world.barrier()
    peers.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = harness.parser("One epoch of fine-tuning BERT on a task of MRPC's shape.", seconds=0)
    parser.add_argument("--size", default="tiny", choices=SIZES, help="size of the model (default %(default)s)")
    parser.add_argument("--samples", type=int, default=TRAIN, help="samples of an epoch (default %(default)s, as MRPC)")
    parser.add_argument("--rounds", type=int, default=3, help="epochs of each contender (default %(default)s)")
    parser.set_defaults(timeout=7200)
    options = parser.parse_args(arguments)
    if options.samples < BATCH * options.np:
        parser.error(f"--samples {options.samples} is less than one step of {BATCH * options.np}")
    if harness.in_world():
        on_every_rank(options)
        return 0
    return harness.start_world("benchmarks.text_classification", arguments, options)


if __name__ == "__main__":
    sys.exit(main())
