"""Tests of buckets and backward passes, without a framework and without ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perseus_like.gradients import divide_into_groups
from perseus_like.gradients.buckets import Bucket, Layout, Member, PassCounter, lay_out


def members_of(sizes: list[int], kinds: list[str]) -> dict[int, Member[str]]:
    return {index: Member(size, 4, kind) for index, (size, kind) in enumerate(zip(sizes, kinds, strict=True))}


@given(
    gradients=st.lists(st.tuples(st.integers(0, 300), st.sampled_from(["float", "double"])), max_size=30),
    randomness=st.randoms(use_true_random=False),
    first=st.integers(0, 2000),
    limit=st.integers(1, 4000),
    grouped=st.booleans(),
)
def test_places_of_gradients_in_buckets_do_not_overlap(
    gradients: list[tuple[int, str]], randomness: object, first: int, limit: int, grouped: bool
) -> None:
    members = members_of([size for size, _ in gradients], [kind for _, kind in gradients])
    order = list(members)
    randomness.shuffle(order)  # type: ignore[attr-defined]
    groups = [order[:3], order[5:6]] if grouped else None
    layout = lay_out(members, order, groups, first, limit)
    assert sorted(index for bucket in layout.buckets for index in bucket.members) == sorted(order)
    used: set[tuple[str, int]] = set()
    for bucket in layout.buckets:
        assert bucket.members
        ordered = [order.index(index) for index in bucket.members]
        assert ordered == sorted(ordered)
        for index, offset in zip(bucket.members, bucket.offsets, strict=True):
            assert members[index].kind == bucket.kind
            assert offset * 4 % 64 == 0
            assert bucket.start <= offset
            assert offset + members[index].elements <= bucket.start + bucket.elements <= layout.totals[bucket.kind]
            place = {(bucket.kind, element) for element in range(offset, offset + members[index].elements)}
            assert not place & used
            used |= place
        in_groups = [index for index in bucket.members if groups and any(index in group for group in groups)]
        assert not in_groups or len(in_groups) == len(bucket.members)
        if len(bucket.members) > 1 and not in_groups:
            assert bucket.elements * 4 <= max(first, limit)
    lasts = [order.index(bucket.members[-1]) for bucket in layout.buckets]
    assert lasts == sorted(lasts)


def test_the_first_bucket_is_small() -> None:
    members = members_of([16] * 10, ["float"] * 10)
    layout = lay_out(members, range(10), first_bytes=128, bucket_bytes=256)
    assert [len(bucket.members) for bucket in layout.buckets] == [2, 4, 4]


def test_a_gradient_larger_than_a_bucket_has_its_own() -> None:
    layout = lay_out(members_of([10, 10_000, 10], ["float"] * 3), range(3), first_bytes=100, bucket_bytes=1000)
    assert [bucket.members for bucket in layout.buckets] == [[0], [1], [2]]


def test_a_large_gradient_is_sent_alone() -> None:
    layout = lay_out(members_of([10, 1000, 10], ["float"] * 3), range(3), large_bytes=4000)
    assert [bucket.members for bucket in layout.buckets] == [[1], [0, 2]]


def test_large_gradients_on_an_accelerator_fill_buckets() -> None:
    members = {index: Member(1000, 4, "cuda", fills_bucket=True) for index in range(8)}
    layout = lay_out(members, range(8), first_bytes=4096, bucket_bytes=3 * 4096, large_bytes=4000)
    assert [bucket.members for bucket in layout.buckets] == [[0], [1, 2, 3], [4, 5, 6], [7]]


def two_buckets() -> Layout[str]:
    return Layout([Bucket("float", members=[0, 1]), Bucket("float", members=[2])], {})


def test_full_buckets_are_sent_in_order() -> None:
    sent: list[int] = []
    passes = PassCounter(3, 1, sent.append)
    passes.use(two_buckets())
    passes.arrived(2)
    assert sent == []
    passes.arrived(1)
    passes.arrived(0)
    assert sent == [0]  # the last bucket is sent when a caller waits
    assert passes.ready == 3
    passes.send_rest()
    assert sent == [0, 1]
    passes.reset()
    passes.arrived(0)
    assert passes.incomplete(1)
    passes.send_rest()
    assert sent == [0, 1, 0, 1]


def test_passes_are_counted() -> None:
    sent: list[int] = []
    passes = PassCounter(3, 2, sent.append, too_many="twice is enough")
    passes.use(two_buckets())
    for index in (0, 1, 2):
        passes.arrived(index)
    assert (sent, passes.ready) == ([], 0)
    for index in (2, 0, 1):
        passes.arrived(index)
    assert (sent, passes.ready) == ([0], 3)
    with pytest.raises(AssertionError, match="twice is enough"):
        passes.arrived(1)


def test_the_first_pass_records_the_order_of_gradients() -> None:
    passes = PassCounter(2, 1, lambda number: pytest.fail(f"bucket {number} was sent"))
    passes.grow(1)
    for index in (2, 0, 1):
        passes.arrived(index)
    assert passes.arrivals == [2, 0, 1]
    passes.send_rest()
    passes.use(two_buckets())
    assert passes.arrivals == []
    passes.learn()
    passes.arrived(1)
    assert passes.arrivals == [1]


def test_the_number_of_arrivals_of_a_gradient_is_learned() -> None:
    sent: list[int] = []
    passes = PassCounter(3, 1, sent.append, counting=True)
    for index in (0, 0, 1, 0, 2):
        passes.arrived(index)
    passes.use(two_buckets())
    for index in (0, 1, 2, 0):
        passes.arrived(index)
    assert sent == []
    passes.arrived(0)
    assert sent == [0]
    with pytest.raises(AssertionError):
        passes.arrived(1)


@given(count=st.integers(0, 50), groups=st.integers(1, 60))
def test_groups_of_nearly_equal_size(count: int, groups: int) -> None:
    divided = divide_into_groups(count, groups)
    assert [index for group in divided for index in group] == list(range(count))
    sizes = {len(group) for group in divided}
    assert not sizes or max(sizes) - min(sizes) <= 1
    assert len(divided) == min(count, groups)
