"""Checks of the coordinator's own ledger, which its records carry, against itself and the recount.

Comes in: records with `ledger/...` figures. Goes out: findings where a ledger does not balance,
counts backwards, or is not what the journal up to that record holds.
"""

from collections.abc import Mapping
from typing import Any

from headrace.protocol.records import MetricsSampled, UpdateCommitted
from storage.audit.facts import Facts
from storage.audit.findings import Findings
from storage.audit.reading import Read
from storage.audit.recount import count

_POLICY = ("trained_policy", "ready", "in_flight", "dropped")
_VALUE = ("trained_value", "value_waiting", "value_dropped")
_GROWING = ("generated", "abandoned", "evaluation", "inserted", "value_finished")
_PREFIX = "ledger/"


class LedgerFigures:
    """Checks every record with a ledger, and compares the one at offset `last` with the recount."""

    def __init__(self, facts: Facts, findings: Findings, last: int) -> None:
        self._facts = facts
        self._findings = findings
        self._last = last
        self._before: dict[str, float] = {}

    def see(self, read: Read) -> None:
        """Check the ledger in one record."""
        record = read.record
        if not isinstance(record, UpdateCommitted | MetricsSampled):
            return
        ledger = {
            name.removeprefix(_PREFIX): value
            for name, value in record.metrics.items()
            if name.startswith(_PREFIX) and isinstance(value, int | float)
        }
        if "generated" not in ledger:
            return
        where = f"record {read.offset}"
        for name, parts in (("generated", _POLICY), ("value_finished", _VALUE)):
            said, held = ledger.get(name, 0.0), sum(ledger.get(part, 0.0) for part in parts)
            if name in ledger and said != held:
                text = f"{name} is {said:,.0f} and its accounts hold {held:,.0f}"
                self._findings.add("ledger", where, text)
        reasons = sum(value for name, value in ledger.items() if name.startswith("dropped/"))
        if ledger.get("dropped", 0.0) != reasons:
            text = f"dropped is {ledger.get('dropped'):,.0f} and its reasons add up to {reasons:,}"
            self._findings.add("ledger", where, text)
        for name in _GROWING:
            if ledger.get(name, 0.0) < self._before.get(name, 0.0):
                self._findings.add("ledger", where, f"{name} went down to {ledger.get(name)}")
        self._before = ledger
        if read.offset == self._last:
            self._compare(ledger, where)

    def _compare(self, ledger: Mapping[str, float], where: str) -> None:
        counts = count(self._facts)
        for name, tokens in flat(counts).items():
            if name in ledger and ledger[name] != tokens:
                text = f"{name} is {ledger[name]:,.0f} and the journal holds {tokens:,}"
                self._findings.add("ledger", where, text)


def flat(counts: Mapping[str, Any]) -> dict[str, int]:
    """Counts by the names that the coordinator's ledger has for them."""
    dropped: dict[str, int] = counts["dropped"]
    plain = {name: value for name, value in counts.items() if name != "dropped"}
    by_reason = {f"dropped/{reason}": tokens for reason, tokens in dropped.items()}
    return {**plain, "dropped": sum(dropped.values()), **by_reason}
