"""Every rank runs the same tests in the same order; the first failure ends the world."""

from collections.abc import Iterator

import numpy as np
import pytest

import perseus_like.numpy as hvd

if not hasattr(np, "bool"):
    vars(np)["bool"] = np.bool_  # MXNet 1.9 asks for it


@pytest.fixture(scope="session", autouse=True)
def world() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


@pytest.fixture(autouse=True)
def together() -> None:
    """Ranks enter a test together, so that what one leaves behind is not taken for the next one's."""
    hvd.barrier()


@pytest.fixture
def rank() -> int:
    return hvd.rank()


@pytest.fixture
def size() -> int:
    return hvd.size()


@pytest.fixture(autouse=True)
def same_seed() -> None:
    np.random.seed(17)


@pytest.fixture
def two_ranks(size: int) -> None:
    if size < 2:
        pytest.skip("one rank agrees with itself")


@pytest.fixture(autouse=True)
def outside_the_source_tree() -> None:
    """Nothing to do: the world was started outside of it, and its ranks need no folders of their own."""
