"""Reads that take long are asked for again after a rest."""

from dashboard.reads.throttled import LEAST_S, REST, ThrottledReads


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_what_takes_long_rests_while_the_run_goes_on() -> None:
    clock, used = Clock(), Clock()
    paced, asked = ThrottledReads(clock, used), []

    def ask() -> int:
        used.now += 2 * LEAST_S
        asked.append(clock.now)
        return len(asked)

    assert paced.read(("a",), "1", "training", ask) == 1
    assert paced.read(("a",), "2", "training", ask) == 1, "it rests"
    assert paced.read(("b",), "2", "training", ask) == 2, "another read"
    clock.now += 2 * LEAST_S * REST
    assert paced.read(("a",), "1", "training", ask) == 1, "nothing was written"
    assert paced.read(("a",), "2", "training", ask) == 3
    assert paced.read(("a",), "3", "finished", ask) == 4, "the end is exact"


def test_what_is_quick_is_fresh() -> None:
    paced = ThrottledReads(Clock(), Clock())
    values = iter((1, 2, 3))
    found = [paced.read((), stamp, "training", lambda: next(values)) for stamp in "abc"]
    assert found == [1, 2, 3]


def test_a_read_that_fails_is_asked_for_again() -> None:
    paced = ThrottledReads()

    def fail() -> None:
        raise ValueError

    for _ in range(2):
        try:
            paced.read((), "1", "training", fail)
        except ValueError:
            continue
        raise AssertionError
    assert paced.read((), "1", "training", lambda: 7) == 7
