"""The agreement of ranks on their gradients: the same parameters, one order of arrival, one name."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from threading import current_thread, main_thread
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ..collectives import Collectives, Op, PersistentAllreduce
from ..collectives.handle import HandleEntry, error_of
from ..errors import DisagreementError
from ..objects import first_difference, objects_of_present_ranks
from ..process_sets import ProcessSet
from ..session import session
from ..tables import Start
from ..tensor import ArrayTensors


@dataclass(frozen=True)
class Agreement:
    """The common knowledge of the ranks of a process set about their gradients."""

    order: list[int]  # the order of arrival on the first rank; empty if that rank had joined
    sparse: dict[int, int]  # for each gradient that is sparse on some rank: the number of its sparse dimensions
    complete: bool  # no rank was missing because it had joined
    number: int  # of the owner, if no rank had a number for it: no other owner of the process set has it


class Agreeing:
    """Agrees on the gradients by two small allreduces. The zeros that a joined rank contributes do no harm.

    The first allreduce compares digests: they are equal if their mean square is the square of their mean. If they are
    equal, the second one exchanges lists, whose length is the number of gradients.
    """

    _PIECES = 8

    def __init__(
        self,
        name: str,
        descriptions: Sequence[str],
        order: Sequence[int],
        sparse: dict[int, int],
        process_set: ProcessSet,
        number: int | None = None,
        owner: str = "a model",
        place: int | None = None,
    ) -> None:
        """`number`: what the ranks have agreed on earlier. `owner`: what has the gradients, in error texts.

        `place`: how many owners of equal gradients that have agreed earlier were made before this one; None if the
        order of making says nothing.
        """
        self._name = name
        self._owner = owner
        self._number = number
        self._descriptions = list(descriptions)
        self._process_set = process_set
        self._count = len(descriptions)
        self._body = np.zeros(2 * self._count + 4, np.int64)
        if process_set.rank() == 0:
            self._body[: len(order)] = np.array(order, np.int64) + 1
        for index, dimensions in sparse.items():
            self._body[self._count + index] = dimensions
        self._body[-4:-1] = (1, 0, 0) if place is None else (0, place, -place)
        self._body[-1] = _agreed.get(process_set.require_id(), 0) if number is None else number

    def agree(self) -> Agreement:
        """Blocks until all ranks have agreed. DisagreementError, the same on all ranks, if their parameters differ."""
        pieces = np.frombuffer(_digest(self._descriptions, 2 * self._PIECES), np.uint16).astype(np.int64)
        try:
            head = self._reduce(np.concatenate([[1], pieces, pieces * pieces]), Op.Sum, "step")
        except DisagreementError:  # other ranks are at a step of an owner that has agreed
            is_first = self._number is None
            report_mixture(self._name, self._owner, self._descriptions, is_first, [], self._process_set)
        present = int(head[0])
        sums, squares = head[1 : 1 + self._PIECES], head[1 + self._PIECES :]
        complete = present == self._process_set.size()
        if not np.array_equal(present * squares, sums * sums):
            self._report_difference()
        *body, unknown, highest, lowest, number = self._reduce(self._body, Op.Max, "order").tolist()
        if complete and not unknown and highest != -lowest:
            raise DisagreementError(
                f"ranks make the first steps of {self._owner} with {self._descriptions[0]} and of an equal one in "
                "another order than they made the two; train the same models in the same order on all ranks"
            )
        set_id = self._process_set.require_id()
        _agreed[set_id] = max(_agreed.get(set_id, 0), number + 1)
        order = [index - 1 for index in body[: self._count] if index > 0]
        sparse = {index: dimensions for index, dimensions in enumerate(body[self._count :]) if dimensions > 0}
        return Agreement(order, sparse, complete, number)

    def _reduce(self, values: np.ndarray[Any, Any], op: Op, what: str) -> np.ndarray[Any, Any]:
        contents = described(self._owner, self._descriptions)
        request = PersistentAllreduce(ArrayTensors(), values, op, process_set=self._process_set, contents=contents)
        return request.submit(f"{self._name}.{what}", Start.waiter).result()

    def _report_difference(self) -> NoReturn:
        found = first_difference(objects_of_present_ranks(self._descriptions, self._name, self._process_set))
        if found is None:
            raise DisagreementError("ranks optimize different parameters")
        raise DisagreementError(
            f"ranks optimize different parameters: at position {found}; "
            "build the same model and wrap it in the same way on all ranks"
        )


class OwnChanges(NamedTuple):
    """Describes what this rank did to an owner's parameters since the last step.

    Sets contain positions in the owner's list of parameters.
    """

    frozen: frozenset[int] = frozenset()  # of those with a place in a bucket, all that need no gradient at this step
    removed: frozenset[int] = frozenset()  # gradients that were computed and then set to None
    new: frozenset[int] = frozenset()  # parameters that need a gradient and have no place yet
    error: str = ""  # what all ranks shall raise
    misfits: bool = False  # a parameter has another dtype or device than its place
    written: bool = False  # the program has written to gradients, which is no error
    steps: int | None = None  # how often an optimizer has used the gradients of the last reduction, if that is known
    edited: bool = False  # the program had changed them before


class CommonChanges(NamedTuple):
    """Describes what the ranks did. All ranks get the same."""

    frozen: frozenset[int] = frozenset()  # on all ranks
    removed: frozenset[int] = frozenset()  # on all ranks
    removed_by_some: frozenset[int] = frozenset()
    new: tuple[int, ...] = ()  # on some rank
    misfits: bool = False  # on some rank


class ChangeExchange:
    """Tells the ranks of each other's changes. A step in which no rank changed anything costs one small allreduce."""

    def __init__(self, process_set: ProcessSet) -> None:
        self._process_set = process_set
        self._flags = np.zeros(11, np.int64)
        self._request = PersistentAllreduce(ArrayTensors(), self._flags, Op.Sum, process_set=process_set)
        self._announced: frozenset[int] = frozenset()  # what this rank has last said to be frozen
        self._frozen: frozenset[int] = frozenset()
        self._pending: HandleEntry[Any] | None = None
        self._changed = self._present = 0  # the numbers of ranks that have changed something, and of all
        self._failed = 0  # the number of ranks that have an error
        self.writers = self._sum_of_writers = 0  # the number of ranks whose program has written to gradients
        self.some_edited = False  # some ranks, not all that stepped, had changed what was last reduced
        self.steps_differ = False  # ranks have used it in different numbers of steps

    def forget(self) -> None:
        """Begins anew, because the ranks or the parameters have changed."""
        self._announced = self._frozen = frozenset()
        self._pending = None

    def name_owner(self, owner: str, descriptions: Sequence[str]) -> None:
        """Lets the warnings of a stall name the owner, whose steps have a name that all owners share."""
        self._request.contents = described(owner, descriptions)

    def send(self, common_name: OwnerName, mine: OwnChanges) -> None:
        """Tells the others which owner this rank steps, and whether this rank has changed something.

        All owners use one name, so that ranks that step different ones notice it.
        """
        is_new = mine.frozen != self._announced
        changed = is_new or mine.misfits or bool(mine.removed or mine.new)
        assert common_name.number is not None
        number = common_name.number + 1
        writer = session.core.rank() + 1 if mine.written else 0
        count = mine.steps or 0
        steps = (mine.steps is not None, count, count * count, mine.edited)
        self._flags[:] = (changed, 1, number, number * number, mine.written, writer, *steps, bool(mine.error))
        self._pending = self._request.submit(f"{common_name.name}.step", Start.waiter)

    def are_together(self) -> bool:
        """Waits for the others. Returns False on all ranks if they step different owners."""
        pending, self._pending = self._pending, None
        if pending is None:  # they were asked before
            return True
        try:
            self._changed, self._present, numbers, squares, *rest = pending.result().tolist()
            self.writers, self._sum_of_writers, counted, steps, squares_of_steps, edited, self._failed = rest
            self.some_edited = 0 < edited < counted
            self.steps_differ = counted * squares_of_steps != steps * steps
        except DisagreementError:  # another rank is at the first step of its owner
            return False
        return bool(self._present * squares == numbers * numbers)

    def other_writers(self, mine: OwnChanges) -> str:
        """Returns which other ranks have written to gradients, for a text. Some have, by `writers`."""
        others = self.writers - mine.written
        if others == 1:
            return f"rank {self._sum_of_writers - mine.written * (session.core.rank() + 1) - 1}"
        return f"{others} other ranks"

    def difference_of_steps(self, name: str, owner: str, descriptions: Sequence[str], mine: OwnChanges) -> str:
        """Returns the error of all ranks, whose steps differ. Collective."""
        steps = objects_of_present_ranks(mine.steps, f"{name}.counts", self._process_set)
        first = {count: rank for rank, count in reversed(steps.items()) if count is not None}
        counts = ", ".join(f"rank {rank} made {count}" for count, rank in sorted(first.items(), key=itemgetter(1)))
        return (
            f"ranks make different numbers of steps after one backward pass of {described(owner, descriptions)}: "
            f"{counts}; call backward() and step() equally often on all ranks"
        )

    def discard(self) -> None:
        """Waits for what was sent, and forgets it, if an error has come before `are_together`."""
        pending, self._pending = self._pending, None
        if pending is not None:
            error_of(pending.result)

    def receive(self, name: str, mine: OwnChanges, parameters: int) -> CommonChanges:
        """Returns what the ranks did. `parameters`: their number. Raises RuntimeError on all ranks if one has an error.

        Call `are_together` before.
        """
        if self._failed:
            errors = objects_of_present_ranks(mine.error, f"{name}.errors", self._process_set)
            rank, text = next((rank, text) for rank, text in errors.items() if text)
            raise RuntimeError(f"rank {rank}: {text}")
        if not self._changed:
            return CommonChanges(self._frozen)
        # Ranks that have joined contribute zeros, so everything is a sum.
        table = np.zeros((3, parameters), np.int32)
        for row, positions in zip(table, (mine.frozen, mine.removed, mine.new), strict=True):
            row[list(positions)] = 1
        flags = np.array([mine.misfits], np.int32)
        total = _arrays.allreduce(
            np.concatenate([table.ravel(), flags]), Op.Sum, f"{name}.changes", process_set=self._process_set
        ).result()
        frozen, removed, new = total[:-1].reshape(3, parameters)
        self._announced, self._frozen = mine.frozen, _where(frozen == self._present)
        return CommonChanges(
            self._frozen,
            _where(removed == self._present),
            _where(removed > 0),
            tuple(sorted(_where(new > 0))),
            bool(total[-1] > 0),
        )


def report_mixture(
    name: str,
    owner: str,
    descriptions: Sequence[str],
    is_first: bool,
    in_flight: Sequence[str],
    process_set: ProcessSet,
) -> NoReturn:
    """Raises DisagreementError. The ranks call it together, because they step different owners of gradients.

    `is_first`: this rank is at the first step of its owner. `in_flight`: the allreduces that it has submitted. Those
    that other ranks have not submitted fail.
    """
    step = f"{'the first' if is_first else 'a later'} step of {described(owner, descriptions)}"
    everybody = objects_of_present_ranks((step, list(descriptions), list(in_flight)), f"{name}.steps", process_set)
    others = {each for *_, names in everybody.values() for each in names} - set(in_flight)
    # The dtype is no gradient's, so the requests fail.
    started = [
        _arrays.allreduce(np.zeros(1, np.uint8), Op.Max, each, process_set=process_set) for each in sorted(others)
    ]
    for each in started:
        each.error()
    steps = ", ".join(f"rank {rank} makes {text}" for rank, (text, *_) in everybody.items())
    found = first_difference({rank: theirs for rank, (_, theirs, _) in everybody.items()})
    raise DisagreementError(
        f"ranks step different models: {steps}{'' if found is None else f'; at position {found}'}; train the same "
        "models in the same order on all ranks, and a copy of a model on all ranks or on none"
    )


def described(owner: str, descriptions: Sequence[str]) -> str:
    """Returns a text that names an owner of gradients by its first parameter."""
    more = f" and {len(descriptions) - 1} more" if len(descriptions) > 1 else ""
    return f"{owner} with {', '.join(descriptions[:1])}{more}"


def _digest(descriptions: Sequence[str], size: int) -> bytes:
    return hashlib.blake2b("\n".join(descriptions).encode(), digest_size=size).digest()


def _where(flags: np.ndarray[Any, Any]) -> frozenset[int]:
    return frozenset(flags.nonzero()[0].tolist())


_arrays: Collectives[np.ndarray[Any, Any]] = Collectives(ArrayTensors())
_agreed: dict[int, int] = {}  # by process set: the next number
_reserved: dict[tuple[str, int], int] = {}
# By process set and digest of the descriptions: OwnerName._made of those that have made their first step.
_first_steps: dict[tuple[int, bytes], set[int]] = {}
_counter = itertools.count()
session.on_start(_agreed.clear)
session.on_start(_reserved.clear)
session.on_start(_first_steps.clear)


def reserve_name(kind: str, process_set: ProcessSet) -> str:
    """Returns a name for the requests of one object of this kind.

    It is the same on all ranks if they make such objects, or first use them, in the same order.
    """
    key = (kind, process_set.require_id())
    number = _reserved.get(key, 0)
    _reserved[key] = number + 1
    return f"{kind}.{number}"


class OwnerName:
    """The name under which an owner of gradients agrees with its like on other ranks.

    All owners have the same name, so that a rank which has made more of them, or in another order, either finds the
    right one or gets an error. Threads would mix them up; there the order in which owners are made tells them apart.
    """

    def __init__(self, process_set: ProcessSet, is_renewed: bool = False) -> None:
        """`is_renewed`: the owner had a name in an earlier session, and ranks that are new may not have."""
        self._process_set = process_set
        self._made = None if is_renewed else next(_counter)
        self._in_threads = reserve_name("gradients_of_thread", process_set)
        self.name = ""
        self.number: int | None = None  # what the ranks have agreed on
        self.enter_thread()

    def enter_thread(self) -> None:
        """Chooses the name for the thread that uses the owner from now on."""
        self.name = "gradients" if current_thread() is main_thread() else self._in_threads

    def agree(
        self,
        descriptions: Sequence[str],
        order: Sequence[int] = (),
        sparse: dict[int, int] | None = None,
        owner: str = "a model",
    ) -> Agreement:
        """Agrees with the other ranks on the gradients. Collective; see `Agreeing`.

        Ranks that made two owners of equal gradients in one order and step them in another would mix the gradients:
        nothing else tells the two apart. In threads, the names do.
        """
        equals = _first_steps.setdefault((self._process_set.require_id(), _digest(descriptions, 16)), set())
        made = None if self.name == self._in_threads else self._made
        place = None if made is None else sum(other < made for other in equals)
        agreement = Agreeing(
            *(self.name, descriptions, order, sparse or {}, self._process_set, self.number, owner, place)
        ).agree()
        self.number = agreement.number
        if agreement.complete and made is not None:
            equals.add(made)
        return agreement

    def meet(self, descriptions: Sequence[str], owner: str = "a model") -> str:
        """Returns a name for the owner's requests, which no other owner of the process set has. Collective.

        Raises DisagreementError on all ranks if they have different descriptions.
        """
        self.enter_thread()
        self.agree(descriptions, owner=owner)
        return f"{self.name}.{self.number}"
