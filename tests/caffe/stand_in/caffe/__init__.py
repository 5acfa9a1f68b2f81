"""A stand-in for pycaffe, whose solver trains a perceptron with one hidden layer in NumPy.

If there are several solvers, each one reads its own records, as Caffe's data layer does.
"""

from __future__ import annotations

import pickle
import re
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

calls: list[tuple[Any, ...]] = []
_place = {"count": 1, "rank": 0}


def set_mode_gpu() -> None:
    calls.append(("mode", "gpu"))


def set_device(device: int) -> None:
    calls.append(("device", device))


def set_solver_count(count: int) -> None:
    _place["count"] = count


def set_solver_rank(rank: int) -> None:
    _place["rank"] = rank


def set_multiprocess(multiprocess: bool) -> None:
    calls.append(("multiprocess", multiprocess))


class Blob:
    """Has values and gradients. Each access to an attribute returns a new view of the same memory, as in pycaffe."""

    def __init__(self, values: Array) -> None:
        self._data, self._diff = values.astype(np.float32), np.zeros(values.shape, np.float32)

    @property
    def data(self) -> Array:
        return self._data[...]

    @property
    def diff(self) -> Array:
        return self._diff[...]


class Net:
    def __init__(self, seed: int) -> None:
        random = np.random.RandomState(seed)
        first, second = [Blob(random.randn(6, 4)), Blob(np.zeros(6))], [Blob(random.randn(3, 6)), Blob(np.zeros(3))]
        # The last layer shares its weights with the second.
        self.params = OrderedDict(first=first, second=second, shared=[second[0]])

    def forward_backward(self, rows: Array, targets: Array) -> None:
        """Adds the gradients of the mean squared error."""
        (w1, b1), (w2, b2) = self.params["first"], self.params["second"]
        hidden = np.tanh(rows @ w1.data.T + b1.data)
        error = 2 * (hidden @ w2.data.T + b2.data - targets) / len(rows)
        back = (error @ w2.data) * (1 - hidden**2)
        for blob, gradient in ((w2, error.T @ hidden), (b2, error.sum(0)), (w1, back.T @ rows), (b1, back.sum(0))):
            blob.diff[...] += gradient

    def copy_from(self, path: str) -> None:
        for name, values in pickle.loads(Path(path).read_bytes())["net"].items():
            for blob, each in zip(self.params[name], values, strict=True):
                blob.data[...] = each


class Solver:
    """Trains the net by the settings in a solver file.

    The settings are base_lr, momentum, max_iter, snapshot, snapshot_after_train, snapshot_prefix, display,
    test_interval, iter_size, batch and seed. Caffe names snapshots after the solver file if there is no prefix, or if
    the prefix is a folder.
    """

    def __init__(self, path: str) -> None:
        self.text = re.sub(r"#.*", "", Path(path).read_text())
        calls.append(("solver", self.text))
        prefix, file = Path(self._setting("snapshot_prefix", str(Path(path).with_suffix("")))), Path(path)
        self.snapshot_prefix = prefix / file.stem if prefix.is_dir() else prefix
        self.net = Net(int(self._setting("seed", "0")))
        self.test_nets: list[Net] = []
        self.iter = 0
        self.param = SimpleNamespace(max_iter=int(self._setting("max_iter", "0")))
        self._callbacks: list[tuple[Callable[[], None], Callable[[], None]]] = []
        self._history = [np.zeros(blob.data.shape) for blob in self._own_blobs()]
        self._count, self._rank = _place["count"], _place["rank"]
        self._record = 0

    def add_callback(self, on_start: Callable[[], None], on_gradients: Callable[[], None]) -> None:
        self._callbacks.append((on_start, on_gradients))

    def step(self, iterations: int) -> None:
        for _ in range(iterations):
            for blob in self._own_blobs():
                blob.diff[...] = 0
            for on_start, _ in self._callbacks:
                on_start()
            passes = int(self._setting("iter_size", "1"))
            for _ in range(passes):
                self.net.forward_backward(*self._next_batch(int(self._setting("batch", "4"))))
            for _, on_gradients in self._callbacks:
                on_gradients()
            self._update(passes)
            self.iter += 1
            every = int(self._setting("snapshot", "0"))
            if every and self.iter % every == 0 and self._rank == 0:
                self.snapshot()

    def solve(self) -> None:
        """Does the same as Caffe's Solver::Solve, in the same order and under the same conditions."""
        assert self._rank == 0, "only the root solver may call Solve"
        self.step(self.param.max_iter - self.iter)
        every = int(self._setting("snapshot", "0"))
        if self._setting("snapshot_after_train", "true") in ("true", "1") and (not every or self.iter % every != 0):
            self.snapshot()
        for setting, event in (("display", "final loss"), ("test_interval", "final test")):
            interval = int(self._setting(setting, "0"))
            if interval and self.iter % interval == 0:
                calls.append((event, self.iter))

    def snapshot(self) -> None:
        content = {"net": self._values(), "iter": self.iter, "history": self._history}
        path = f"{self.snapshot_prefix}_iter_{self.iter}.solverstate"
        Path(path).write_bytes(pickle.dumps(content))
        calls.append(("snapshot", path))

    def restore(self, path: str) -> None:
        content = pickle.loads(Path(path).read_bytes())
        self.net.copy_from(path)
        self.iter, self._history = content["iter"], content["history"]

    def _values(self) -> dict[str, list[Array]]:
        return {name: [blob.data.copy() for blob in blobs] for name, blobs in self.net.params.items()}

    def _own_blobs(self) -> list[Blob]:
        return [*self.net.params["first"], *self.net.params["second"]]

    def _next_batch(self, size: int) -> tuple[Array, Array]:
        """Returns the next records of this solver and their targets.

        Records have numbers without an end. If there are `count` solvers, every `count`-th record is this solver's.
        """
        numbers = range(self._record, self._record + size * self._count)
        self._record = numbers[-1] + 1
        rows = [np.random.RandomState(number).randn(4) for number in numbers if number % self._count == self._rank]
        made = np.stack(rows)
        return made, np.stack([made.sum(1), made[:, 0], made[:, 1] * 2], 1)

    def _update(self, passes: int) -> None:
        rate, momentum = float(self._setting("base_lr", "0.01")), float(self._setting("momentum", "0"))
        for blob, history in zip(self._own_blobs(), self._history, strict=True):
            history[...] = momentum * history + rate * blob.diff / passes
            blob.data[...] -= history

    def _setting(self, name: str, default: str) -> str:
        found = re.search(rf"\b{name}\s*:\s*\"?([\w./-]+)", self.text)
        return default if found is None else found[1]


def get_solver(path: str) -> Solver:
    return Solver(path)


SGDSolver = Solver
