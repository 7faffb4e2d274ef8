"""The token ledger: where every journaled response token is, each counted once.

Balance of the policy: generated = trained_policy + ready + in_flight + dropped. Balance of the
value model: finished = trained + waiting + dropped (tokens of finished trajectories). Tokens only
ever move from one account to another, so the balance can break only where a caller moves tokens
that are not there, and then `move` raises.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

Account = Literal["in_flight", "ready", "trained_policy", "dropped"]
ValueAccount = Literal["waiting", "trained", "dropped"]


class LedgerError(Exception):
    """More tokens were to leave an account than it holds: a bug, never to be trained over."""


@dataclass
class Ledger:
    """Counts of response tokens; see the module's docstring for the balances."""

    generated: int = 0
    accounts: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    value_accounts: Counter[str] = field(default_factory=Counter)
    value_finished: int = 0
    abandoned: int = 0
    """Tokens trained on a lineage that was given up."""
    evaluation: int = 0
    """Tokens of evaluations; never trained."""

    def arrive(self, tokens: int) -> None:
        """New tokens are in the journal."""
        self.generated += tokens
        self.accounts["in_flight"] += tokens

    def move(self, tokens: int, source: Account, target: Account, reason: str = "") -> None:
        """Move tokens; a move to or from `dropped` names its reason."""
        if tokens < 0 or self.accounts[source] < tokens:
            raise LedgerError(f"cannot move {tokens} tokens from {source} to {target}: {self}")
        self.accounts[source] -= tokens
        self.accounts[target] += tokens
        if source == "dropped":
            self.dropped[reason] -= tokens
        if target == "dropped":
            self.dropped[reason] += tokens

    def finish_value(self, tokens: int) -> None:
        """A trajectory with a good reward became a value target."""
        self.value_finished += tokens
        self.value_accounts["waiting"] += tokens

    def move_value(self, tokens: int, source: ValueAccount, target: ValueAccount) -> None:
        """Move tokens of finished trajectories."""
        if tokens < 0 or self.value_accounts[source] < tokens:
            raise LedgerError(f"cannot move {tokens} value tokens {source} -> {target}: {self}")
        self.value_accounts[source] -= tokens
        self.value_accounts[target] += tokens

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
        }
        for reason, tokens in self.dropped.items():
            metrics[f"ledger/dropped/{reason}"] = tokens
        return {name: float(value) for name, value in metrics.items()}
