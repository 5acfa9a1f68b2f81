"""Our operations in the TensorFlow of this process, and what of it is relied on without being promised."""

from __future__ import annotations

import contextlib
import ctypes
import logging
from pathlib import Path
from typing import Any

import tensorflow as tf

from perseus_like.errors import UnavailableError
from perseus_like.session import session

logger = logging.getLogger(__name__)

PATH = Path(__file__).with_name("_native.so")

# Asynchronous: any number of them may be under way. The others must run even if nobody uses what they give.
_PRUNED_IF_UNUSED = ("PerseusAllreduce", "PerseusAllgather", "PerseusReduceScatter", "PerseusAlltoall")
_ALWAYS_RUN = ("PerseusBroadcast", "PerseusBarrier", "PerseusJoin")
_ONLY_TELL = ("PerseusNumber",)


def _load() -> tuple[Any, ctypes.CDLL]:
    if not PATH.exists():
        raise UnavailableError(f"{PATH} is missing: this perseus_like was built without its TensorFlow part")
    operations = tf.load_op_library(str(PATH))
    library = ctypes.CDLL(str(PATH))
    library.perseus_tensorflow_problem.restype = ctypes.c_char_p
    library.perseus_tensorflow_start.argtypes = [ctypes.c_void_p]
    library.perseus_tensorflow_start_xla.restype = ctypes.c_char_p
    problem = library.perseus_tensorflow_problem().decode()
    if problem:
        raise UnavailableError(f"TensorFlow {tf.__version__} does not take our operations: {problem}")
    library.perseus_tensorflow_start(session.core.c_api())
    return operations, library


def _let_run_at_once() -> None:
    """A tf.function puts stateful operations in a row, unless they are in its own lists of exceptions."""
    try:
        from tensorflow.python.framework import auto_control_deps as lists

        lists.ASYNC_STATEFUL_OPS = frozenset(lists.ASYNC_STATEFUL_OPS) | {*_PRUNED_IF_UNUSED, *_ONLY_TELL}
        lists.MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS = frozenset(
            lists.MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS
        ) | frozenset(_ALWAYS_RUN)
    except (ImportError, AttributeError, TypeError) as error:
        logger.warning(
            "TensorFlow %s has no lists of asynchronous operations where they were (%s): collectives of a tf.function "
            "run one after the other",
            tf.__version__,
            error,
        )


def _leave_unconverted() -> None:
    """AutoGraph would rewrite our functions whenever a tf.function is traced; they have nothing for it to convert."""
    with contextlib.suppress(ImportError, AttributeError, TypeError):
        from tensorflow.python.autograph.core import config

        package = __name__.partition(".")[0]
        config.CONVERSION_RULES = (config.DoNotConvert(package), *config.CONVERSION_RULES)


operations, library = _load()
_let_run_at_once()
_leave_unconverted()
