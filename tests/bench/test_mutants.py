"""Each mutant has one change, none of a class's options; the next begins anew."""

from tests.bench.mutants import mutants, sampled

TEXT = """
@dataclass(slots=True)
class A(B, frozen=True): x: int
def f(a, b):
    if a < 1 and b:
        g(a)
    return a + 2
"""


def test_each_mutant_has_one_change() -> None:
    found = list(mutants(TEXT))

    assert sorted((one.line, one.before, one.after) for one in found) == [
        (5, "1", "2"),
        (5, "a < 1", "a <= 1"),
        (5, "a < 1 and b", "a < 1 or b"),
        (5, "if a < 1 and b:", "if not (a < 1 and b):"),
        (6, "g(a)", "pass"),
        (7, "2", "3"),
        (7, "a + 2", "a - 2"),
        (7, "return a + 2", "return None"),
    ]
    assert len({one.source for one in found}) == len(found)


def test_sample_is_the_same_each_time_and_in_the_order_of_lines() -> None:
    found = list(mutants(TEXT))
    some = sampled(found, 3)

    assert some == sampled(found, 3)
    assert some == [one for one in found if one in some]
    assert sampled(found, None) == sampled(found, 99) == found
