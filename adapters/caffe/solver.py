"""DistributedSolver: a pycaffe solver with the gradients of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from perseus_like import world
from perseus_like.collectives import Average, Collectives
from perseus_like.collectives.handle import results_of
from perseus_like.gradients.agreement import OwnerName
from perseus_like.process_sets import global_process_set
from perseus_like.session import session
from perseus_like.tensor import ArrayTensors

from .signals import SNAPSHOT, STOP, SignalRequests

Array = np.ndarray[Any, Any]

_arrays: Collectives[Array] = Collectives(ArrayTensors())


def broadcast_net(net: Any, root_rank: int = 0) -> None:
    """Copies the root rank's parameters (weights, biases, statistics) into the net of all ranks."""
    blobs = [(f"net.{name}.{index}", blob.data) for name, index, blob in _blobs(net)]
    results_of([_arrays.broadcast(data, root_rank, name, in_place=True) for name, data in blobs])


class DistributedSolver:
    """A pycaffe solver whose steps use the mean of all ranks' gradients. All other attributes are the solver's.

    Every rank begins with rank 0's parameters. After the last backward pass of a step, all gradients are reduced as one
    unit, in Caffe's own memory, which cannot be moved to the arena. The batch of a step is that of all ranks together.
    Call `perseus_like.caffe.init()` before the solver is made, so that each rank reads its share of the data.

    Args:
        solver: a solver of pycaffe.
        requests: signals that stop the training or take a snapshot.
    """

    def __init__(self, solver: Any, requests: SignalRequests | None = None) -> None:
        world.init()
        self.solver = solver
        self._requests = requests
        self._generation = -1
        self._name = ""
        broadcast_net(solver.net)
        solver.add_callback(self._on_start, self._on_gradients)

    def __getattr__(self, name: str) -> Any:
        if name == "solver":  # while it is being copied
            raise AttributeError(name)
        return getattr(self.solver, name)

    def step(self, iterations: int) -> None:
        """Runs a number of steps, or fewer if a signal stops the training. All ranks run the same number."""
        self._run(lambda: self.solver.step(iterations))

    def solve(self, resume_file: str | None = None) -> bool:
        """Runs steps up to `max_iter`, then rank 0's last snapshot, loss and test, as Caffe's `Solver::Solve`.

        The solver's settings determine the snapshot, loss and test, as in one process. Returns False if a signal
        stopped the training; then rank 0 does nothing after the last step.
        """
        if resume_file is not None:
            self.restore(resume_file)
        if world.rank() == 0:
            return self._run(self.solver.solve)
        # Caffe allows only the first of several solvers to call Solve.
        return self._run(lambda: self.solver.step(max(self.solver.param.max_iter - self.solver.iter, 0)))

    def restore(self, resume_file: str) -> None:
        """Continues from a snapshot, which every rank reads."""
        self.solver.restore(resume_file)
        broadcast_net(self.solver.net)

    def snapshot(self) -> None:
        """Saves the state of rank 0.

        All ranks have the same parameters except the statistics of BatchNorm, which are those of rank 0's data.
        """
        if world.rank() == 0:
            self.solver.snapshot()

    def _run(self, steps: Callable[[], None]) -> bool:
        """Runs `steps`. Returns False if a signal stopped the training."""
        try:
            steps()
            self._obey()
        except _Stopped:
            return False
        return True

    def _on_start(self) -> None:
        """Obeys signals. Caffe calls it before each step; only an exception ends Caffe's loop."""
        self._obey()

    def _obey(self) -> None:
        if self._requests is None:
            return
        if self._requests.take(SNAPSHOT):
            self.snapshot()
        if self._requests.take(STOP):
            raise _Stopped

    def _on_gradients(self) -> None:
        """Reduces gradients. Caffe calls it after the last backward pass of a step, before the update."""
        if self._generation != session.generation:
            self._agree()
        # `diff` copies gradients from a GPU to the CPU, and marks them to be copied back.
        gradients = [blob.diff for _, _, blob in _blobs(self.solver.net)]
        if self._requests is not None:
            gradients.append(self._requests.flags())
        _arrays.grouped_allreduce(gradients, Average, self._name, in_place=True).result()
        if self._requests is not None:
            self._requests.read_flags()

    def _agree(self) -> None:
        """Raises DisagreementError, with the names of the blobs, if ranks have different nets."""
        described = [
            f"{layer!r} blob {index} {blob.data.dtype}{list(blob.data.shape)}"
            for layer, index, blob in _blobs(self.solver.net)
        ]
        self._name = OwnerName(global_process_set).meet(described)
        self._generation = session.generation


class _Stopped(Exception):
    """Ends Caffe's loop."""


def _blobs(net: Any) -> Iterator[tuple[str, int, Any]]:
    """Yields each parameter once, also if layers share it: its layer, its index in the layer, and the blob."""
    seen: set[int] = set()
    for layer, blobs in net.params.items():
        for index, blob in enumerate(blobs):
            address = blob.data.ctypes.data
            if blob.data.size and address not in seen:
                seen.add(address)
                yield layer, index, blob
