"""Findings of an audit: each has a kind, a place and one line of text.

Kinds: `damaged` (bytes of a file are not what was written), `torn` (a crash cut the last write of
the journal off, which was never acknowledged), `unusable` (a record that no coordinator can apply
or no database can hold), `journal` (offsets leave a gap), `tokens` (chunks and ends), `versions`,
`window` (borders and states), `batch` (updates in their order), `rollback`, `lines` (their scores
and rewards), `image` (those of prompts), `trained_twice`, `value` (the value model's batches),
`critic_saw_outcome` (a window was trained after the critic had learnt how its answer ends),
`ledger` (the coordinator's own count), `sql`, `mask` (the trained mask that pages and exports
show), `checkpoint`, `weights` (the learner's log of its updates), `diagnostics`.
"""

from collections import Counter
from typing import Literal

import msgspec

Kind = Literal[
    "damaged", "torn", "unusable", "journal", "tokens", "versions", "window", "batch", "rollback",
    "lines", "image", "trained_twice", "value", "critic_saw_outcome", "ledger", "sql", "mask",
    "checkpoint", "weights", "diagnostics",
]  # fmt: skip
MAX_FINDINGS_PER_KIND = 50
"""Findings written out per kind; the others are counted."""


class Finding(msgspec.Struct, frozen=True):
    """One breach: `where` names a record, window, row or file."""

    kind: Kind
    where: str
    text: str


class Findings:
    """Gathers findings; of a kind with very many it keeps the first ones and a count."""

    def __init__(self) -> None:
        self._found: list[Finding] = []
        self._counts: Counter[Kind] = Counter()

    def add(self, kind: Kind, where: str, text: str) -> None:
        """Something is not as it must be."""
        self._counts[kind] += 1
        if self._counts[kind] <= MAX_FINDINGS_PER_KIND:
            self._found.append(Finding(kind, where, text))

    def has(self, kind: Kind) -> bool:
        """Return whether there is a finding of a kind."""
        return self._counts[kind] > 0

    def all(self) -> list[Finding]:
        """All findings in order, and then the counts of those left out."""
        left = [
            Finding(kind, "run", f"{count - MAX_FINDINGS_PER_KIND} more of this kind")
            for kind, count in self._counts.items()
            if count > MAX_FINDINGS_PER_KIND
        ]
        return self._found + left
