"""The `exact` verifier: the answer string itself.

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


def is_exact(text: str, answer: str, *, marker: str | None) -> bool:
    """Whether the response's answer is `answer`, character by character."""
    given = text.strip() if marker is None else answer_after(text, marker)
    return given == answer.strip()
