"""Fixtures for tests that every rank runs in the same order, with pretended tensors and streams."""

import importlib
from collections.abc import Iterator

import pretended_streams  # type: ignore[import-not-found]
import pytest
import torch.distributed as dist


@pytest.fixture(scope="session", autouse=True)
def world() -> Iterator[None]:
    pretended_streams.pretend()
    if not hasattr(dist.Backend, "PERSEUS"):  # torch before 2.5 does not load the backend by itself
        importlib.import_module("perseus_like.torch.distributed")
    dist.init_process_group("perseus")
    yield
    dist.destroy_process_group()


@pytest.fixture
def rank() -> int:
    return dist.get_rank()


@pytest.fixture
def size() -> int:
    return dist.get_world_size()
