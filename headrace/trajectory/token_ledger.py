"""The token ledger: the place of every journaled policy token, counted once.

Balance of the policy: generated = trained_policy + ready + in_flight + dropped. Balance of the
value model: finished = trained + waiting + dropped (sampled tokens of trajectories with a reward).
In: the steps of windows' lives. Promise: tokens only ever move from one account to another, so a
balance can break only where more is moved than is there, and then LedgerError is raised. Inserted
tokens, tokens that never reached the journal, tokens trained on a lineage that was given up, and
tokens of evaluations are counted apart.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from headrace.trajectory.transitions import ValueState
from headrace.trajectory.windows import Window

LedgerAccount = Literal["in_flight", "ready", "trained_policy", "dropped"]


class LedgerError(Exception):
    """More tokens would leave an account than it holds: a bug, and the run ends."""


@dataclass
class Ledger:
    """Counts of tokens; see the module's docstring for the balances.

    Attributes:
        generated: sampled tokens in the journal. accounts: of the policy. dropped: what the account
        `dropped` holds, by reason. value_accounts: of the value model. value_finished: what went
        into them. abandoned: tokens trained on a lineage that was given up. evaluation: tokens of
        evaluations; never trained. inserted: tokens that template, tool, environment or media put
        in. lost: tokens that the journal never had, by reason.
    """

    generated: int = 0
    accounts: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    value_accounts: Counter[str] = field(default_factory=Counter)
    value_finished: int = 0
    abandoned: int = 0
    evaluation: int = 0
    inserted: int = 0
    lost: Counter[str] = field(default_factory=Counter)

    def add_generated(self, tokens: int) -> None:
        """New sampled tokens are in the journal."""
        self.generated += tokens
        self.accounts["in_flight"] += tokens

    def remove_window(self, window: Window) -> None:
        """Take a window's tokens out of the accounts that its present state puts them in."""
        for account, reason, tokens in _places(window):
            if self.accounts[account] < tokens or (reason and self.dropped[reason] < tokens):
                raise LedgerError(f"{tokens} tokens cannot leave {account} {reason}: {self}")
            self.accounts[account] -= tokens
            if reason:
                self.dropped[reason] -= tokens

    def add_window(self, window: Window) -> None:
        """Put a window's tokens into the accounts of its present state."""
        for account, reason, tokens in _places(window):
            self.accounts[account] += tokens
            if reason:
                self.dropped[reason] += tokens

    def finish_value(self, tokens: int) -> None:
        """A trajectory with a good reward became a value target."""
        self.value_finished += tokens
        self.value_accounts["waiting"] += tokens

    def move_value(self, tokens: int, source: ValueState, target: ValueState) -> None:
        """Move tokens of finished trajectories; what is taken still counts as waiting."""
        here, there = ("waiting" if state == "taken" else state for state in (source, target))
        if tokens < 0 or self.value_accounts[here] < tokens:
            raise LedgerError(f"cannot move {tokens} value tokens {here} -> {there}: {self}")
        self.value_accounts[here] -= tokens
        self.value_accounts[there] += tokens

    def balance(self) -> int:
        """generated minus the accounts: 0, always."""
        return self.generated - sum(self.accounts.values())

    def as_metrics(self) -> dict[str, float]:
        """The ledger as metrics `ledger/...`."""
        metrics = {
            "ledger/generated": self.generated,
            "ledger/trained_policy": self.accounts["trained_policy"],
            "ledger/ready": self.accounts["ready"],
            "ledger/in_flight": self.accounts["in_flight"],
            "ledger/dropped": self.accounts["dropped"],
            "ledger/trained_value": self.value_accounts["trained"],
            "ledger/value_finished": self.value_finished,
            "ledger/value_waiting": self.value_accounts["waiting"],
            "ledger/value_dropped": self.value_accounts["dropped"],
            "ledger/abandoned": self.abandoned,
            "ledger/evaluation": self.evaluation,
            "ledger/inserted": self.inserted,
            "ledger/discarded_at_hold": self.lost["held"],
            "ledger/lost": self.lost.total() - self.lost["held"],
        }
        for reason, tokens in self.dropped.items():
            metrics[f"ledger/dropped/{reason}"] = tokens
        return {name: float(value) for name, value in metrics.items()}


def _places(window: Window) -> list[tuple[LedgerAccount, str, int]]:
    """(account, reason of a drop, tokens) of a window's tokens in its present state."""
    match window.state:
        case "closed":
            return [("in_flight", "", window.tokens)]
        case "ready" | "taken":
            return [("ready", "", window.tokens)]
        case "dropped":
            assert window.reason is not None
            return [("dropped", window.reason, window.tokens)]
        case "trained":
            masked = window.dropped()
            trained = window.tokens - sum(masked.values())
            return [
                ("trained_policy", "", trained),
                *(("dropped", reason, tokens) for reason, tokens in masked.items()),
            ]
