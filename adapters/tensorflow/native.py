"""The native library with this adapter's operations, loaded into the TensorFlow of this process."""

from __future__ import annotations

import ctypes
import functools
import logging
from pathlib import Path
from typing import Any

import tensorflow as tf

from perseus_like.errors import UnavailableError
from perseus_like.session import session
from perseus_like.tables import Verb

from .compat import graphs

logger = logging.getLogger(__name__)

PATH = Path(__file__).with_name("_native.so")

# The verbs that have an operation, by their words in texts. Adasum is an attribute of allreduce.
_WITHOUT = (Verb.adasum, Verb.add_process_set, Verb.remove_process_set)
VERBS = {verb.name.replace("_", ""): verb for verb in Verb if verb not in _WITHOUT}


@functools.cache
def operation_of(verb: str) -> str:
    """Returns the name of a collective's operation. Saved graphs contain it."""
    return "Perseus" + VERBS[verb].name.title().replace("_", "")


# Any number of these operations may run at once. Those that always run do so even if their results are not used.
_ALWAYS_RUN = {operation_of(verb) for verb in ("broadcast", "barrier", "join")}
_PRUNED_IF_UNUSED = {*map(operation_of, VERBS), "PerseusNumber"} - _ALWAYS_RUN
OPERATIONS = _ALWAYS_RUN | _PRUNED_IF_UNUSED


def _load() -> tuple[Any, ctypes.CDLL]:
    if not PATH.exists():
        raise UnavailableError(
            f"perseus_like.tensorflow cannot be used: {PATH} is missing; install a perseus_like that was built with it"
        )
    operations = tf.load_op_library(str(PATH))
    library = ctypes.CDLL(str(PATH))
    library.perseus_tensorflow_problem.restype = ctypes.c_char_p
    library.perseus_tensorflow_start.argtypes = [ctypes.c_void_p]
    library.perseus_tensorflow_start_xla.restype = ctypes.c_char_p
    problem = library.perseus_tensorflow_problem().decode()
    if problem:
        raise UnavailableError(
            f"the operations of perseus_like cannot be registered in TensorFlow {tf.__version__}: {problem}; "
            "install TensorFlow 2.15 or later"
        )
    library.perseus_tensorflow_start(session.core.c_api())
    return operations, library


@functools.cache
def asynchronous() -> bool:
    """Returns whether any number of collectives of a graph may run at once. Otherwise they run one after the other.

    The first call starts TensorFlow's devices. The program must have chosen its devices before.
    """
    if not _completes_later():
        logger.warning(
            "TensorFlow %s passes the callback of an asynchronous operation in an unknown form: collectives of a graph "
            "run one after the other, and each blocks a thread of TensorFlow",
            tf.__version__,
        )
        return False
    try:
        graphs.run_at_once(_PRUNED_IF_UNUSED, _ALWAYS_RUN)
    except (ImportError, AttributeError, TypeError) as error:
        logger.warning(
            "TensorFlow %s has no lists of asynchronous operations in the known place (%s): collectives of a graph run "
            "one after the other",
            tf.__version__,
            error,
        )
        return False
    return True


def _completes_later() -> bool:
    """Returns whether a kernel can complete after its function has returned (compat/done_callback.cc)."""
    with tf.init_scope():
        if tf.executing_eagerly():
            return bool(operations.perseus_probe())
    with tf.Graph().as_default() as graph:
        probe = operations.perseus_probe()
        config = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
        with tf.compat.v1.Session(graph=graph, config=config) as session:
            return bool(session.run(probe))


operations, library = _load()
