"""The state that a user's script asks for: the options, the log, the timers, and the tokenizer."""

from __future__ import annotations

import logging
import sys
import time
from argparse import Namespace
from typing import Any

from .options import InputError

_args: Namespace | None = None
_tokenizer: Any = None


class Timers:
    """Seconds of parts of the training, by name: `timers("forward").start()`, `.stop()`, `timers.log(["forward"])`."""

    class Timer:
        """The sum of the times between start and stop."""

        def __init__(self) -> None:
            self.seconds = 0.0
            self._begun: float | None = None

        def start(self) -> None:
            self._begun = time.perf_counter()

        def stop(self) -> None:
            if self._begun is None:
                raise RuntimeError("the timer was not started")
            self.seconds += time.perf_counter() - self._begun
            self._begun = None

        def reset(self) -> None:
            self.seconds = 0.0

        def elapsed(self, reset: bool = True) -> float:
            seconds = self.seconds
            if reset:
                self.reset()
            return seconds

    def __init__(self) -> None:
        self._timers: dict[str, Timers.Timer] = {}

    def __call__(self, name: str) -> Timers.Timer:
        return self._timers.setdefault(name, Timers.Timer())

    def log(self, names: list[str], normalizer: float = 1.0, reset: bool = True) -> None:
        parts = [f"{name}: {1000 * self(name).elapsed(reset) / normalizer:.2f}" for name in names]
        get_logger().info("time (ms) | %s", " | ".join(parts))


_timers = Timers()


def set_args(args: Namespace) -> None:
    global _args
    _args = args


def get_args() -> Namespace:
    """Returns the options. RapidformerEngine() reads them from the command line."""
    if _args is None:
        raise RuntimeError("the options are not read yet; create a RapidformerEngine() first")
    return _args


def get_timers() -> Timers:
    return _timers


def get_logger() -> logging.Logger:
    """Returns a logger that writes to stdout. On ranks other than 0 it writes warnings only."""
    import torch.distributed as dist

    logger = logging.getLogger("rapidformer")
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(handler)
        logger.propagate = False
    is_first = not dist.is_initialized() or dist.get_rank() == 0
    logger.setLevel(logging.INFO if is_first else logging.WARNING)
    return logger


def get_tokenizer() -> Any:
    """Returns the tokenizer of --tokenizer-type and --vocab-file, or else the one of the model's folder."""
    global _tokenizer
    if _tokenizer is None:
        _tokenizer = make_tokenizer(get_args())
    return _tokenizer


def make_tokenizer(args: Namespace) -> Any:
    """Makes the tokenizer that the options describe."""
    kind = args.tokenizer_type
    model = args.pretrained_model_name_or_path
    if kind is None or kind == "PretrainedFromHF":
        if model is None:
            raise InputError(
                "there is no tokenizer; give --tokenizer-type and --vocab-file, or a model with a tokenizer"
            )
        from transformers import AutoTokenizer

        try:
            return AutoTokenizer.from_pretrained(model)
        except (OSError, ValueError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise InputError(f"{model} has no tokenizer ({reason}); give --tokenizer-type and --vocab-file") from None
    if args.vocab_file is None:
        raise InputError(f"--tokenizer-type {kind} needs --vocab-file")
    if kind == "GPT2BPETokenizer":
        from transformers import GPT2Tokenizer

        if args.merge_file is None:
            raise InputError(f"--tokenizer-type {kind} needs --merge-file")
        return GPT2Tokenizer(vocab=args.vocab_file, merges=args.merge_file)
    from transformers import BertTokenizer

    return BertTokenizer(vocab=args.vocab_file, do_lower_case=kind == "BertWordPieceLowerCase")
