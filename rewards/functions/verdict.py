"""What a verifier says of one response, of its lines, or of a group."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Verdict:
    """`reward` is what training sees, `correct` whether the answer is right, `parts` are further
    numbers to look at.

    A source of lines gives `lines` instead, one score for each line that was asked for (None: a
    neutral line, such as a comment), and a source of groups `siblings`, one verdict for each of
    them (None: no reward applies to this one)."""

    reward: float = 0.0
    correct: bool = False
    parts: dict[str, float] = field(default_factory=dict)
    lines: tuple[float | None, ...] = ()
    siblings: "tuple[Verdict | None, ...]" = ()
