"""Fixtures for tests that every rank runs in the same order. The first failure ends the world."""

from collections.abc import Iterator

import pytest
import torch

import perseus_like.torch as hvd


@pytest.fixture(scope="session", autouse=True)
def world() -> Iterator[None]:
    hvd.init()
    torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())
    yield
    hvd.shutdown()


@pytest.fixture(autouse=True)
def together() -> None:
    hvd.barrier()
    torch.manual_seed(17)
