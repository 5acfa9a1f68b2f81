"""Import of pycaffe, and its setup for several ranks."""

from __future__ import annotations

import importlib
from typing import Any

from perseus_like import world
from perseus_like.errors import UnavailableError


def load_caffe() -> Any:
    """Returns the module `caffe`. Raises UnavailableError if it is missing."""
    try:
        return importlib.import_module("caffe")
    except ImportError as error:
        raise UnavailableError(
            f"pycaffe cannot be imported ({error}); no package index has it: build Caffe from source with "
            "`make pycaffe` (or cmake -DBUILD_python=ON) and put its folder `python` on PYTHONPATH"
        ) from error


def init(device: int | None = None) -> None:
    """Joins the job, and sets Caffe's number of solvers and rank. Must be called before a solver is made.

    Layers of the types Data and HDF5Data then read every size-th record, and only rank 0 tests and takes snapshots.

    Args:
        device: the GPU to use; None for the CPU, or for the mode that the script has set.
    """
    world.init()
    caffe = load_caffe()
    if device is not None:
        caffe.set_mode_gpu()
        caffe.set_device(device)
    if world.size() == 1:
        return
    # These functions exist since Caffe 1.0. With an earlier Caffe, each process would read all data.
    missing = [name for name in ("set_solver_count", "set_solver_rank", "set_multiprocess") if not hasattr(caffe, name)]
    if missing:
        raise UnavailableError(f"init: this pycaffe has no {', '.join(missing)}; build Caffe 1.0")
    caffe.set_solver_count(world.size())
    caffe.set_solver_rank(world.rank())
    caffe.set_multiprocess(True)
