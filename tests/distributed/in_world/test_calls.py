from perseus_like.torch.native_group import native
from tests import walks


def test_one_all_reduce_makes_few_calls() -> None:
    """The bar that `make house` prints, 14 calls in 4 files. The group in C++ makes none."""
    calls = walks.all_reduce()
    assert (native is None) <= len(calls) <= 14, walks.described(calls)
    assert len({file for file, _ in calls}) <= 4, walks.described(calls)
