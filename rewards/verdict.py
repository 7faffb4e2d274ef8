"""What a verifier says of one response."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Verdict:
    """`reward` is what training sees, `correct` whether the answer is right, `parts` are further
    numbers to look at."""

    reward: float
    correct: bool
    parts: dict[str, float] = field(default_factory=dict)
