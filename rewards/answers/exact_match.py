"""The `exact` verifier: compares answers as strings.

In: a response and the right answer. Out: whether what follows the last answer marker (without a
marker: the whole response) is the answer, leading and trailing white space apart.
"""


def answer_after(text: str, marker: str) -> str | None:
    """What follows the last occurrence of `marker` on its line; None where it does not occur."""
    _, found, rest = text.rpartition(marker)
    if not found:
        return None
    lines = rest.strip().splitlines()
    return lines[0].strip() if lines else ""


def wanted_answer(answer: str, marker: str | None) -> str:
    """The right answer as a dataset writes it: what follows the marker where it has one (a worked
    solution), since no given answer can hold the marker. Raises ValueError when it is empty."""
    after = None if marker is None else answer_after(answer, marker)
    wanted = answer if after is None else after
    if not wanted.strip():
        raise ValueError("the right answer is empty")
    return wanted


def is_exact(text: str, answer: str, *, marker: str | None) -> bool:
    """Whether the response's answer is the right one, character by character. Raises ValueError
    when there is no right answer."""
    wanted = wanted_answer(answer, marker)
    given = text.strip() if marker is None else answer_after(text, marker)
    return given == wanted.strip()
