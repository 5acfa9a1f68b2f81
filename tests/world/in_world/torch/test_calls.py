from tests import walks


def test_one_gradient_makes_few_calls() -> None:
    """The budget may only fall."""
    calls = walks.gradient()
    assert 0 < len(calls) <= 26, walks.described(calls)
    assert len({file for file, _ in calls}) <= 6, walks.described(calls)
