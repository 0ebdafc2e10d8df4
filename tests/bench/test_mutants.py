"""Each mutant has one change, and the module is as it was for the next."""

from tests.bench.mutants import mutants, sampled

TEXT = """
def f(a, b):
    if a < 1 and b:
        g(a)
    return a + 2
"""


def test_each_mutant_has_one_change() -> None:
    found = list(mutants(TEXT))

    assert sorted((one.line, one.before, one.after) for one in found) == [
        (3, "1", "2"),
        (3, "a < 1", "a <= 1"),
        (3, "a < 1 and b", "a < 1 or b"),
        (3, "if a < 1 and b:", "if not (a < 1 and b):"),
        (4, "g(a)", "pass"),
        (5, "2", "3"),
        (5, "a + 2", "a - 2"),
        (5, "return a + 2", "return None"),
    ]
    assert len({one.source for one in found}) == len(found)


def test_sample_is_the_same_each_time_and_in_the_order_of_lines() -> None:
    found = list(mutants(TEXT))
    some = sampled(found, 3)

    assert some == sampled(found, 3)
    assert some == [one for one in found if one in some]
    assert sampled(found, None) == sampled(found, 99) == found
