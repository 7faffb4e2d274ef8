"""The recount of the ledger: looks at every position of every trajectory once, at the end.

In: facts, and the records that carry the coordinator's own ledger. Out: the counts that
this ledger must show, findings about single tokens, and findings where a ledger does not balance,
counts backwards, or is not what the journal up to its record holds. The recount moves nothing
between accounts as records come, so it cannot repeat a mistake in such a move.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, get_args

import numpy as np

from headrace.protocol.records.record_types import DropReason, MetricsSampled, UpdateCommitted
from storage.audit.findings import Findings
from storage.audit.journal_facts import JournalFacts, RecordChecks, TrajectoryFacts
from storage.audit.reading import JournalRecord

REASONS: tuple[str, ...] = get_args(DropReason)
IN_FLIGHT, READY, TRAINED = range(3)
_CODE = {"closed": IN_FLIGHT, "ready": READY, "taken": READY, "trained": TRAINED}
_POLICY = ("trained_policy", "ready", "in_flight", "dropped")
_VALUE = ("trained_value", "value_waiting", "value_dropped")
_GROWING = ("generated", "abandoned", "evaluation", "inserted", "value_finished")
_PREFIX = "ledger/"
_CODE_OF_REASON = {reason: TRAINED + 1 + place for place, reason in enumerate(REASONS)}


def count(facts: JournalFacts) -> dict[str, Any]:
    """Token counts: generated, trained_policy, ready, in_flight, dropped {reason: n},
    trained_value, value_waiting, value_dropped, abandoned, evaluation, inserted, discarded_at_hold,
    lost."""
    places = np.zeros(TRAINED + 1 + len(REASONS), np.int64)
    values = Counter[str]()
    received, inserted, evaluation = 0, 0, 0
    for trajectory in facts.trajectories.values():
        if trajectory.purpose != "train":
            evaluation += trajectory.received
            continue
        received += trajectory.received
        inserted += trajectory.length - trajectory.received
        places += _places(trajectory)
        if trajectory.value is not None:
            values[trajectory.value] += trajectory.received
    dropped = {reason: int(places[code]) for reason, code in sorted(_CODE_OF_REASON.items())}
    lost = Counter[str]()
    for (_, reason), tokens in facts.lost.items():
        lost[reason] += tokens
    return {
        "generated": received,
        "trained_policy": int(places[TRAINED]),
        "ready": int(places[READY]),
        "in_flight": int(places[IN_FLIGHT]),
        "dropped": {reason: tokens for reason, tokens in dropped.items() if tokens},
        "trained_value": values["trained"],
        "value_waiting": values["waiting"] + values["taken"],
        "value_dropped": values["dropped"],
        "abandoned": facts.abandoned,
        "evaluation": evaluation,
        "inserted": inserted,
        "discarded_at_hold": lost["held"],
        "lost": lost.total() - lost["held"],
    }


def surplus(counts: dict[str, Any]) -> int:
    """Tokens generated minus those in the accounts: 0 where the account is right."""
    accounts = counts["trained_policy"] + counts["ready"] + counts["in_flight"]
    return int(counts["generated"] - accounts - sum(counts["dropped"].values()))


def _places(trajectory: TrajectoryFacts) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Number of a trajectory's sampled tokens in each account."""
    codes = np.zeros(trajectory.length, np.int64)
    for window in trajectory.windows:
        here = slice(window.start, window.end)
        if window.state == "dropped":
            codes[here] = _CODE_OF_REASON[str(window.reason)]
            continue
        codes[here] = _CODE[window.state]
        if window.state == "trained":
            for run in window.masked:
                codes[run.start : run.end] = _CODE_OF_REASON[run.reason]
    sampled = trajectory.versions(0, trajectory.length) >= 0
    return np.bincount(codes[sampled], minlength=TRAINED + 1 + len(REASONS))


def check_tokens(facts: JournalFacts, findings: Findings, *, settled_before: int) -> None:
    """Each sampled token is in at most one window and trained at most once on the surviving
    lineage, each answer at most once by the value model. Of answers that ended before offset
    `settled_before`, all sampled tokens are in windows."""
    for key, trajectory in facts.trajectories.items():
        name = f"trajectory {key}"
        windows = np.zeros(trajectory.length, np.int64)
        trained = np.zeros(trajectory.length, np.int64)
        for window in trajectory.windows:
            here = slice(window.start, window.end)
            windows[here] += 1
            if window.trained:
                trained[here] += trajectory.in_loss(window) * len(window.trained)
        if (windows > 1).any():
            findings.add("window", name, f"{int((windows > 1).sum())} tokens are in two windows")
        if (trained > 1).any():
            text = f"{int((trained > 1).sum())} tokens were trained more than once"
            findings.add("trained_twice", name, text)
        if len(trajectory.value_trained) > 1:
            updates = ", ".join(str(update) for _, update in trajectory.value_trained)
            findings.add("trained_twice", name, f"the value model trained on it in {updates}")
        has_settled = 0 <= trajectory.ended_at < settled_before and trajectory.purpose == "train"
        left = (trajectory.versions(0, trajectory.length) >= 0) & (windows == 0)
        if has_settled and left.any():
            text = f"{int(left.sum())} tokens of the ended answer are in no window"
            findings.add("window", name, text)


class LedgerChecks(RecordChecks):
    """Checks every record with a ledger, and recounts the one at offset `last`."""

    def __init__(self, facts: JournalFacts, findings: Findings, last: int) -> None:
        super().__init__(facts, findings)
        self._last, self._before = last, dict[str, float]()

    def check_record(self, read: JournalRecord) -> None:
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
        self._where = f"record {read.offset}"
        for name, parts in (("generated", _POLICY), ("value_finished", _VALUE)):
            said, held = ledger.get(name, 0.0), sum(ledger.get(part, 0.0) for part in parts)
            if name in ledger and said != held:
                text = f"{name} is {said:,.0f} and its accounts hold {held:,.0f}"
                self._say("ledger", text)
        reasons = sum(value for name, value in ledger.items() if name.startswith("dropped/"))
        if ledger.get("dropped", 0.0) != reasons:
            text = f"dropped is {ledger.get('dropped'):,.0f} and its reasons add up to {reasons:,}"
            self._say("ledger", text)
        for name in _GROWING:
            if ledger.get(name, 0.0) < self._before.get(name, 0.0):
                self._say("ledger", f"{name} went down to {ledger.get(name)}")
        self._before = ledger
        if read.offset == self._last:
            self._compare(ledger)

    def _compare(self, ledger: Mapping[str, float]) -> None:
        counts = count(self._facts)
        reasons = {name: 0 for name in ledger if name.startswith("dropped/")}
        for name, tokens in (reasons | flat(counts)).items():
            if name in ledger and ledger[name] != tokens:
                text = f"{name} is {ledger[name]:,.0f} and the journal holds {tokens:,}"
                self._say("ledger", text)


def flat(counts: Mapping[str, Any]) -> dict[str, int]:
    """Counts by the names that the coordinator's ledger has for them."""
    dropped: dict[str, int] = counts["dropped"]
    plain = {name: value for name, value in counts.items() if name != "dropped"}
    by_reason = {f"dropped/{reason}": tokens for reason, tokens in dropped.items()}
    return {**plain, "dropped": sum(dropped.values()), **by_reason}
