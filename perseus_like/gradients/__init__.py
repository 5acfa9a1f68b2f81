"""The rules of reducing gradients: operation, factors, groups, local gradients, sparse gradients and compression.

All frameworks share them. An optimizer, tape or trainer that reduces gradients has a `GradientRules`. `GradientReducer`
reduces gradients that are given all at once, as to a tape.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from threading import current_thread, main_thread
from typing import Any

from ..collectives import Average, Op, resolve_op
from ..collectives.compression import NoneCompressor, is_called
from ..process_sets import ProcessSet, global_process_set
from ..protocol.messages import is_elastic
from ..session import session
from .buckets import Bucket, Member, lay_out
from .thread_numbers import mark_of_thread

Groups = int | Sequence[Sequence[Any]] | None
# By name and ranks, for each optimizer that has stepped: the order in which it was made, and its variables.
_stepped: dict[tuple[str, tuple[int, ...]], list[tuple[int, list[Member[Any]]]]] = {}
_counter = itertools.count()


@dataclass(frozen=True)
class GradientRules:
    """The options of one optimizer, tape or trainer that reduces gradients. `gradient_rules` checks them."""

    op: Op = Average
    prescale: float = 1.0
    postscale: float = 1.0
    process_set: ProcessSet = global_process_set
    compression: Any = NoneCompressor
    groups: int | list[list[Hashable]] = 0  # a number of groups, or lists of keys of parameters
    sparse_as_dense: bool = False
    scale_local_gradients: bool = True

    @property
    def factors(self) -> tuple[float, float]:
        return self.prescale, self.postscale

    @property
    def communicates(self) -> bool:
        """False if no other rank takes part: the process set has one rank, or this rank is not in it.

        An elastic job of one rank may get more ranks later, but an optimizer is made once, and a function traced once.
        """
        size = self.process_set.size() or session.core.size()
        return (size > 1 or is_elastic()) and self.process_set.included() is not False

    def groups_of(self, keys: Sequence[Hashable]) -> list[list[int]] | None:
        """Returns the groups as positions in `keys`, which are the keys of the parameters. None without groups."""
        if isinstance(self.groups, int):
            return divide_into_groups(len(keys), self.groups) if self.groups else None
        positions = {key: position for position, key in enumerate(keys)}
        return [[positions[key] for key in group if key in positions] for group in self.groups]


def gradient_rules(
    known: Sequence[Op],
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    groups: Groups = None,
    key_of: Callable[[Any], Hashable] = id,
    process_set: ProcessSet = global_process_set,
    compression: Any = NoneCompressor,
    sparse_as_dense: bool = False,
    scale_local_gradients: bool = True,
) -> GradientRules:
    """Checks the options that users give.

    `known` has the operations that the optimizer supports. `key_of` returns the key of a parameter in `groups`.
    ValueError if an option is wrong, or if two options contradict each other.
    """
    chosen = resolve_op(op)
    if chosen not in known:
        names = [each.name for each in known]
        raise ValueError(f"gradients are reduced by {', '.join(names[:-1])} or {names[-1]}, not {chosen.name}")
    factor = gradient_predivide_factor
    if factor != 1.0 and chosen is not Average:
        raise ValueError(f"gradient_predivide_factor needs op=Average, but op is {chosen.name}; omit the factor")
    if factor == 0:
        raise ValueError("gradient_predivide_factor is 0, but gradients are divided by it; pass a positive number")
    return GradientRules(
        *(chosen, 1.0 / factor, factor, process_set, compression, checked_groups(groups, key_of)),
        *(sparse_as_dense, scale_local_gradients),
    )


def checked_groups(groups: Groups, key_of: Callable[[Any], Hashable] = id) -> int | list[list[Hashable]]:
    """Returns a number of groups, 0 without groups, or lists of keys. ValueError for anything else."""
    if groups is None or isinstance(groups, int):
        if groups is not None and groups < 0:
            raise ValueError(f"the number of groups is {groups}, but must not be negative")
        return groups or 0
    if not isinstance(groups, list | tuple) or any(not isinstance(group, list | tuple) for group in groups):
        raise ValueError(f"groups is {groups!r}; pass a number, or a list of lists of parameters")
    keys = [[key_of(parameter) for parameter in group] for group in groups]
    listed = list(itertools.chain(*keys))
    if len(set(listed)) != len(listed):
        raise ValueError("groups: a parameter occurs twice; put each parameter in one group")
    return keys


def number_of_groups(num_groups: int, groups: Groups) -> Groups:
    """Returns `groups`, or the value of its deprecated name. Call it in the function that the user calls."""
    if num_groups:
        warnings.warn("num_groups is deprecated; pass the number as groups", DeprecationWarning, stacklevel=3)
    return num_groups or None if groups is None else groups


def divide_into_groups(count: int, groups: int) -> list[list[int]]:
    """Divides the numbers below `count` into `groups` ranges of nearly equal length."""
    bounds = [count * number // groups for number in range(groups + 1)]
    return [list(range(start, end)) for start, end in itertools.pairwise(bounds) if end > start]


def checked_passes(passes: int) -> int:
    """Returns `backward_passes_per_step`. ValueError unless it is positive."""
    if passes < 1:
        raise ValueError(f"backward_passes_per_step is {passes}; pass at least one backward pass")
    return passes


def layers_of(local_layers: Any) -> list[Any]:
    """Returns `local_layers`, a layer or several layers of Keras, as a list. ValueError for other objects."""
    several = isinstance(local_layers, Iterable) and not hasattr(local_layers, "trainable_weights")
    layers = [] if local_layers is None else list(local_layers) if several else [local_layers]
    strange = [repr(layer) for layer in layers if not hasattr(layer, "trainable_weights")]
    if strange:
        raise ValueError(f"local_layers takes a layer or a list of layers, not {', '.join(strange)}")
    return layers


def reduce_shared(
    gradients: Sequence[Any],
    is_local: Sequence[bool],
    reduce: Callable[[list[int]], Sequence[Any]],
    divide: Callable[[Any], Any] | None,
) -> list[Any]:
    """Returns all gradients: what `reduce` returns for the positions of shared ones, and local ones, which stay here.

    `divide` divides a local gradient by the number of ranks, so that it has the weight of an averaged one. Without it,
    local gradients are unchanged.
    """
    results = list(gradients)
    shared = [position for position, local in enumerate(is_local) if not local]
    for position, gradient in zip(shared, reduce(shared), strict=True):
        results[position] = gradient
    if divide is not None:
        for position, local in enumerate(is_local):
            if local and results[position] is not None:
                results[position] = divide(results[position])
    return results


class GradientReducer(ABC):
    """Reduces the gradients of one tape or optimizer, which are given with their variables, in the same order.

    Dense gradients are reduced in buckets, one request for each. The variables alone determine the bucket of a
    gradient, so ranks with different gradients make the same requests and get an error: in its bucket, an empty tensor
    of shape [0] stands for a missing gradient, and one of shape [0, 0] for a sparse gradient. All other requests start
    after the first bucket, which also contains the number of buckets. If ranks have different models, the first bucket
    therefore fails, and no rank waits for requests that another rank does not make.

    The shape of a further empty tensor in the first bucket contains the thread of a tape. Tapes of several threads have
    the same names, so ranks whose threads call in different orders get an error.

    An optimizer has two numbers: how many have made their first step before it, and how many of those with equal shapes
    were made after it. The shapes of two further empty tensors in the first bucket contain them, so that ranks which
    step different optimizers with equal shapes get an error.

    A subclass has the operations of its framework.
    """

    def __init__(self, name: str, rules: GradientRules, name_in_threads: str = "", is_optimizer: bool = False) -> None:
        """`name` is the prefix of the names of requests. Reducers may share it, because a call waits for its requests.

        `name_in_threads`: the prefix if the call is not in the main thread. Then other reducers may run at once, and
        need other names. `is_optimizer`: the reducer is used for all steps of one optimizer.
        """
        self._name = name
        self._name_in_threads = name_in_threads or name
        self.rules = rules
        self._is_optimizer = is_optimizer
        self._made = next(_counter)
        self._numbers: tuple[int, int] | None = None
        self._local: dict[Hashable, Any] = {}  # the variable is kept, so that its id is not reused

    @property
    def name(self) -> str:
        return self._name if current_thread() is main_thread() else self._name_in_threads

    def register_local(self, variable: Any) -> None:
        """Marks a variable as local: its gradient is not reduced; see `scale_local_gradients`."""
        self._local[self.key_of(variable)] = variable

    def is_local(self, variable: Any) -> bool:
        return self.key_of(variable) in self._local

    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Returns the reduced gradients. A gradient that is None on all ranks stays None."""
        if not self.rules.communicates:
            return list(gradients)

        def reduce(shared: list[int]) -> list[Any]:
            return self._reduce([gradients[index] for index in shared], [variables[index] for index in shared])

        divide = self.divided if self.rules.scale_local_gradients else None
        return reduce_shared(gradients, [self.is_local(variable) for variable in variables], reduce, divide)

    def _reduce(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        if self.rules.sparse_as_dense:
            gradients = [self.dense(each) if self.is_sparse(each) else each for each in gradients]
        members = {
            index: self.member(gradient, variable)
            for index, (gradient, variable) in enumerate(zip(gradients, variables, strict=True))
        }
        # A backward pass computes the gradients of the last layers first.
        order = range(len(members) - 1, -1, -1)
        groups = self.rules.groups_of([self.key_of(variable) for variable in variables])
        buckets = lay_out(members, order, groups).buckets
        optimizer, younger = self._numbers_of_optimizer([*members.values()])
        started: list[Any] = []
        for number, bucket in enumerate(buckets):
            facts = [] if number else self._facts(len(buckets))
            with self.after(started[:1]):
                mark = (optimizer, younger) if number == 0 else (0, 0)
                started.append(self._start_bucket(number, bucket, gradients, variables, facts, mark))
        results: list[Any] = [None] * len(gradients)
        for number, (bucket, reduced) in enumerate(zip(buckets, self.finished(started), strict=True)):
            own = reduced[1:] if number == 0 and optimizer else reduced
            for index, gradient in zip(bucket.members, own, strict=False):
                if gradients[index] is not None:
                    results[index] = gradient
        with self.after(started[:1]):
            for index, gradient in enumerate(gradients):
                if self.is_sparse(gradient):
                    results[index] = self.reduce_sparse(f"{self.name}.sparse_gradient_{index}", gradient)
        return results

    def _facts(self, buckets: int) -> list[tuple[int, str]]:
        """Returns what the ranks must agree on beside the gradients: numbers, each with its words in error texts."""
        facts = []
        if buckets > 1:
            facts.append((buckets, f"gradients of several types or sizes, in {buckets} buckets"))
        # Optimizers have names of their own in threads. A compression of the program would get the empty tensor.
        if not self._is_optimizer and not is_called(self.rules.compression) and (thread := mark_of_thread()):
            facts.append(thread)
        return facts

    def _numbers_of_optimizer(self, variables: list[Member[Any]]) -> tuple[int, int]:
        """Returns the number of optimizers that have stepped before this one, with the same ranks in the main thread.

        The second result is how many of them have such variables and were made after this one. Returns zeros for tapes,
        which are made for each step; in threads, where names differ; if a compression of the program would get the
        empty tensors; and in an elastic job, in which a new worker does not know the past.
        """
        rules = self.rules
        if (
            not self._is_optimizer
            or current_thread() is not main_thread()
            or is_elastic()
            or is_called(rules.compression)
        ):
            return 0, 0
        if self._numbers is None:
            stepped = _stepped.setdefault((self._name, tuple(rules.process_set.ranks or ())), [])
            younger = sum(made > self._made and theirs == variables for made, theirs in stepped)
            self._numbers = (len(stepped), younger)
            stepped.append((self._made, variables))
        return self._numbers

    def _start_bucket(
        self,
        number: int,
        bucket: Bucket[Any],
        gradients: list[Any],
        variables: list[Any],
        facts: list[tuple[int, str]],
        mark: tuple[int, int],
    ) -> Any:
        def stand_in(index: int) -> Any:
            """Returns a gradient as a member of its bucket."""
            if gradients[index] is None:
                return self.zeros([0], bucket.kind)
            return self.zeros([0, 0], bucket.kind) if self.is_sparse(gradients[index]) else self.dense(gradients[index])

        members = [stand_in(index) for index in bucket.members]
        members += [self.zeros([0, fact], bucket.kind) for fact, _ in facts]
        words = [f"gradient {index}, of {self._words(gradients[index], variables[index])}" for index in bucket.members]
        words += [f"\t{text}" for _, text in facts]
        optimizer, younger = mark
        if optimizer:
            # At the start, where the other ranks' texts name a gradient.
            first = self._words(gradients[bucket.members[0]], variables[bucket.members[0]]).partition("\t")[0]
            members.insert(0, self.zeros([0, optimizer], bucket.kind))
            words.insert(0, f"\tgradients of optimizer {optimizer + 1} (in the order of first steps), of {first}")
            # At the end, so that other shapes are reported as such.
            members.append(self.zeros([0, younger], bucket.kind))
            words.append(f"\tgradients after steps of {younger} equal optimizers that were made later, of {first}")
        return self.start_dense(f"{self.name}.gradients_{number}", members, "\n".join(words))

    def _words(self, gradient: Any, variable: Any) -> str:
        """Returns the variable's name in error texts; after a tab, what this rank has in place of a dense gradient."""
        name = str(getattr(variable, "path", None) or getattr(variable, "name", None) or "a tensor").removesuffix(":0")
        if gradient is None:
            return f"{name}\tno gradient"
        return f"{name}\ta sparse gradient" if self.is_sparse(gradient) else name

    @staticmethod
    @abstractmethod
    def key_of(variable: Any) -> Hashable:
        """Returns a key that identifies a variable."""

    @abstractmethod
    def member(self, gradient: Any, variable: Any) -> Member[Any]:
        """Returns the size and dtype of the variable, for any gradient on this rank."""

    @abstractmethod
    def zeros(self, shape: list[int], kind: Any) -> Any:
        """Returns a new tensor of the kind of a bucket."""

    @abstractmethod
    def is_sparse(self, gradient: Any) -> bool: ...

    @abstractmethod
    def dense(self, gradient: Any) -> Any:
        """Returns a gradient as a dense tensor."""

    @abstractmethod
    def divided(self, gradient: Any) -> Any:
        """Returns a gradient divided by the number of ranks."""

    @abstractmethod
    def start_dense(self, name: str, members: list[Any], member_names: str) -> Any:
        """Starts to reduce tensors by one request. `member_names` has a line for each, as for `Collectives`."""

    @abstractmethod
    def after(self, started: list[Any]) -> contextlib.AbstractContextManager[Any]:
        """Returns a context in which requests start after those that `start_dense` has started, if they succeed."""

    @abstractmethod
    def finished(self, started: list[Any]) -> list[list[Any]]:
        """Returns the reduced tensors of each request that `start_dense` has started."""

    @abstractmethod
    def reduce_sparse(self, name: str, gradient: Any) -> Any:
        """Reduces a sparse gradient."""
