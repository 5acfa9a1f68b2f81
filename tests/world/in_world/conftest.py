"""Fixtures of the tests that each rank of a world runs, in the same order. The first failure ends the world."""

from collections.abc import Iterator

import numpy as np
import pytest

import perseus_like.numpy as hvd

if not hasattr(np, "bool"):
    vars(np)["bool"] = np.bool_  # MXNet 1.9 uses this name


@pytest.fixture(scope="session", autouse=True)
def world() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


@pytest.fixture(autouse=True)
def enter_together() -> None:
    """Lets all ranks enter a test at the same time, so that no rank uses what another rank's previous test left."""
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
        pytest.skip("the test needs two ranks")
