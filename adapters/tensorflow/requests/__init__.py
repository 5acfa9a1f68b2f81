"""The request of a collective: everything that the ranks must agree on, as attributes of its operation."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from perseus_like.tables import REDUCING, DType
from perseus_like.tensor import SUM, ReduceOptions

from ..native import VERBS
from . import eager

DTYPES = {tf.as_dtype("bool" if dtype is DType.boolean else dtype.name): int(dtype) for dtype in DType}


@dataclass(frozen=True)
class Request:
    """A collective call without its tensors."""

    verb: str
    name: str | None = None
    set_id: int = 0
    grouped: bool = False
    reduce: ReduceOptions = SUM
    adasum: bool = False
    root: int = 0  # within the set
    whole_name: bool = False  # the name without the name scopes of the node
    member_names: str = ""  # allreduce: the tensors' names in error texts, one per line

    def attributes(self, tensor_name: str) -> dict[str, Any]:
        """Returns the attributes of the verb's operation."""
        own: dict[str, Any] = {"tensor_name": tensor_name, "grouped": self.grouped, "process_set_id": self.set_id}
        op, average, prescale, postscale, wire_dtype = self.reduce
        if VERBS[self.verb] in REDUCING:
            own |= {"reduce_op": op, "average": average}
            own |= {"prescale_factor": repr(float(prescale)), "postscale_factor": repr(float(postscale))}
        if self.verb == "allreduce":
            own |= {"adasum": self.adasum, "wire_dtype": wire_dtype, "member_names": self.member_names}
        if self.verb == "broadcast":
            own["root"] = self.root
        return own

    @functools.cached_property
    def eager_attributes(self) -> tuple[Any, ...]:
        """Returns the attributes of an eager call, names and values in turn."""
        # Blocking calls run one after the other, so they can all have the same name.
        return eager.given({**self.attributes(self.name or "eager"), "wait": True})

    def derived(self, verb: str, suffix: str, **changes: Any) -> Request:
        """Returns a request of another verb for the same set, with a name that is derived from this one."""
        name = f"{self.name or self.verb}_{suffix}"
        return replace(Request(verb, name, self.set_id, self.grouped, whole_name=self.whole_name), **changes)


# Keeps the requests of repeated calls.
request_of = functools.lru_cache(maxsize=1024, typed=True)(Request)
