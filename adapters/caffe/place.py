"""Caffe itself, and its place among the ranks."""

from __future__ import annotations

import importlib
from typing import Any

from perseus_like import basics
from perseus_like.errors import UnavailableError


def load_caffe() -> Any:
    """The module `caffe`. UnavailableError, with what to do, where there is none."""
    try:
        return importlib.import_module("caffe")
    except ImportError as error:
        raise UnavailableError(
            f"pycaffe is not here ({error}). No package index has it: build Caffe from source with `make pycaffe` "
            "(or cmake -DBUILD_python=ON) and put its folder `python` on PYTHONPATH"
        ) from error


def init(device: int | None = None) -> None:
    """Joins the job, and tells Caffe which of how many solvers this is; before a solver is made.

    Layers of the types Data and HDF5Data then read every size-th record, and only rank 0 tests and takes snapshots.
    `device`: the GPU to use; without one the CPU, unless the script has chosen before.
    """
    basics.init()
    caffe = load_caffe()
    if device is not None:
        caffe.set_mode_gpu()
        caffe.set_device(device)
    if basics.size() == 1:
        return
    # Of Caffe 1.0. Earlier ones have no notion of other processes: each reads all data.
    missing = [name for name in ("set_solver_count", "set_solver_rank", "set_multiprocess") if not hasattr(caffe, name)]
    if missing:
        raise UnavailableError(f"this pycaffe has no {', '.join(missing)}, which Caffe 1.0 has")
    caffe.set_solver_count(basics.size())
    caffe.set_solver_rank(basics.rank())
    caffe.set_multiprocess(True)
