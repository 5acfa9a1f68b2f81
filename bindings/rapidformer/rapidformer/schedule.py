"""The learning rate of each iteration, by Megatron's options."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Callable


def factor(args: Namespace, iterations: int) -> Callable[[int], float]:
    """Returns the function from an iteration to its share of --lr."""
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
