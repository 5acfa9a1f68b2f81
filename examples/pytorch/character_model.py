"""Trains a character language model on the source text of Python's standard library.

    perseusrun -np 2 python examples/pytorch/character_model.py

The example shows clipping between synchronize() and step(), which recurrent models need, and gradients in 16-bit
floats (--compression). Each rank reads random pieces of the text, drawn with a seed of its own.
"""

from __future__ import annotations

import argparse
import math
import sys
import sysconfig
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import perseus_like.torch as hvd

COMPRESSIONS = {"none": hvd.Compression.none, "fp16": hvd.Compression.fp16, "bf16": hvd.Compression.bf16}
# The bytes of the text that are shown; everything else is one symbol.
ALPHABET = bytes([10, *range(32, 127)])
SYMBOLS = len(ALPHABET) + 1


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A character language model on Python's standard library.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=16, help="pieces of text per rank and step")
    parser.add_argument("--length", type=int, default=64, help="characters of a piece")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=4e-3, help="of one rank")
    parser.add_argument("--clip", type=float, default=1.0, help="largest norm of the gradient")
    parser.add_argument("--megabytes", type=float, default=2.0, help="how much text to read")
    parser.add_argument("--compression", choices=list(COMPRESSIONS), default="none")
    parser.add_argument("--seed", type=int, default=42)
    return parser.parse_args()


def standard_library(limit_bytes: int) -> Tensor:
    """Returns the symbols of the library's modules in alphabetical order. Ranks with the same Python get the same."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= limit_bytes:
            break
    numbers = bytes(ALPHABET.find(byte) % SYMBOLS for byte in range(256))  # find() gives -1 for the rest
    return torch.frombuffer(text[:limit_bytes].translate(numbers), dtype=torch.uint8).long()


class CharacterModel(nn.Module):
    """A recurrent net that gives the logits of each next symbol."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, 32)
        self.recurrent = nn.GRU(32, hidden, batch_first=True)
        self.output = nn.Linear(hidden, SYMBOLS)

    def forward(self, symbols: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        hidden, state = self.recurrent(self.embedding(symbols), state)
        return self.output(hidden), state


def bits_per_character(model: CharacterModel, pieces: Tensor) -> Tensor:
    """Returns the bits per character: log2 of the number of equally likely next characters."""
    logits, _ = model(pieces[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), pieces[:, 1:].flatten()) / math.log(2)


def draw(text: Tensor, count: int, length: int, generator: torch.Generator) -> Tensor:
    starts = torch.randint(len(text) - length, (count, 1), generator=generator)
    return text[starts + torch.arange(length + 1)]


def write(model: CharacterModel, start: str, count: int, generator: torch.Generator) -> str:
    """Returns `start` and the text with which the model continues it."""
    written = [ALPHABET.index(byte) for byte in start.encode()]
    following, state = torch.tensor([written]), None
    with torch.no_grad():
        for _ in range(count):
            logits, state = model(following, state)
            following = torch.multinomial(torch.softmax(logits[:, -1] / 0.7, 1), 1, generator=generator)
            written.append(int(following))
    return "".join(chr(ALPHABET[symbol]) if symbol < len(ALPHABET) else "?" for symbol in written)


def main() -> int:
    args = options()
    hvd.init()
    first = hvd.rank() == 0
    text = standard_library(int(args.megabytes * 1e6))
    test_size = len(text) // 20
    learn, test = text[:-test_size], text[-test_size:]

    torch.manual_seed(args.seed)
    model = CharacterModel(args.hidden)
    # Adam divides by the gradient's size, so the square root of the number of ranks is enough.
    plain = torch.optim.Adam(model.parameters(), args.learning_rate * math.sqrt(hvd.size()))
    optimizer = hvd.DistributedOptimizer(
        plain, named_parameters=model.named_parameters(), compression=COMPRESSIONS[args.compression]
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    own = torch.Generator().manual_seed(args.seed + hvd.rank())
    held_out = draw(test, 32, args.length, own)
    started = time.perf_counter()
    bits = math.inf
    for step in range(1, args.steps + 1):
        optimizer.zero_grad()
        bits_per_character(model, draw(learn, args.batch_size, args.length, own)).backward()
        optimizer.synchronize()  # the norm is that of the mean gradient, on all ranks the same
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        with optimizer.skip_synchronize():
            optimizer.step()
        if step % 50 == 0 or step == args.steps:
            with torch.no_grad():
                bits = float(hvd.allreduce(bits_per_character(model, held_out), name="test"))
            if first:
                characters = step * args.batch_size * args.length * hvd.size()
                speed = characters / (time.perf_counter() - started)
                print(f"step {step}: {bits:.2f} bits per character, {speed:,.0f} characters/s", flush=True)
    if first:
        print("the model writes:")
        print(write(model, "def ", 200, own))
        print(f"{hvd.size()} ranks, {len(learn):,} characters to learn from, reached {bits:.2f} bits per character")
    return 0 if bits < math.log2(SYMBOLS) else 1


if __name__ == "__main__":
    sys.exit(main())
