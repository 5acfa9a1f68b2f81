"""Fixtures for tests that every rank runs in the same order. The first failure ends the world."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

if not hasattr(dist.Backend, "PERSEUS"):  # torch before 2.5 does not load the backend by itself
    import perseus_like.torch.distributed  # noqa: F401


@pytest.fixture(scope="session", autouse=True)
def world() -> Iterator[None]:
    dist.init_process_group("perseus")
    yield
    dist.destroy_process_group()


@pytest.fixture(autouse=True)
def together() -> None:
    """Makes all ranks enter a test together, so that the work of one test does not mix with that of the next."""
    dist.barrier()
    torch.manual_seed(17)


@pytest.fixture
def rank() -> int:
    return dist.get_rank()


@pytest.fixture
def size() -> int:
    return dist.get_world_size()
