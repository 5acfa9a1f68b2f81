"""TensorFlow's errors that are ours: the kernels put the kind in front of the text, and here both are found again."""

from __future__ import annotations

import re

from perseus_like.errors import CLASSES

# Of native/core.cc. TensorFlow adds to a text which node it was, and which operation.
_OURS = re.compile(r"HorovodInternalError \((\w+)\): (.*?)(?=\n\t ?\[\[|\s*\[Op:|$)", re.DOTALL)


def translated(error: BaseException) -> BaseException | None:
    """The error of a collective by our class and with its text alone; None for what is no error of a collective."""
    found = _OURS.search(str(error))
    if found is None or found[1] not in CLASSES:
        return None
    return CLASSES[found[1]](found[2].strip())
