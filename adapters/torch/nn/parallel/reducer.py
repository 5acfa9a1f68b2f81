"""Reduces the gradients of a DistributedDataParallel in each backward pass that reaches them.

Complete buckets are reduced while the pass continues. At the end of the pass, which is autograd's graph task, the
reducers of all models that it reached finish in the order in which they were made, which is the same on all ranks.
"""

from __future__ import annotations

import functools
import itertools
import logging
import weakref
from collections.abc import Callable, Mapping, Sequence

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from perseus_like.collectives import Max
from perseus_like.gradients import GradientRules
from perseus_like.process_sets import ProcessSet

from ...autograd import keep_graph
from ...compat.core import NO_BACKWARD, at_end_of_backward, current_backward
from ...compat.dynamo import is_compiling, not_compiled
from ...gradients import Communicate, GradientBuckets
from ...gradients.gradient_watch import StepWatch
from ...gradients.ownership import ReducerPolicy
from ...tensors import collectives

_log = logging.getLogger("perseus_like")
Named = tuple[str, torch.Tensor]
_numbers = itertools.count()  # all ranks make their models in the same order

_TOO_MANY = (
    "a gradient was computed twice in one backward pass, as reentrant checkpointing does with a layer that is used in "
    "several places; use torch.utils.checkpoint with use_reentrant=False, or static_graph=True if all passes are alike"
)


class Reducer:
    """Reduces gradients of one model's parameters that require them. `frozen` parameters may require one later."""

    def __init__(
        self,
        parameters: Sequence[Named],
        frozen: Sequence[Named],
        process_set: ProcessSet,
        find_unused: bool,
        static_graph: bool,
        bucket_bytes: int,
    ) -> None:
        self.reducing = True  # also passes that begin at no output are reduced; each forward pass sets this
        self.is_called = False  # the model has had a forward pass
        self.factor: Callable[[], float] | None = None  # returns a factor for averages
        self._number = next(_numbers)
        self._parameters = list(parameters)
        self._frozen = list(frozen)
        self._process_set = process_set
        self._find_unused = find_unused
        self._static_graph = static_graph
        self._unused_for_good: set[int] | None = None  # the unused parameters of a static graph
        self._used: set[int] = set()  # parameters with gradients since the last reduction
        self._with_graph: dict[int, torch.Tensor] = {}  # the gradients among them that have a graph
        self._is_open = False  # gradients have been computed in this pass
        me = weakref.ref(self)  # hooks live as long as the parameters

        def counts(index: int) -> bool:
            reducer = me()
            return reducer is not None and reducer._counts(index)

        policy = ReducerPolicy("DistributedDataParallel", _TOO_MANY, counts, False, static_graph, bucket_bytes)
        self._buckets = GradientBuckets(self._parameters, GradientRules(process_set=process_set), 1, policy)
        tensors = [parameter for _, parameter in self._parameters]
        self._step_watch = StepWatch(tensors, self._buckets.are_in_place)
        weakref.finalize(self, self._buckets.close)
        _watch_steps()
        _all.append(weakref.ref(self, _all.remove))

    @property
    def name(self) -> str:
        """The name of requests for which the caller waits. All models of a thread have it."""
        return self._buckets.common_name.name

    def expect_end(self) -> None:
        """Makes a backward pass that may reach the parameters call `finish` at its end."""
        task = current_backward()
        ending = _endings.get(task)
        if ending is None:
            ending = _endings[task] = _Ending()
            at_end_of_backward(ending)
        ending.reducers[self._number] = self

    def communicate_by(self, communicate: Communicate) -> None:
        """See GradientBuckets."""
        self._buckets.communicate_by(communicate)

    def recover(self) -> None:
        """Ends a backward pass that failed, because other ranks may wait for it. Called before a forward pass."""
        self._buckets.common_name.enter_thread()
        if self._is_open and current_backward() == NO_BACKWARD:
            _log.warning("a backward pass failed; the gradients that it has computed are reduced")
            self.finish(failed=True)

    def finish(self, failed: bool = False) -> None:
        """Reduces the gradients that are not reduced yet, and waits for all.

        Raises RuntimeError, after all ranks are done, if this rank has no gradient for a parameter and the model was
        made without find_unused_parameters.
        """
        self._is_open = False
        self.reducing = not self.is_called  # a pass through the wrapped module alone is this rank's own
        used, self._used = self._used, set()
        with_graph, self._with_graph = self._with_graph, {}
        missing = [index for index in range(len(self._parameters)) if index not in used]
        looks = self._find_unused or (self._static_graph and self._unused_for_good is None)
        found = self._start_exchange(used) if looks else None

        def share() -> None:
            if self.factor is not None:
                self._buckets.scale(self.factor())
            unused = (self._unused_for_good or set()) if found is None else set(found())
            if looks and self._static_graph:
                self._unused_for_good = unused
            for index in missing:
                if index not in unused and self._parameters[index][1].requires_grad:
                    self._buckets.show(index)

        self._buckets.synchronize([*self._parameters, *self._frozen], share, self._step_watch.take())
        for index, gradient in with_graph.items():
            keep_graph(self._parameters[index][1], gradient, self.expect_end)
        if not (failed or is_compiling()):
            self._step_watch.note()
        late = [pair for pair in self._frozen if self._buckets.knows(pair[1])]
        if late:
            self._frozen = [pair for pair in self._frozen if not self._buckets.knows(pair[1])]
            self._parameters.extend(late)
            self._step_watch.add(parameter for _, parameter in late)
        if missing and not (self._find_unused or self._static_graph or failed):
            self._refuse(missing)

    def forget_step(self) -> None:
        """Call it if the ranks may have made different steps, or if a closure has computed the gradients of a step."""
        self._step_watch.take()

    def contribute(self) -> None:
        """Takes part in a backward pass of the others with zeros. Afterwards, gradients are those of all ranks."""
        self.recover()
        for _, parameter in self._parameters:
            parameter.grad = None
        self._used.clear()
        self._with_graph.clear()
        self.finish(failed=True)

    @property
    def is_open(self) -> bool:
        """Returns whether gradients were computed that are to be reduced, and `finish` was not called since."""
        return self._is_open

    def _counts(self, index: int) -> bool:
        self._used.add(index)
        gradient = self._parameters[index][1].grad
        if gradient is not None and gradient.requires_grad:
            self._with_graph[index] = gradient
        if not self._is_open:
            begins_at_output = any(self._number in ending.reducers for ending in _endings.values())
            if not (self.reducing or begins_at_output):
                return False
            self._is_open = True
            if not begins_at_output:
                self.expect_end()
        return True

    def _start_exchange(self, used: set[int]) -> Callable[[], list[int]]:
        """Returns a function that waits for, and returns, the parameters that no rank has used."""
        mine = torch.zeros(len(self._parameters), dtype=torch.uint8)
        mine[list(used)] = 1
        name = f"{self.name}.used"
        pending = collectives.allreduce(mine, Max, name, process_set=self._process_set, in_place=True)
        return lambda: (pending.result() == 0).nonzero().flatten().tolist()

    def _refuse(self, missing: Sequence[int]) -> None:
        names = [self._parameters[index][0] for index in missing if self._parameters[index][1].requires_grad]
        if not names:
            return
        few = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
        raise RuntimeError(
            f"DistributedDataParallel: this backward pass computed no gradient for {few}; if the loss need not depend "
            f"on every parameter, pass find_unused_parameters=True, else see that every output of forward() enters it"
        )


class _Ending:
    """The callback at the end of a graph task. It does not outlive the task, which may fail."""

    def __init__(self) -> None:
        self.reducers: dict[int, Reducer] = {}

    @not_compiled  # backward runs inside compiled training steps
    def __call__(self) -> None:
        errors: list[Exception] = []
        for _, reducer in sorted(self.reducers.items()):
            if reducer.is_open:
                try:
                    reducer.finish()
                except Exception as error:
                    errors.append(error)
        if errors:
            raise errors[0]


_endings: weakref.WeakValueDictionary[int, _Ending] = weakref.WeakValueDictionary()
_all: list[weakref.ref[Reducer]] = []


@functools.cache
def _watch_steps() -> None:
    register_optimizer_step_pre_hook(_before_step)


def _before_step(optimizer: torch.optim.Optimizer, given: Sequence[object], options: Mapping[str, object]) -> None:
    """Compares the gradients that the optimizer uses. Called before a step of any optimizer of the process."""
    if is_compiling():
        return
    has_closure = len(given) > 1 or options.get("closure") is not None  # it computes the gradients
    for reference in _all[:]:  # another thread may make a model
        if (reducer := reference()) is None:
            continue
        if has_closure:
            reducer.forget_step()
        else:
            reducer._step_watch.look(optimizer)
