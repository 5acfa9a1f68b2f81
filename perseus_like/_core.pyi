"""The compiled core as Python sees it (csrc/bind). Private: `perseus_like.collectives` is the public face."""

from collections.abc import Callable, Sequence
from typing import Any

from .tables import DType as DType
from .tables import ErrorKind as ErrorKind
from .tables import ReduceOp as ReduceOp
from .tables import Start as Start
from .tables import Verb as Verb
from .tensor import ReduceOptions

# One tensor: address, dtype, shape, device (-1: host). It is contiguous, and alive until the handle is done.
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
    def wait_alone(self, limit_seconds: float) -> bool:
        """Does the same as `wait_for`, but only the current stream waits for the device, not that of the submission."""
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

# `start` starts the session and is idempotent. `settings` (PERSEUS_… → value) override the environment. `python_prefix`
# is sys.prefix, which contains wheels of MPI. `launcher` is a launchers.OwnLauncher; without it, the job has one rank.
# `selection` has the ranks of the job, in its order, among those that were started. An empty one stands for all ranks.
# `rendezvous` defines the job without a launcher: this process's rank, the size, and a collective function that returns
# every rank's bytes, by rank. `cancel_fd` is a descriptor that becomes readable if one of these ranks will not start.
# `lost` is an eventfd to which the core adds 1 when a rank is lost, so that the collective function can end.
def start(
    settings: dict[str, str],
    python_prefix: str,
    launcher: tuple[str, int, int, str, str] | None = None,
    selection: Sequence[int] = (),
    rendezvous: tuple[int, int, Callable[[bytes], list[bytes]]] | None = None,
    cancel_fd: int = -1,
    lost: int = -1,
) -> None: ...
def stop() -> None: ...
def was_cut_off() -> bool:
    """Whether the session that was stopped had lost a host that went without a word."""

def finalize_at_exit() -> None:
    """Makes the end of this process finalize the MPI that `start` has initialized, if any.

    A rank with another exit code than 0 does not wait for the other ranks.
    """

def is_running() -> bool: ...
def synchronize_device() -> None:
    """Blocks until the device has executed everything that this process has queued on it.

    Raises the error of a lost rank, or of an engine that has failed.
    """

def is_mpi_multithreaded() -> bool:
    """Whether the MPI in use allows calls by several threads at once; False without one."""

def c_api() -> int:
    """The address of the table of csrc/capi/perseus.h, for native code of adapters. Valid as long as the process."""

def handle_at(address: int, tensors: object) -> Handle:
    """Returns a handle of a request that native code has started; `address`: what start() of perseus.h has stored."""

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
def ranks_of_hosts() -> list[list[int]]: ...
def description() -> str:
    """Describes the session's transports, e.g. "local: 4 ranks, shm"."""

# A name, or a tuple of the name and the framework's description of the collective. Both must be equal on all ranks.
Name = str | tuple[str, str] | tuple[str, str, str]

# Verbs. `name` is unique among the requests in flight in its process set, else ValueError. A request with several
# members is grouped: if one fails, all fail. `inputs[i]` and `outputs[i]` may be the same memory. If `outputs` is None,
# the request is in place. `tensors` owns the memory and lives until the request is complete, even without a handle.
def allreduce(
    name: Name,
    inputs: list[View],
    outputs: list[View] | None,
    options: ReduceOptions,
    process_set: int,
    tensors: object,
    start: int,  # Start
) -> Handle: ...
def adasum(
    name: Name,
    inputs: list[View],
    outputs: list[View] | None,
    options: ReduceOptions,  # without `op`
    process_set: int,
    tensors: object,
    start: int,  # Start
) -> Handle:
    """An allreduce by adaptive summation; floating types only."""

def broadcast(
    name: Name, inputs: list[View], outputs: list[View] | None, root: int, process_set: int, tensors: object
) -> Handle:
    """`root` is a rank within the process set; its `inputs` reach everybody's `outputs`."""

# An allgather or reduce-scatter through NCCL writes to `outputs`, which are on a device; `Handle.outputs` is then
# empty. Through host memory, the core allocates the results.
def allgather(
    name: Name, inputs: list[View], process_set: int, tensors: object, outputs: list[View] | None = None
) -> Handle: ...
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
    options: ReduceOptions,
    process_set: int,
    tensors: object,
    outputs: list[View] | None = None,
) -> Handle:
    """`options` without a wire dtype."""

def post(
    tensor: View, peer: int, tag: int, outgoing: bool, process_set: int, tensors: object, own_dtype: str = ""
) -> Handle:
    """A message to `peer`, or from it, or from anybody (-1). Ranks are those in the set; `result()` is the sender.

    `own_dtype`: the framework's name of a dtype that the core does not have; both sides must have the same.
    """

def barrier(name: Name, process_set: int) -> Handle: ...
def join(process_set: int, device: int = -1) -> Handle:
    """`device`: used by a rank that has had no tensor on a device; -1: the core chooses."""

# Process sets. The global set has the id 0.
def add_process_set(ranks: Sequence[int]) -> Handle:
    """Registers a set. Collective over the global set. `result()` is the new set's id on all ranks."""

def remove_process_set(process_set: int) -> Handle: ...
def process_set_ranks(process_set: int) -> list[int]: ...
def process_set_ids() -> list[int]: ...

# Sets that only their members create and remove. The id differs between ranks. `exchange` is as in `rendezvous`.
# A request that waits longer than the timeout for a rank fails on all members. With 0, the timeout is a setting's.
def add_group(ranks: Sequence[int], exchange: Callable[[bytes], list[bytes]], timeout_seconds: float = 0.0) -> int: ...
def remove_group(group: int, grace_seconds: float = 1.0) -> None: ...
def missing(process_set: int, name: str, limit_seconds: float) -> list[int] | None:
    """Queries all ranks for those that have not submitted `name`, which is in flight here, or do not answer.

    Returns None if no rank answers, for example while data is being sent.
    """

class Registration:
    """The memory stays registered until this object is released. Release it before freeing the memory."""

def registers_memory() -> bool:
    """Returns True if PERSEUS_NCCL_REGISTER is set."""

def register_memory(tensor: View, process_set: int) -> Registration | None:
    """Registers device memory that is used repeatedly with the set's transports; None if they do not need it."""

# Allocates memory that local peers reduce in place. Raises (unavailable) if there is none left.
def allocate(shape: Sequence[int], dtype: int) -> Buffer: ...
def copy_past_caches(target: View, source: View) -> None:
    """Copies host memory with non-temporal stores, for a target that is not read soon."""

def register_shared_memory(address: int, bytes: int) -> Registration | None:
    """Lets the ranks of this host reduce memory in place that another library shares between processes by a file.

    Returns None if their transport does not use shared memory. Raises (unavailable) if no file is behind the memory.
    """

def optimizer_step(
    options: dict[str, str | float],
    dtype: int,
    gradients: Sequence[int],
    parameters: int,
    master: int,
    first: int,
    second: int,
    count: int,
) -> None:
    """Updates `count` parameters and moments in place; arguments as in csrc/device/host/optimizer/optimizer_step.h.

    `gradients`, `parameters`, `master`, `first` and `second` are addresses; 0 stands for memory that is not needed.
    """

def new_rendezvous_address() -> str:
    """Returns a random address for `file_of_first`."""

def file_of_first(address: str, rank: int, size: int, fd: int, limit_seconds: float) -> int:
    """Returns a new descriptor of the file that rank 0 passes as `fd`. Collective over `size` ranks of one host.

    The other ranks pass any descriptor. Only processes of the same user that know the address are connected.
    """

# Sets the exception class that the core raises for one ErrorKind.
def set_error_class(kind: int, cls: type[BaseException]) -> None: ...

# Returns every environment variable: (name, horovod_name or "", default, help).
def settings_table() -> list[tuple[str, str, str, str]]: ...

# Returns Horovod's variables without an effect here: (name, reason).
def unused_settings() -> list[tuple[str, str]]: ...

# Copies between two addresses, with or without non-temporal stores. Benchmarks use it.
def copy(to: int, from_: int, bytes: int, streaming: bool) -> None: ...

__version__: str
