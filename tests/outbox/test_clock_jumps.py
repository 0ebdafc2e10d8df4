"""The times of rows after the wall clock was set, forward and back."""

from bridge.outbox.clock_jumps import Jump, after, as_set_now


def test_part_of_a_jump_is_taken_back() -> None:
    """The clock was set from 900 to 1000, and from 1010 to 980."""
    jumps = after((Jump(1000.0, 100.0),), -30.0, 980.0)

    assert jumps == (Jump(970.0, 70.0),)
    assert [as_set_now(jumps, at) for at in (880.0, 969.0, 970.0)] == [950, 1039, 970]


def test_last_jumps_are_taken_back_first() -> None:
    jumps = (Jump(1000.0, 100.0), Jump(2000.0, 10.0))

    assert after(jumps, -10.0, 1990.0) == jumps[:1]
    assert after(jumps, -30.0, 1970.0) == (Jump(980.0, 80.0),)
    assert after(jumps, -200.0, 1800.0) == ()
