"""Tests of the options of optimizers, tapes and trainers, which all frameworks check by the same rules."""

from __future__ import annotations

from typing import Any

import pytest

from perseus_like.collectives import Adasum, Average, Max, Sum
from perseus_like.collectives.compression import Compressed, Compressor, NoneCompressor, is_called
from perseus_like.gradients import GradientRules, checked_passes, gradient_rules, number_of_groups, reduce_shared
from perseus_like.tables import DType


def test_scale_factors_of_average_and_sum() -> None:
    assert gradient_rules((Average, Sum), Average, 4.0).factors == (0.25, 4.0)
    assert gradient_rules((Average, Sum), Sum).factors == (1.0, 1.0)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"op": Max}, "Average, Sum or Adasum, not Max"),
        ({"op": Sum, "gradient_predivide_factor": 2.0}, "needs op=Average"),
        ({"gradient_predivide_factor": 0.0}, "gradient_predivide_factor is 0"),
        ({"groups": -1}, "negative"),
        ({"groups": "all"}, "lists"),
        ({"groups": [3]}, "lists"),
        ({"groups": [["a"], ["b", "a"]]}, "twice"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        gradient_rules((Average, Sum, Adasum), key_of=str, **options)


def test_groups_are_positions_among_the_parameters() -> None:
    keys = ["a", "b", "c", "d"]
    assert GradientRules().groups_of(keys) is None
    assert gradient_rules((Average,), groups=0).groups_of(keys) is None
    assert gradient_rules((Average,), groups=2).groups_of(keys) == [[0, 1], [2, 3]]
    assert gradient_rules((Average,), groups=[["d", "frozen"], ["b"]], key_of=str).groups_of(keys) == [[3], [1]]


def test_the_deprecated_number_of_groups() -> None:
    assert number_of_groups(0, None) is None
    assert number_of_groups(0, [[1]]) == [[1]]
    with pytest.warns(DeprecationWarning, match="num_groups"):
        assert number_of_groups(3, None) == 3


def test_the_number_of_backward_passes_must_be_positive() -> None:
    assert checked_passes(2) == 2
    with pytest.raises(ValueError, match="backward_passes_per_step is 0"):
        checked_passes(0)


def test_local_gradients_are_not_reduced() -> None:
    gradients = [1.0, 8.0, None, None]
    is_local = [False, True, False, True]

    def reduce(shared: list[int]) -> list[float]:
        assert shared == [0, 2]
        return [10.0, 20.0]

    assert reduce_shared(gradients, is_local, reduce, lambda gradient: gradient / 4) == [10.0, 2.0, 20.0, None]
    assert reduce_shared(gradients, is_local, reduce, None) == [10.0, 8.0, 20.0, None]


class HalvingCompressor(Compressor):
    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor / 2, "context"

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        assert ctx == "context"
        return tensor * 2


class CoreCompressor(NoneCompressor):
    wire = DType.float16


def test_only_compressors_unknown_to_the_core_are_called() -> None:
    assert [is_called(each) for each in (NoneCompressor, CoreCompressor, HalvingCompressor)] == [False, False, True]
    small = Compressed(HalvingCompressor, [4.0, 6.0])
    assert small.tensors == [2.0, 3.0]
    assert small.restore([1.0, 5.0]) == [2.0, 10.0]
