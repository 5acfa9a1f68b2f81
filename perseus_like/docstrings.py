"""Docstrings of the collectives. What all adapters share, such as a parameter's meaning, is written once, here.

`documented` completes the docstring of a function: it adds a line for each parameter that the docstring does not
describe, and the errors that the collective can raise. `documented_as` adds what another function's docstring says.
`help()` shows the complete text. docs/write_docstrings.py writes it into the sources of the wheel, for editors.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

WIDTH = 100
DTYPES = "uint8, int8, int16, int32, int64, float16, bfloat16, float32, float64 or bool"

# The meaning of each parameter, by verb. "" is for all verbs. {tensor} is "tensor", or "tensors" of a grouped verb.
PARAMETERS: dict[str, dict[str, str]] = {
    "": {
        "name": "names the collective in messages and in the timeline. It is the same on all ranks. Collectives "
        "without a name are counted, so all ranks must submit these in the same order.",
        "process_set": "the ranks that take part. The default is all ranks of the job.",
        "average": "deprecated, use `op`: True is Average, False is Sum.",
        "op": "Average (the default), Sum, Min, Max, Product or Adasum. Adasum needs floating dtypes.",
        "prescale_factor": "the factor by which each rank's {tensor} are multiplied before the reduction.",
        "postscale_factor": "the factor by which the result is multiplied.",
        "compression": "the form in which floating-point values are sent: `Compression.none`, `fp16` or `bf16`.",
        "device_dense": "the device on which dense tensors are reduced. The default is the device they are on.",
        "device_sparse": "the device on which sparse tensors are gathered. The default is the device they are on.",
        "ignore_name_scope": "if true, the collective of a graph has exactly the name `name`, which must be unique, "
        "without the name scopes of the graph.",
        "priority": "the priority in the framework's engine. It rarely has an effect, because a collective starts as "
        "soon as its tensors are ready.",
        "root_rank": "the rank whose {tensor} all ranks get. It is a rank in the job, also with a process set.",
    },
    "allreduce": {
        "tensor": f"the tensor to reduce, of any shape and of dtype {DTYPES}. All ranks pass the same shape and dtype.",
        "tensors": f"the tensors to reduce, of any shapes and of dtypes {DTYPES}. All ranks pass the same number of "
        "tensors, with the same shapes and dtypes in the same order.",
    },
    "broadcast": {
        "tensor": f"the tensor to send or to replace, of any shape and of dtype {DTYPES}. All ranks pass the same "
        "shape and dtype.",
    },
    "allgather": {
        "tensor": f"this rank's rows: a tensor of at least one dimension and of dtype {DTYPES}. All ranks pass the "
        "same dtype and shape, except for dimension 0.",
        "tensors": f"this rank's rows of each result: tensors of at least one dimension and of dtypes {DTYPES}. All "
        "ranks pass the same number of tensors, with the same dtypes and shapes except for dimension 0.",
    },
    "alltoall": {
        "tensor": f"the rows to send, in the order of the receiving ranks: a tensor of at least one dimension and of "
        f"dtype {DTYPES}. All ranks pass the same dtype and shape, except for dimension 0.",
        "splits": "the number of rows for each rank of the process set: a list, or a tensor of dtype int32. By default "
        "all ranks get the same number of rows, which must divide dimension 0.",
    },
    "reducescatter": {
        "tensor": f"the tensor to reduce, of at least one dimension and of dtype {DTYPES}. All ranks pass the same "
        "shape and dtype.",
        "tensors": f"the tensors to reduce, of at least one dimension and of dtypes {DTYPES}. All ranks pass the same "
        "number of tensors, with the same shapes and dtypes in the same order.",
        "op": "Average (the default) or Sum.",
    },
    "broadcast_object": {
        "obj": "the object to send. Ranks other than `root_rank` may pass None.",
        "root_rank": "the rank whose object all ranks get. It is a rank in the job, also with a process set.",
    },
    "allgather_object": {
        "obj": "this rank's object. Objects of different ranks may have different types and sizes.",
    },
}

_RANKS = "this rank is not in `process_set`, or the set is not registered."
INVALID: dict[str, str] = {
    "allreduce": "the dtype or `op` is not supported, or " + _RANKS,
    "broadcast": "the dtype is not supported, `root_rank` is not in `process_set`, or " + _RANKS,
    "allgather": "the dtype is not supported, the tensor has no dimension 0, or " + _RANKS,
    "alltoall": "the dtype is not supported, `splits` do not fit the tensor and the process set, or " + _RANKS,
    "reducescatter": "the dtype or `op` is not supported, the tensor has no dimension 0, or " + _RANKS,
    "broadcast_object": "the object of `root_rank` cannot be pickled, `root_rank` is not in `process_set`, or "
    + _RANKS,
    "allgather_object": "the object of a rank cannot be pickled, or " + _RANKS,
}
FAILED = (
    "the collective failed. DisagreementError: the ranks passed different arguments. PeerLostError: a rank has ended. "
    "NotInitializedError: the call was before `init`."
)
LATER = "`init` was not called. `synchronize` raises the errors of the collective itself."

_SECTION = re.compile(r"^(Args|Returns|Raises|Examples):\n", re.MULTILINE)
_ENTRY = re.compile(r"^ {4}(\w+)(?=:)", re.MULTILINE)


def documented(function: F, failed: str | None = None) -> F:
    """Completes the docstring of a collective, as a decorator. `failed`: how its failure is raised, if not as usual."""
    if function.__doc__ is not None:  # python -OO has no docstrings
        function.__doc__ = completed(function.__doc__, function.__name__, _parameters(function), failed)
    return function


def documented_as(model: Callable[..., Any]) -> Callable[[F], F]:
    """Completes a docstring by the parameters and sections of the docstring of `model`, as a decorator."""

    def complete(function: F) -> F:
        if function.__doc__ is not None and model.__doc__ is not None:
            function.__doc__ = completed_as(function.__doc__, model.__doc__, _parameters(function))
        return function

    return complete


def _parameters(function: Callable[..., Any]) -> Sequence[str]:
    code = function.__code__
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def completed(docstring: str, function: str, parameters: Sequence[str], failed: str | None = None) -> str:
    """Returns the docstring with the sections Args, Returns, Raises and Examples, of which some are in PARAMETERS."""
    head, sections = _sections(docstring)
    is_async = function.rstrip("_").endswith("_async")
    is_grouped = function.startswith("grouped_")
    verb = function.rstrip("_").removesuffix("_async").removeprefix("grouped_")
    given = _entries(sections.get("Args", ""))
    known = {**PARAMETERS[""], **PARAMETERS[verb]}
    sections["Args"] = "\n".join(
        given.get(name) or _entry(name, known[name], is_grouped, function.endswith("_")) for name in parameters
    )
    failed = failed or (f"NotInitializedError: {LATER}" if is_async else f"HorovodInternalError: {FAILED}")
    sections.setdefault("Raises", "\n".join([_wrapped(f"ValueError: {INVALID[verb]}"), _wrapped(failed)]))
    return _joined(head, sections)


def completed_as(docstring: str, model: str, parameters: Sequence[str]) -> str:
    """Returns the docstring with the parameters and sections that it lacks, from the docstring `model`."""
    head, own = _sections(docstring)
    _, others = _sections(model)
    entries = {**_entries(others["Args"]), **_entries(own.get("Args", ""))}
    return _joined(head, {**others, **own, "Args": "\n".join(entries[name] for name in parameters)})


def _sections(docstring: str) -> tuple[str, dict[str, str]]:
    """Returns the text before the sections, and the sections by their titles."""
    head, *pieces = _SECTION.split(inspect.cleandoc(docstring))
    return head, {title: body.rstrip() for title, body in zip(pieces[::2], pieces[1::2], strict=True)}


def _joined(head: str, sections: dict[str, str]) -> str:
    texts = [f"{title}:\n{sections[title]}" for title in ("Args", "Returns", "Raises", "Examples") if title in sections]
    return "\n\n".join([head.rstrip(), *texts]) + "\n"


def _entries(section: str) -> dict[str, str]:
    """Returns the lines of each parameter in a section Args."""
    pieces = _ENTRY.split(section)[1:]
    return {name: f"    {name}{text.rstrip()}" for name, text in zip(pieces[::2], pieces[1::2], strict=True)}


def _entry(name: str, text: str, is_grouped: bool, in_place: bool) -> str:
    if in_place and name in ("tensor", "tensors"):
        text += " The result overwrites " + ("them." if is_grouped else "it.")
    text = text.replace("{tensor} are", "tensors are") if is_grouped else text.replace("{tensor} are", "tensor is")
    return _wrapped(f"{name}: {text.replace('{tensor}', 'tensor')}")


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8, break_on_hyphens=False)
