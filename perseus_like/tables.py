"""The core's numbers of element types, reductions, errors, verbs and starts.

`csrc/generate_tables.py` writes this module from `csrc/base/tables.h`. Do not edit it.
"""

from __future__ import annotations

from enum import IntEnum


class DType(IntEnum):
    """Element types."""

    uint8 = 0
    int8 = 1
    int16 = 2
    int32 = 3
    int64 = 4
    float16 = 5
    bfloat16 = 6
    float32 = 7
    float64 = 8
    boolean = 9
    uint16 = 10


class ReduceOp(IntEnum):
    """The operation of a reduction. An average is a sum that is divided."""

    sum = 0
    min = 1
    max = 2
    product = 3
    band = 4
    bor = 5
    bxor = 6


class ErrorKind(IntEnum):
    """Kinds of errors. `errors.CLASSES` has the exception class of each."""

    invalid_argument = 0  # a mistake of the caller on this rank: ValueError
    not_initialized = 1  # a call before init or after shutdown
    disagreement = 2  # ranks submitted different requests under one name; the job goes on
    peer_lost = 3  # a rank died or left; the session has ended
    timed_out = 4  # a rank did not submit its part in time
    transport = 5  # MPI, oneCCL, NCCL or the system reported a failure
    unavailable = 6  # a library, memory or a device is missing
    shut_down = 7  # this session was shut down before the work was complete


class Verb(IntEnum):
    """Collectives. `join` is a state of a rank, and the engine has no request for it."""

    allreduce = 0
    adasum = 1  # an allreduce by adaptive summation; floating types only
    broadcast = 2
    allgather = 3  # along the first dimension, in which ranks may differ
    alltoall = 4  # one tensor
    reduce_scatter = 5
    barrier = 6  # no tensor
    add_process_set = 7
    remove_process_set = 8
    join = 9  # no tensor and no name


REDUCING = (Verb.allreduce, Verb.adasum, Verb.reduce_scatter)  # the verbs with an operation and factors


class Start(IntEnum):
    """The thread that executes an allreduce."""

    engine = 0  # the engine's thread, which is woken
    call = 1  # the calling thread: the allreduce is complete on return
    waiter = 2  # the calling thread, in its next call, which waits for the handle; no thread is woken
