"""horovod.runner.common.util.codec: Python objects as text."""

from __future__ import annotations

import base64
import pickle
from typing import Any


def dumps_base64(obj: Any, to_ascii: bool = True) -> str | bytes:
    """Returns `obj` pickled by cloudpickle, in base64: a str, or bytes if `to_ascii` is false."""
    import cloudpickle

    encoded = base64.b64encode(cloudpickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL))
    return encoded.decode("ascii") if to_ascii else encoded


def loads_base64(encoded: str | bytes) -> Any:
    """Returns the object of `dumps_base64`. Only pass text that this job has made: unpickling runs code."""
    return pickle.loads(base64.b64decode(encoded))


__all__ = ["dumps_base64", "loads_base64"]
