"""Fixtures that start ranks that report facts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.job import NUMPY_HEAD, Job, Start


@pytest.fixture
def start(start_job: Start) -> Start:
    """Returns a function that starts ranks of a program with perseus_like.numpy."""

    def begin(*arguments: Any, **options: Any) -> Job:
        return start_job(*arguments, head=NUMPY_HEAD, **options)

    return begin


@pytest.fixture
def run(start: Start) -> Start:
    """Returns a function that starts such ranks and waits for their end."""

    def to_the_end(*arguments: Any, **options: Any) -> Job:
        return start(*arguments, **options).end()

    return to_the_end
