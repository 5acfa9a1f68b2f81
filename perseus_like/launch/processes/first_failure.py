"""Finds the rank that failed first, which determines the job's exit code and the launcher's message.

When one rank fails, the others soon fail, too, because they have lost it. They may end before the rank that failed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ...protocol.failure_record import FailureRecord
from ..binding import ranges
from ..command_line.explain import about, pointer

# The traceback of a rank that has failed because of another rank contains this text.
_NAMES_ANOTHER = b"PeerLostError"
TRACEBACK = b"Traceback (most recent call last):"
_LEFT = re.compile(r"PeerLostError: (.*): rank ([0-9]+) has left the job")
_OWN_CLASS = re.compile(r"perseus_like\.errors\.\w+: ")

# The output of faulthandler: the stack of the thread that has crashed, with the innermost call first.
_CRASH = re.compile(r"^(Fatal Python error: .*\n)(?s:.*)^Current thread .*\n((?:  File .*\n)+)", re.MULTILINE)

# Advice about errors of Python or of a framework, by a pattern of the frames and the exception.
_IN_KERAS_3 = '; see the table "Keras 3" in docs/migrating-from-horovod.md'
_HINTS = {
    r"No module named 'horovod": "start the job with `perseusrun --as-horovod`, or import perseus_like in its place",
    r"argument 'experimental_run_tf_function'": f"Keras 3 does not need it: leave it out{_IN_KERAS_3}",
    r"`keras\.optimizers\.legacy` is not": f"Keras 3 has no legacy optimizers: leave out `.legacy`{_IN_KERAS_3}",
    r"no attribute '_compute_gradients'": f"under Keras 3, call `gradient` of a DistributedGradientTape{_IN_KERAS_3}",
    r"\.variables\(\)[^\n]*\n[^\n]*'list' object is not callable": "under Keras 3, an optimizer's `variables` is a "
    f"property: leave out the `()`{_IN_KERAS_3}",
}

_MOST_KEPT = 16384  # the list of extension modules after the stack may have several thousand bytes
_MOST_LINES = 5
_SHORTEST_WORD = 20  # errors of a program may have shorter texts of this library, such as "not a number", by chance


class RankEvidence:
    """Collects what explains the end of a process: its record, and its last lines on stderr. An `output.Filter`.

    `log` is the path of the file with the whole stderr, if there is one. `rank` is the process's rank, if it is one.
    """

    def __init__(self, blames_another: bool = False, log: str | None = None, rank: int | None = None) -> None:
        self.rank = rank
        self.record: FailureRecord | None = None
        self._always_blames = blames_another
        self._has_blamed = False
        self.has_ended_badly = False
        self.look: Callable[[], FailureRecord | None] | None = None  # reads the record of a process that still runs
        self._log = log
        self._end = b""

    def pass_on(self, data: bytes) -> bytes:
        """Returns `data` unchanged."""
        text = self._end[-len(_NAMES_ANOTHER) :] + data
        self._has_blamed = self._has_blamed or _NAMES_ANOTHER in text
        self._end = (self._end + data)[-_MOST_KEPT:]
        return data

    def rest(self) -> bytes:
        """Returns nothing, since nothing is held back."""
        return b""

    def has_failed(self) -> bool:
        """Returns True once an exception was not caught, or the process has ended with a failure."""
        record = self.record or (self.look() if self.look else None)
        return self.has_ended_badly or (record is not None and record.error != "")

    def blames_another(self) -> bool:
        """Returns True if the process has reported that it lost another."""
        return self._always_blames or (self.record.is_consequence if self.record else self._has_blamed)

    def summary(self) -> str:
        """Returns the exception in one line; empty if it is not known."""
        error = self.record.error if self.record else ""
        if not error:  # an error before `import perseus_like`
            error = next((line for line in self._traceback() if line and not line.startswith(" ")), "")
        return error.splitlines()[0] if error else ""

    def account(self, is_named: bool = False) -> list[str]:
        """Returns the lines that say why the process has failed: its exception, or what it wrote last to stderr.

        If the reader already has the exception's first line (`is_named`), that line is left out.
        """
        lines = []
        if self.record and self.record.error:
            error = self.record.error.splitlines()[int(is_named) :]
            lines = [*(line for frame in self.record.frames for line in frame.splitlines()), *error]
        elif is_named and (places := [line[2:] for line in self._traceback() if re.match("  .*[^ ^~]", line)]):
            lines = places[-6:]  # three frames
        elif kept := self._last_lines():
            lines = ["its last lines on stderr:", *(f"  {line}" for line in kept)]
        section = about(self.record.error) if self.record else None
        if section and len(section.word()) >= _SHORTEST_WORD:
            lines.append(pointer(section))
        text = "\n".join([*(self.record.frames if self.record else []), self.summary()])
        lines += [hint for pattern, hint in _HINTS.items() if re.search(pattern, text)]
        return [*lines, f"its full log: {self._log}"] if self._log else lines

    def _traceback(self) -> list[str]:
        """Returns the lines after the head of the last traceback that the process has printed."""
        found = self._end.rpartition(TRACEBACK)
        return found[2].decode(errors="replace").splitlines() if found[1] else []

    def _last_lines(self) -> list[str]:
        text = self._end.decode(errors="replace").replace("\r\n", "\n")
        if crash := _CRASH.search(text):
            return [crash[1].rstrip(), *crash[2].splitlines()[: _MOST_LINES - 1]]
        lines = text.split("\n")
        return [line for line in lines if line.strip() and "\r" not in line][-_MOST_LINES:]  # no progress bars


@dataclass(frozen=True)
class Failure:
    """The failure of a process or a host."""

    who: str
    how: str
    code: int
    was_killed: bool
    evidence: RankEvidence = field(default_factory=RankEvidence)

    def blames_another(self) -> bool:
        """Returns True if it is the consequence of another failure."""
        return self.evidence.blames_another()

    def summary(self) -> str:
        """Returns the failure in one line."""
        return ": ".join(filter(None, (f"{self.who} {self.how}", self.evidence.summary())))


def early_ends(found: list[Failure], ended: Mapping[int, str]) -> list[Failure]:
    """Returns failures of ranks that have ended with code 0, and that others have lost in a collective.

    `found` are the failures that are known, and `ended` has the names of the ranks that have ended with code 0.
    """
    lost: dict[tuple[int, str], list[Failure]] = {}
    for failure in found:
        left = _LEFT.search(failure.evidence.summary())
        if left and int(left[2]) in ended and failure.evidence.rank is not None:
            lost.setdefault((int(left[2]), left[1]), []).append(failure)
    return [
        _early_end(rank, ended[rank], collective, waiting)
        for (rank, collective), waiting in sorted(lost.items(), key=lambda item: item[0])
    ]


def _early_end(rank: int, who: str, collective: str, waiting: list[Failure]) -> Failure:
    ranks = _ranks(waiting)
    others = f"rank{'s' if len(ranks) > 1 else ''} {ranges(ranks)}"
    first = waiting[0].evidence.record
    frames = [f"rank {waiting[0].evidence.rank} needed it here:", *first.frames] if first and first.frames else []
    evidence = RankEvidence(rank=rank)
    evidence.record = FailureRecord(
        who, "ranks with fewer batches than others call hvd.join() after their last", frames
    )
    return Failure(who, f"ended with code 0 while {others} needed it in {collective}", waiting[0].code, False, evidence)


def _of_all(failures: list[Failure]) -> str:
    """Returns failures that differ in nothing but the rank in one line, with the ranks in front."""
    if len(failures) == 1:
        return failures[0].summary()
    how = f"each of ranks {ranges(_ranks(failures))} {failures[0].how}"
    return ": ".join(filter(None, (how, failures[0].evidence.summary())))


def _ranks(failures: list[Failure]) -> list[int]:
    return sorted({failure.evidence.rank for failure in failures if failure.evidence.rank is not None})


@dataclass(frozen=True)
class Line:
    """A line of the report about a job, and the details below it."""

    text: str
    details: list[str] = field(default_factory=list)
    is_failure: bool = False


class FirstFailure:
    """All failures of a job, and the first one."""

    def __init__(self) -> None:
        self._failures: list[Failure] = []
        self.first: Failure | None = None

    def add(self, failure: Failure) -> None:
        """Adds a failure. Call it in the order in which failures were noticed."""
        self._failures.append(failure)

    def add_missed(self, missed: Callable[[list[Failure]], list[Failure]]) -> None:
        """Adds failures that are found at the end of the job. `missed` gets the failures that are known."""
        if self.first is None or self.first.blames_another():
            more = missed(self._failures)
            self._failures += more
            self.first = None if more else self.first

    def __bool__(self) -> bool:
        return bool(self._failures)

    def decide(self, is_final: bool) -> bool:
        """Returns True if the first failure has become known now.

        If every failure blames another rank, only a final decision chooses one of them.
        """
        if self.first or not self._failures:
            return False
        self.first = (
            # A rank that was killed has not failed because of another rank.
            next((failure for failure in self._failures if failure.was_killed), None)
            or next((failure for failure in self._failures if not failure.blames_another()), None)
            or (self._failures[0] if is_final else None)
        )
        return self.first is not None

    def report(self, size: int, is_known: bool) -> list[Line]:
        """Returns the report of a job of `size` ranks that has failed. It begins and ends with the first failure.

        It does not begin with it if `is_known`, since the user has read it. Failures that differ in nothing but the
        rank are one line.
        """
        if self.first is None:
            return []
        groups: dict[object, list[Failure]] = {}
        for failure in self._failures:
            summary = failure.evidence.summary()
            key = (failure.how, summary) if failure.evidence.rank is not None else id(failure)
            groups.setdefault(key, []).append(failure)
        together = next(group for group in groups.values() if self.first in group)
        first = self.first
        if 1 < size == len(_ranks(together)):
            error = _OWN_CLASS.sub("", first.evidence.summary(), count=1) or f"each {first.how}"
            return [Line(f"all {size} ranks failed: {error}", first.evidence.account(is_named=True), is_failure=True)]
        others = [Line(f"after that, {_of_all(group)}") for group in groups.values() if group is not together]
        before = [Line(_of_all(together), is_failure=True)] if others and not is_known else []
        who = first.who if len(together) == 1 else f"each of ranks {ranges(_ranks(together))}"
        return [*before, *others, Line(f"first failure: {who} {first.how}", first.evidence.account(), is_failure=True)]
