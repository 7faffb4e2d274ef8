"""Rejections: counted to the last one, written down in bounded number."""

from coordinator.connections.rejections import (
    FIRST,
    LONGEST,
    MOST,
    OF_A_KIND,
    PERIOD_S,
    RejectionLog,
    RepeatLimiter,
)


class Book:
    """A log whose clock is turned by hand, and what it wrote."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lines: list[tuple[str, str]] = []
        self.log = RejectionLog(lambda *line: self.lines.append(line), lambda: self.now)


def test_the_first_of_each_sender_and_kind_are_written() -> None:
    book = Book()
    for number in range(10):
        book.log.add("g", "chunk_rejected", f"reason {number}")
    book.log.add("g", "not_permitted", "another kind")
    book.log.add("h", "chunk_rejected", "another sender")
    said = [text for _, text in book.lines]
    assert said == [
        "g: reason 0",
        "g: reason 1",
        "g: reason 2",
        "g: another kind",
        "h: another sender",
    ]
    assert book.log.total == 12
    assert book.log.counts == {"chunk_rejected": 11, "not_permitted": 1}


def test_one_line_says_how_many_more_there_were_once_the_period_is_over() -> None:
    book = Book()
    for _ in range(FIRST + 7):
        book.log.add("g", "chunk_rejected", "bad")
    book.now = PERIOD_S - 0.1
    book.log.write_summary_if_due()
    assert len(book.lines) == FIRST
    book.now = PERIOD_S
    book.log.write_summary_if_due()
    summary = ("messages_rejected", "more of the same were rejected: 7 chunk_rejected")
    assert book.lines[FIRST:] == [summary]
    book.log.write_summary_if_due()
    assert book.lines[FIRST:] == [summary]
    book.log.add("g", "chunk_rejected", "again")
    assert book.lines[-1] == ("chunk_rejected", "g: again")


def test_a_flood_under_ever_new_names_takes_neither_lines_nor_memory() -> None:
    book = Book()
    for number in range(50_000):
        book.log.add(f"peer-{number}", "message_rejected", "x" * 100_000)
        book.now += 0.001
    assert book.log.total == 50_000
    assert len(book.lines) <= MOST
    assert len(book.log._lines) <= MOST
    assert max(len(text) for _, text in book.lines) <= 2 * LONGEST + 2
    book.log.close()
    assert book.lines[-1][1].endswith(f"{50_000 - MOST} message_rejected")


def test_what_is_only_counted_is_not_written() -> None:
    book = Book()
    book.log.count("before_hello")
    book.log.close()
    assert (book.log.total, book.lines) == (1, [])


def test_many_of_equal_kind_are_one_line_and_their_number() -> None:
    book = Book()
    for _ in range(FIRST + 1):
        book.log.add("nobody", "denied", "no keys", 1000)
    assert book.log.counts == {"denied": 1000 * (FIRST + 1)}
    book.log.close()
    assert book.lines[-1][1] == "more of the same were rejected: 1000 denied"


def test_incidents_of_a_kind_are_written_until_there_are_too_many() -> None:
    now = 0.0
    repeats = RepeatLimiter(lambda: now)
    written = [repeats.passes("generation_failed") for _ in range(OF_A_KIND + 5)]
    assert written == [True] * OF_A_KIND + [False] * 5
    assert repeats.passes("another")
    assert repeats.summary() is None
    now = PERIOD_S
    assert repeats.summary() == "more of the same happened: 5 generation_failed"
    assert repeats.passes("generation_failed")
    now += PERIOD_S
    assert repeats.summary() is None
    assert repeats.summary(at_once=True) is None


def test_a_summary_at_once_begins_no_new_period() -> None:
    """It is the run's end, behind which a flood may go on."""
    repeats = RepeatLimiter(lambda: 0.0)
    assert [repeats.passes("process_changed", 1) for _ in range(3)] == [True, False, False]
    assert repeats.summary(at_once=True) == "more of the same happened: 2 process_changed"
    assert not repeats.passes("process_changed", 1)
