"""Our operations in the TensorFlow of this process, and what of it is relied on without being promised."""

from __future__ import annotations

import contextlib
import ctypes
import functools
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
OPERATIONS = frozenset({*_PRUNED_IF_UNUSED, *_ALWAYS_RUN, *_ONLY_TELL})


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


@functools.cache
def asynchronous() -> bool:
    """Whether any number of collectives of a graph may be under way; else they have to follow one another in one order.

    Found out at the first use, when the program has told TensorFlow which devices it wants.
    """
    if not _completes_later():
        logger.warning(
            "TensorFlow %s hands out the end of an asynchronous operation in another form than known: collectives of a "
            "graph run one after the other, and each holds a thread of TensorFlow's",
            tf.__version__,
        )
        return False
    return _let_run_at_once()


def _completes_later() -> bool:
    with tf.init_scope():
        if tf.executing_eagerly():
            return bool(operations.perseus_probe())
    with tf.Graph().as_default() as graph:
        probe = operations.perseus_probe()
        config = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
        with tf.compat.v1.Session(graph=graph, config=config) as session:
            return bool(session.run(probe))


def _let_run_at_once() -> bool:
    """A tf.function puts stateful operations in a row, unless they are in its own lists of exceptions."""
    try:
        from tensorflow.python.framework import auto_control_deps as lists

        pruned = frozenset(lists.ASYNC_STATEFUL_OPS) | {*_PRUNED_IF_UNUSED, *_ONLY_TELL}
        always = frozenset(lists.MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS) | frozenset(_ALWAYS_RUN)
    except (ImportError, AttributeError, TypeError) as error:
        logger.warning(
            "TensorFlow %s has no lists of asynchronous operations where they were (%s): collectives of a graph run "
            "one after the other",
            tf.__version__,
            error,
        )
        return False
    lists.ASYNC_STATEFUL_OPS, lists.MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS = pruned, always
    return True


def _leave_unconverted() -> None:
    """AutoGraph would rewrite our functions whenever a tf.function is traced; they have nothing for it to convert."""
    with contextlib.suppress(ImportError, AttributeError, TypeError):
        from tensorflow.python.autograph.core import config

        package = __name__.partition(".")[0]
        config.CONVERSION_RULES = (config.DoNotConvert(package), *config.CONVERSION_RULES)


operations, library = _load()
_leave_unconverted()
