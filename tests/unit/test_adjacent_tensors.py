"""Tests which lists of tensors count as the parts of one tensor, to which NCCL may write directly."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")


def test_parts_of_one_tensor_are_adjacent() -> None:
    from perseus_like.torch.distributed.layout_conversion import adjacent

    whole = torch.arange(12.0)
    for parts in (whole.chunk(3), whole.split([2, 7, 3]), whole.view(3, 4).unbind(), [whole]):
        found = adjacent(parts)
        assert found is not None
        assert (found.data_ptr(), found.tolist()) == (whole.data_ptr(), whole.tolist())
    middle = adjacent(whole[4:].chunk(2))
    assert middle is not None
    assert middle.tolist() == whole[4:].tolist()


def test_other_lists_are_not_adjacent() -> None:
    from perseus_like.torch.distributed.layout_conversion import adjacent

    whole = torch.arange(12.0)
    first, second, third = whole.chunk(3)
    for parts in (
        [second, first, third],
        [first, third],
        [first, first],
        [first, second.clone()],
        [first, second.view(torch.int32)],
        list(whole.view(3, 4).t().unbind()),
        [torch.empty(0), whole],
    ):
        assert adjacent(parts) is None
