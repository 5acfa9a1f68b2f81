"""Checks that after a failure, tensors that a peer may still write to stay alive, and that other tensors do not."""

import importlib.util
import os
import re
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.job import python_of

# Rank 0 watches the memory of three allreduces. Rank 1 ends in the second one, see CRASHES and STOPS.
HEAD = """
import gc, weakref
hvd.init()
COUNT = 1 << 22
watched = []

def watched_ones():
    array = ones(COUNT)
    watched.append(weakref.ref(array))
    return array

def alive():
    gc.collect()
    return [array() is not None for array in watched]

still_works()
"""

# Rank 1 crashes after it has received a part of rank 0's tensor and has sent a part of its own.
CRASHES = """
def before_the_second():
    pass

if rank == 1:
    arrays = [ones(COUNT) for _ in range(3)]
    crash_at_second_half(arrays[1])
    for i, array in enumerate(arrays):
        hvd.allreduce_(array, op=hvd.Sum, name=str(i))
"""

# Rank 1 has requested the second and third one when it is stopped, before rank 0 requests them. So it receives nothing
# of them until the test kills it.
STOPS = """
pid_of_rank_1 = int(hvd.allgather(np.array([os.getpid()]))[1])

def before_the_second():
    hvd.barrier()  # rank 0 knows the requests before it
    os.kill(pid_of_rank_1, signal.SIGSTOP)
    wait_until(lambda: Path(f"/proc/{pid_of_rank_1}/stat").read_text().rpartition(") ")[2][0] == "T")

if rank == 1:
    report(pid=os.getpid())
    arrays = [ones(COUNT) for _ in range(3)]
    handles = [hvd.allreduce_async_(array, op=hvd.Sum, name=str(i)) for i, array in enumerate(arrays)]
    hvd.barrier()
    for handle in handles:
        hvd.synchronize(handle)
"""
ONLY_THE_SECOND = [False, True, False]

NUMPY = """
arrays = [watched_ones() for _ in range(3)]
hvd.allreduce_(arrays[0], op=hvd.Sum, name="0")
report(sums=bool((arrays[0] == 2).all()))
before_the_second()
handles = [hvd.allreduce_async_(arrays[i], op=hvd.Sum, name=str(i)) for i in (1, 2)]
report(seen=[outcome_of(lambda: hvd.synchronize(handle)) for handle in handles])
del arrays, handles
report(alive=alive())
"""

# The inputs are in memory of arrays that the program can watch.
EAGER = """
def reduced(i):
    tensor = tf.experimental.dlpack.from_dlpack(watched_ones().__dlpack__())
    return hvd_tf.allreduce(tensor, op=hvd_tf.Sum, name=str(i))
"""

# Only the allreduce uses its input, so TensorFlow uses the input's memory for the result.
IN_A_FUNCTION = """
queue = tf.queue.FIFOQueue(3, tf.float32, [[COUNT]])
addresses = []
for _ in range(3):
    tensor = tf.ones([COUNT])
    addresses.append(np.asarray(memoryview(tensor)).ctypes.data)
    queue.enqueue(tensor)
del tensor

def reduced(i):
    return tf.function(lambda: hvd_tf.allreduce(queue.dequeue(), op=hvd_tf.Sum, name=str(i)))()

def alive():
    # Freed memory is unmapped, or one of the new tensors gets it.
    gc.collect()
    new = [tf.fill([COUNT], 7.0) for _ in range(6)]
    return [value_at(address) in (1.0, 2.0) for address in addresses]

def value_at(address):
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        try:
            memory.seek(address)
            return float(np.frombuffer(memory.read(4), np.float32)[0])
        except OSError:
            return "nothing is mapped there"

report(addresses=addresses, alive_before=alive())
"""

TENSORFLOW = """
import tensorflow as tf
import perseus_like.tensorflow as hvd_tf
{reduced}
first = reduced(0)
values = np.asarray(memoryview(first))
report(sums=bool((values == 2).all()), address=values.ctypes.data)
del first, values
before_the_second()
report(seen=[outcome_of(lambda: reduced(i)) for i in (1, 2)])
report(alive=alive())
"""

MXNET = """
vars(np).setdefault("bool", bool)  # MXNet wants this name, which some releases of NumPy do not have
import mxnet as mx
import perseus_like.mxnet as hvd_mx

arrays = [mx.nd.from_numpy(watched_ones(), zero_copy=True) for _ in range(3)]
hvd_mx.allreduce_(arrays[0], op=hvd_mx.Sum, name="0")
report(sums=bool((arrays[0].asnumpy() == 2).all()))
before_the_second()
for i in (1, 2):
    hvd_mx.allreduce_(arrays[i], op=hvd_mx.Sum, name=str(i))
report(seen=[outcome_of(array.wait_to_read) for array in arrays[1:]])
del arrays
gc.collect()
outcome_of(mx.nd.waitall)  # MXNet frees memory when earlier work in its engine is done
report(alive=alive())
"""


@pytest.fixture
def lose_rank_1(start: Any) -> Callable[..., dict[str, Any]]:
    """Returns a function that runs two ranks, of which rank 1 ends, and returns the reports of rank 0.

    The launcher waits until rank 0 ends by itself.
    """
    patient = (
        "import sys; from perseus_like.launch import main; from perseus_like.launch.mpi import run_mpi; "
        "from perseus_like.launch.processes import supervise; "
        "supervise.FAILURE_GRACE_SECONDS = run_mpi.FAILURE_GRACE_SECONDS = 60.0; sys.exit(main())"
    )

    def lose(program: str, how: str, options: tuple[str, ...] = (), **settings: Any) -> dict[str, Any]:
        launcher = [sys.executable, "-c", patient, *options]
        world = start(2, HEAD + how + program, launcher=launcher, HOROVOD_FUSION_THRESHOLD="0", **settings)
        if how == STOPS:
            world.wait_for_line("allreduce '1' stands still")
            os.kill(world.facts_of(1)["pid"], signal.SIGKILL)
        world.end()
        facts: dict[str, Any] = world.facts_of(0)
        if re.search(r"ccl_worker_func: worker \d+ caught internal exception", world.output):
            pytest.skip("a thread of oneCCL noticed that its connection ended, and ended the process itself")
        assert "alive" in facts, world.output
        assert facts["sums"], facts
        assert world.code != 0
        return facts

    return lose


@pytest.fixture
def lose_rank_1_over_mpi(lose_rank_1: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Returns the same function for ranks that MPI connects. MPICH's mpirun does not end rank 0 after the loss."""

    def lose(program: str, **settings: Any) -> dict[str, Any]:
        options = ("--mpi", "--mpi-args=-disable-auto-cleanup")
        chosen = {"PERSEUS_CPU_TRANSPORT": "mpi", "PERSEUS_STALL_CHECK_TIME_SECONDS": "1"}
        return lose_rank_1(program, STOPS, options, **chosen, **settings)

    return lose


def test_tensors_of_the_collective_in_which_a_rank_crashes_stay_alive(run: Any) -> None:
    """Rank 1 crashes when its engine reads the second tensor, because the memory of this tensor is not readable."""
    world = run(
        2,
        """
        import ctypes, gc, weakref
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher ends rank 0 as soon as rank 1 has crashed
        start()
        arrays = [hvd.empty(1 << 20) for _ in range(3)]
        for array in arrays:
            array[:] = 1
        still_works()
        if rank == 1:
            place = ctypes.c_void_p(arrays[1].ctypes.data)
            assert ctypes.CDLL(None).mprotect(place, ctypes.c_size_t(arrays[1].nbytes), 0) == 0
        handles = [hvd.allreduce_async_(array, op=hvd.Sum, name=str(i)) for i, array in enumerate(arrays)]
        seen = [outcome_of(lambda: hvd.synchronize(handle))["kinds"] for handle in handles]
        watched = [weakref.ref(array) for array in arrays]
        del arrays, array, handles
        gc.collect()
        report(seen=seen, alive=[array() is not None for array in watched])
        """,
        HOROVOD_FUSION_THRESHOLD="0",
    )
    facts = world.facts_of(0)
    assert "seen" in facts, world.output
    assert not facts["seen"][0], facts
    for kinds in facts["seen"][1:]:
        assert "HorovodInternalError" in kinds, facts
    assert facts["alive"] == ONLY_THE_SECOND, facts
    assert world.code != 0


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="no TensorFlow")
# Beside other work, TensorFlow sometimes gives the operation in a function a copy of the queue's tensor.
@pytest.mark.slow
@pytest.mark.parametrize("reduced", [EAGER, IN_A_FUNCTION], ids=["eagerly", "in_a_function"])
def test_tensors_of_tensorflow(reduced: str, lose_rank_1_over_mpi: Callable[..., dict[str, Any]]) -> None:
    facts = lose_rank_1_over_mpi(TENSORFLOW.format(reduced=reduced), TF_CPP_MIN_LOG_LEVEL="3")
    if reduced is IN_A_FUNCTION:
        assert facts["alive_before"] == [True] * 3
        assert facts["address"] == facts["addresses"][0]
    for name, seen in zip("12", facts["seen"], strict=True):
        assert f"allreduce '{name}'" in seen["text"], facts
    assert facts["alive"] == ONLY_THE_SECOND, facts


def test_arrays_in_mxnets_engine(lose_rank_1_over_mpi: Callable[..., dict[str, Any]]) -> None:
    facts = lose_rank_1_over_mpi(MXNET, python=python_of("mxnet"))
    for name, seen in zip("12", facts["seen"], strict=True):
        assert f"allreduce '{name}'" in seen["text"], facts
    assert facts["alive"] == ONLY_THE_SECOND, facts


def test_arrays_in_messages_of_mpi(lose_rank_1_over_mpi: Callable[..., dict[str, Any]]) -> None:
    facts = lose_rank_1_over_mpi(NUMPY)
    for seen in facts["seen"]:
        assert "HorovodInternalError" in seen["kinds"], facts
    assert facts["alive"] == ONLY_THE_SECOND, facts


@pytest.mark.slow
def test_arrays_in_a_call_of_oneccl(lose_rank_1: Callable[..., dict[str, Any]]) -> None:
    """The second array stays alive, because a thread of oneCCL never returns from the second allreduce."""
    facts = lose_rank_1(NUMPY, CRASHES, python=python_of("oneccl"), PERSEUS_CPU_TRANSPORT="oneccl")
    for seen in facts["seen"]:
        assert "HorovodInternalError" in seen["kinds"], facts
    assert facts["alive"] == ONLY_THE_SECOND, facts
