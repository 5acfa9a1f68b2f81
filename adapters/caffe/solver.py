"""pycaffe's solvers over all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from perseus_like import basics
from perseus_like.collectives import Average, Collectives
from perseus_like.gradients import Agreeing, claim_name
from perseus_like.handle import results_of
from perseus_like.process_sets import global_process_set
from perseus_like.session import session
from perseus_like.tensor import ArrayTensors

from .signals import SNAPSHOT, STOP, Requests

Array = np.ndarray[Any, Any]

_arrays: Collectives[Array] = Collectives(ArrayTensors())


def broadcast_net(net: Any, root_rank: int = 0) -> None:
    """Root's parameters (weights, biases, statistics) into the net of all ranks."""
    blobs = [(f"net.{name}.{place}", blob.data) for name, place, blob in _blobs(net)]
    results_of([_arrays.broadcast(data, root_rank, name, in_place=True) for name, data in blobs])


class DistributedSolver:
    """A pycaffe solver whose steps use the mean of all ranks' gradients. All else is the solver's.

    Every rank begins with rank 0's parameters. Gradients are reduced when the last backward pass of a step has ended,
    all of them as one unit, in Caffe's own memory, which cannot be moved into the arena. Settings are the solver's: a
    batch is now that of all ranks. Call `perseus_like.caffe.init()` before the solver is made, so that ranks share the
    data out. `requests`: signals that stop it or have it take a snapshot.
    """

    def __init__(self, solver: Any, requests: Requests | None = None) -> None:
        basics.init()
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
        """So many steps, or fewer when a signal stops it. All ranks take the same number."""
        self._run(lambda: self.solver.step(iterations))

    def solve(self, resume_file: str | None = None) -> bool:
        """Caffe's `Solver::Solve`: steps up to `max_iter`, then the last snapshot, loss and test of rank 0.

        The solver's settings decide on these, as in one process. Returns False if a signal stopped it: rank 0 then
        does nothing after the last step.
        """
        if resume_file is not None:
            self.restore(resume_file)
        if basics.rank() == 0:
            return self._run(self.solver.solve)
        # Caffe allows Solve only in the first of several solvers.
        return self._run(lambda: self.solver.step(max(self.solver.param.max_iter - self.solver.iter, 0)))

    def restore(self, resume_file: str) -> None:
        """Goes on from a snapshot, which every rank reads."""
        self.solver.restore(resume_file)
        broadcast_net(self.solver.net)

    def snapshot(self) -> None:
        """Of rank 0. The others have the same parameters, but for the statistics of BatchNorm: those of rank 0's data
        are saved.
        """
        if basics.rank() == 0:
            self.solver.snapshot()

    def _run(self, steps: Callable[[], None]) -> bool:
        """False if a signal stopped it."""
        try:
            steps()
            self._obey()
        except _Stopped:
            return False
        return True

    def _on_start(self) -> None:
        """Caffe calls it before each step. It has no way to end its loop but an exception."""
        self._obey()

    def _obey(self) -> None:
        if self._requests is None:
            return
        if self._requests.take(SNAPSHOT):
            self.snapshot()
        if self._requests.take(STOP):
            raise _Stopped

    def _on_gradients(self) -> None:
        """Caffe calls it after the last backward pass of a step, before it updates."""
        if self._generation != session.generation:
            self._agree()
        # Asked for anew each time: where gradients are on a GPU this brings them to the CPU, and later back.
        gradients = [blob.diff for _, _, blob in _blobs(self.solver.net)]
        if self._requests is not None:
            gradients.append(self._requests.telling())
        _arrays.grouped_allreduce(gradients, Average, self._name, in_place=True).result()
        if self._requests is not None:
            self._requests.heard()

    def _agree(self) -> None:
        """DisagreementError, with their names, where the ranks have different nets."""
        name = claim_name(global_process_set)
        described = [
            f"{layer!r} blob {place} {blob.data.dtype}{list(blob.data.shape)}"
            for layer, place, blob in _blobs(self.solver.net)
        ]
        Agreeing(name, described, [], {}, global_process_set).settle()
        self._generation, self._name = session.generation, name


class _Stopped(Exception):
    """The way out of Caffe's loop."""


def _blobs(net: Any) -> Iterator[tuple[str, int, Any]]:
    """Each parameter once, also where layers share it: its layer, its place there, and the blob."""
    seen: set[int] = set()
    for layer, blobs in net.params.items():
        for place, blob in enumerate(blobs):
            address = blob.data.ctypes.data
            if blob.data.size and address not in seen:
                seen.add(address)
                yield layer, place, blob
