"""The compiled core as Python sees it (csrc/bind). Private: `perseus_like.collectives` is the public face."""

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

class DType(IntEnum):
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
    sum = 0
    min = 1
    max = 2
    product = 3
    band = 4
    bor = 5
    bxor = 6

class ErrorKind(IntEnum):
    invalid_argument = 0
    not_initialized = 1
    disagreement = 2
    peer_lost = 3
    timed_out = 4
    transport = 5
    unavailable = 6
    shut_down = 7

# One tensor: address, dtype, shape, device (-1 host). Contiguous, and alive until the handle is done.
View = tuple[int, int, tuple[int, ...], int]

class Buffer:
    """Memory owned by the core: the result of an allgather, or arena memory. On the host it supports the buffer
    protocol (bytes)."""

    @property
    def address(self) -> int: ...
    @property
    def dtype(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def device(self) -> int:
        """-1: host memory."""
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int) -> memoryview: ...

class Handle:
    """A collective in flight."""

    def done(self) -> bool:
        """True once it is complete, successfully or not."""
    def wait(self) -> None:
        """Blocks without the GIL until complete; raises the error of a failed one. May be called again."""
    def wait_for(self, limit_seconds: float) -> bool:
        """As `wait`, for so long at most; False where it is not complete then."""
    def outputs(self) -> list[Buffer]:
        """Results that the core allocated (allgather, alltoall, reduce-scatter), one per member."""
    def received_splits(self) -> list[int]:
        """After an alltoall: rows that came from each rank."""
    def result(self) -> Any:
        """As `wait`; gives the `tensors` that the verb was called with."""
    def number(self) -> int:
        """After a join: the last rank that joined. After add_process_set: its id."""

class Finished:
    """Numbers of work that has ended, for threads of Python that act on it."""

    def __init__(self) -> None: ...
    def watch(self, handle: Handle, number: int) -> None:
        """`next` gives the number once the work is complete. A handle is watched once."""
    def stop(self) -> None:
        """One more 0 for `next`."""
    def next(self, limit_seconds: float) -> int | None:
        """Sleeps without the GIL until there is a number; None after so long. Any thread."""

# Lifecycle. `start` is idempotent; it finds out by itself who started the process (perseusrun, mpirun, nobody).
# `settings` (PERSEUS_… → value) win over the environment; `python_prefix` is sys.prefix, where wheels of MPI lie;
# `selection` are the ranks of the job, in their order, among those that were started: all where none are named.
# `meeting`: the job is of these ranks, whoever started them: this one's rank, how many, and a collective function that
# gives every rank's bytes, by rank. `called_off`: a descriptor that becomes readable when one of them will not come.
def start(
    settings: dict[str, str],
    python_prefix: str,
    selection: Sequence[int] = (),
    meeting: tuple[int, int, Callable[[bytes], list[bytes]]] | None = None,
    called_off: int = -1,
) -> None: ...
def launched(python_prefix: str) -> tuple[int, int] | None:
    """Rank and size as the launcher says, -1 where it does not; None without a launcher."""

def stop() -> None: ...
def was_cut_off() -> bool:
    """Whether the session that was stopped had lost a host that went without a word."""

def finalize(failing: bool) -> None:
    """At the end of the process: leaves the MPI that `start` has initialised, if any; a failing rank does not wait."""

def is_running() -> bool: ...
def is_mpi_multithreaded() -> bool:
    """Whether the MPI in use allows calls by several threads at once; False without one."""

def c_api() -> int:
    """The address of the table of csrc/capi/perseus.h, for native code of adapters. Valid as long as the process."""

def set_stream_source(source: Callable[[int], int]) -> None:
    """`source(device)`: the handle of the stream on which the framework works on that device, on this thread."""

def has_device_driver() -> bool:
    """Whether an accelerator's driver is here; it is not started."""

def mark_failing() -> None:
    """The process ends because of an error: leave without waiting for the others."""

def start_timeline(path: str, mark_cycles: bool) -> None:
    """Of this rank alone. Raises (invalid_argument) where one is running or the file cannot be written."""

def stop_timeline() -> None: ...

# Numbers of this rank in the job; raise (not_initialized) before start.
def rank() -> int: ...
def size() -> int: ...
def local_rank() -> int: ...
def local_size() -> int: ...
def cross_rank() -> int: ...
def cross_size() -> int: ...
def is_homogeneous() -> bool: ...
def description() -> str:
    """What the session runs on, e.g. "local: 4 ranks, shm"."""

# A name, or a tuple of it and of what the caller's framework calls the collective, on which ranks must agree, too.
Name = str | tuple[str, str] | tuple[str, str, str]

# Verbs. `name` is unique among those in flight in its process set, or ValueError. More than one member is a grouped
# operation: all or nothing. `inputs[i]` and `outputs[i]` may be the same memory; `outputs` None: in place. `tensors`
# owns that memory: it lives until the work is complete, even if the handle is dropped before.
def allreduce(
    name: Name,
    inputs: list[View],
    outputs: list[View] | None,
    op: int,
    average: bool,
    prescale: float,
    postscale: float,
    wire_dtype: int,  # -1: as it is; float16 or bfloat16: compress on the way
    process_set: int,
    tensors: object,
    start: int,  # tensor.Start
) -> Handle: ...
def adasum(
    name: Name,
    inputs: list[View],
    outputs: list[View] | None,
    prescale: float,
    postscale: float,
    wire_dtype: int,
    process_set: int,
    tensors: object,
) -> Handle:
    """An allreduce by adaptive summation; floating types only."""

def broadcast(
    name: Name, inputs: list[View], outputs: list[View] | None, root: int, process_set: int, tensors: object
) -> Handle:
    """`root` is a rank within the process set; its `inputs` reach everybody's `outputs`."""

def allgather(name: Name, inputs: list[View], process_set: int, tensors: object) -> Handle: ...
def alltoall(
    name: Name,
    input: View,
    splits: Sequence[int] | None,
    process_set: int,
    tensors: object,
    expected: Sequence[int] | None = None,
) -> Handle:
    """`splits`: rows for each rank. `expected`: rows from each, given by all ranks or by none, which fail alike where
    others come.
    """

def reduce_scatter(
    name: Name,
    inputs: list[View],
    op: int,
    average: bool,
    prescale: float,
    postscale: float,
    process_set: int,
    tensors: object,
) -> Handle: ...
def post(tensor: View, peer: int, tag: int, outgoing: bool, process_set: int, tensors: object) -> Handle:
    """A message to `peer`, or from it, or from anybody (-1). Ranks are those in the set; `result()` is the sender."""

def barrier(name: Name, process_set: int) -> Handle: ...
def join(process_set: int) -> Handle: ...

# Process sets: 0 is the world.
def add_process_set(ranks: Sequence[int]) -> Handle:
    """Collective over the world; `result()` is the new set's id on all ranks."""

def remove_process_set(process_set: int) -> Handle: ...
def process_set_ranks(process_set: int) -> list[int]: ...
def process_set_ids() -> list[int]: ...

# Sets that their members alone make and take away; the id is this rank's own. `exchange`: as in start's meeting.
# Work that waits longer than the timeout for a rank fails on all members; 0: as the settings say.
def add_group(ranks: Sequence[int], exchange: Callable[[bytes], list[bytes]], timeout_seconds: float = 0.0) -> int: ...
def remove_group(group: int, grace_seconds: float = 1.0) -> None: ...
def missing(process_set: int, name: str, limit_seconds: float) -> list[int] | None:
    """The ranks of the job that have not asked for `name`, which is in flight here, or do not say. All ranks are asked.
    None where nobody answers, as while data are under way.
    """

# Memory that local peers reduce in place. Raises (unavailable) when there is none left.
class Registration:
    """Memory is registered as long as this lives, which must end before the memory does."""

def registers_memory() -> bool:
    """Whether PERSEUS_NCCL_REGISTER is set."""

def register_memory(tensor: View, process_set: int) -> Registration | None:
    """Tells the set's transports of device memory that comes again and again; None where they need not know."""

def allocate(shape: Sequence[int], dtype: int) -> Buffer: ...
def copy_past_caches(target: View, source: View) -> None:
    """Host memory of as many bytes, for a target that is not read soon."""

def show_at(place: int, memory: View) -> None:
    """From now on `place`, an address of a page, and `memory`, which was allocated here, are the same bytes, with what
    `place` held. Its pages are nobody else's. Raises (unavailable) where that cannot be; `place` keeps its bytes.
    """

# Errors: Python hands in one exception class per ErrorKind.
def set_error_class(kind: int, cls: type[BaseException]) -> None: ...

# Every environment variable: (name, horovod_name or "", default, help).
def settings_table() -> list[tuple[str, str, str, str]]: ...

# Horovod's variables that change nothing here: (name, why).
def unused_settings() -> list[tuple[str, str]]: ...

# For benchmarks: a plain copy between two addresses, with or without non-temporal stores.
def copy(to: int, from_: int, bytes: int, streaming: bool) -> None: ...

__version__: str
