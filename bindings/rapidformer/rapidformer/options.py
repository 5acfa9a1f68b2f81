"""The command line, as one table."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

TASKS = ("sequence_classification", "token_classification", "question_answering", "language_modeling", "pretraining")
TOKENIZERS = ("BertWordPieceLowerCase", "BertWordPieceCase", "GPT2BPETokenizer", "PretrainedFromHF")
DECAYS = ("linear", "cosine", "constant")


class InputError(Exception):
    """Reports wrong input in one line: what is wrong, and what to do. Every rank raises the same one."""


@dataclass(frozen=True)
class Option:
    """One option. A `type` of None makes a switch, which takes no value."""

    name: str
    help: str
    type: Callable[[str], Any] | None = str
    default: Any = None
    choices: Sequence[str] | None = None


GROUPS: dict[str, tuple[Option, ...]] = {
    "what to train": (
        Option("task", "a built-in task", choices=TASKS),
        Option("user-script", "a script with a template of its own; options of its own may follow"),
        Option("pretrained-model-name-or-path", "folder or name of a model; a config.json alone gives a new model"),
        Option("data-path", "folder, file or name of a data set; with `--data-impl mmap` a prefix of .bin and .idx"),
        Option("data-name", "configuration of the data set, for example mrpc"),
        Option("data-impl", "format of the data for pretraining", choices=("mmap",)),
        Option("split", "parts of the documents for training, validation and test", default="969,30,1"),
        Option("tokenizer-type", "tokenizer that --vocab-file is for", choices=TOKENIZERS),
        Option("vocab-file", "vocabulary of the tokenizer"),
        Option("merge-file", "merges of a BPE tokenizer"),
        Option("mask-prob", "share of the tokens that are masked", float, 0.15),
        Option("short-seq-prob", "share of shorter samples", float, 0.1),
        Option("mmap-warmup", "accepted and ignored: the files are mapped", None),
        Option("num-workers", "processes that load data, for each rank", int, 0),
    ),
    "model": (
        Option("seq-length", "tokens of a sample", int),
        Option("max-position-embeddings", "positions of the model", int),
        Option("num-layers", "layers of the model", int),
        Option("hidden-size", "width of the model", int),
        Option("num-attention-heads", "attention heads of the model", int),
    ),
    "training": (
        Option("epochs", "passes over the data", int),
        Option("train-iters", "iterations", int),
        Option("micro-batch-size", "samples of one forward pass of one process", int, 8),
        Option("global-batch-size", "samples of one step of all processes; gradients are accumulated to reach it", int),
        Option("lr", "learning rate after warm-up", float, 5e-5),
        Option("min-lr", "learning rate after decay", float, 0.0),
        Option("lr-decay-style", "decay of the learning rate", default="linear", choices=DECAYS),
        Option("lr-decay-iters", "iterations until --min-lr; the default is all iterations", int),
        Option("lr-warmup-iters", "iterations of warm-up", int),
        Option("lr-warmup-fraction", "warm-up as a share of the decay's iterations", float),
        Option("weight-decay", "weight decay of AdamW, except for biases and norms", float, 0.01),
        Option("clip-grad", "largest norm of all gradients; 0 clips nothing", float, 1.0),
        Option("seed", "seed of weights, order and masks", int, 1234),
        Option("log-interval", "iterations between two lines of the log", int, 10),
        Option(
            "eval-interval", "iterations between two evaluations; the default is after each epoch or at the end", int
        ),
        Option("eval-iters", "batches of one evaluation in pretraining", int, 10),
        Option("save", "folder for checkpoints"),
        Option(
            "save-interval", "iterations between two checkpoints; the default is after each epoch or at the end", int
        ),
        Option("load", "folder with checkpoints to continue from"),
    ),
    "switches": (
        Option("mixed-precision", "compute in bfloat16 (float16 with a scaler on GPUs without bfloat16)", None),
        Option("onnx-runtime-training", "torch.compile, because the training by ONNX Runtime has ended", None),
        Option("zero-1-memory-optimization", "divide the optimizer's state among the processes", None),
        Option("zero-2-memory-optimization", "divide optimizer state and gradients", None),
        Option("zero-3-memory-optimization", "divide optimizer state, gradients and parameters", None),
        Option("fsdp-memory-optimization", "the same as --zero-3-memory-optimization", None),
        Option("tensor-model-parallel-size", "processes that divide each layer", int, 1),
        Option("pipeline-model-parallel-size", "processes that divide the layers among them", int, 1),
        Option(
            "checkpoint-activations", "compute activations again in the backward pass instead of keeping them", None
        ),
    ),
}
SHARDING = tuple(f"{kind}_memory_optimization" for kind in ("zero_1", "zero_2", "zero_3", "fsdp"))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; `rapidformer --help` lists the options")


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of all options. It raises InputError."""
    parser = _Parser(prog="rapidformer", description="Trains transformers by switches.", allow_abbrev=False)
    for title, options in GROUPS.items():
        group = parser.add_argument_group(title)
        for option in options:
            if option.type is None:
                group.add_argument(f"--{option.name}", action="store_true", help=option.help)
            else:
                group.add_argument(
                    f"--{option.name}",
                    type=option.type,
                    default=option.default,
                    choices=option.choices,
                    help=option.help,
                    metavar=None if option.choices else option.name.rpartition("-")[2].upper(),
                )
    return parser


def parse(
    arguments: Sequence[str], extra: Callable[[argparse.ArgumentParser], object] | None = None
) -> argparse.Namespace:
    """Parses a command line. `extra` adds a user script's own options to the parser."""
    parser = build_parser()
    if extra is not None:
        extra(parser)
    return parser.parse_args(arguments)


def parse_known(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parses what the table has. Returns also the rest, which belongs to a user script."""
    return build_parser().parse_known_args(arguments)


def learning_rates(args: argparse.Namespace, iterations: int) -> Callable[[int], float]:
    """Returns the function from an iteration to its share of --lr, by Megatron's options."""
    decay = args.lr_decay_iters or iterations
    warmup = args.lr_warmup_iters or 0
    if args.lr_warmup_fraction is not None:
        warmup = int(args.lr_warmup_fraction * decay)
    lowest = args.min_lr / args.lr if args.lr else 0.0

    def share(iteration: int) -> float:
        if warmup and iteration < warmup:
            return (iteration + 1) / warmup
        if args.lr_decay_style == "constant":
            return 1.0
        done = min(1.0, (iteration - warmup) / max(1, decay - warmup))
        left = 1 - done if args.lr_decay_style == "linear" else (1 + math.cos(math.pi * done)) / 2
        return lowest + (1 - lowest) * float(left)

    return share
