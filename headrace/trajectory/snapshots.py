"""An account as plain values, without what the journal says again.

In: an account; or its values, and the journal's records from the first that it still needs
on. Out: its values; or the account. Promise: the account that comes back is the one that was
taken apart, the order of its queues included. Prompts, tokens and logprobs are not among the
values, which are so a few hundred bytes for each trajectory, however long that is.
"""

from collections import OrderedDict
from collections.abc import Iterable

import msgspec
import numpy as np

from headrace.protocol.records.record_types import BatchTaken, ChunkArrived, GroupIssued, Record
from headrace.trajectory.account import Account
from headrace.trajectory.token_ledger import Ledger
from headrace.trajectory.trajectories import Group, Trajectory

NEEDED = (GroupIssued, ChunkArrived)
"""The kinds of records that hold what is not among the values."""


class AccountValues(msgspec.Struct, frozen=True, kw_only=True):
    """Values of an `Account`; groups, windows and queues as ids."""

    order: int
    closed: int
    ledger: Ledger
    groups: list[int]
    trajectories: list[Trajectory]
    active: list[int]
    ready: list[int]
    values: list[int]
    taken: BatchTaken | None
    committed: dict[int, BatchTaken]
    again: list[BatchTaken]


def values_of(account: Account) -> AccountValues:
    """An account's values. Its trajectories are not copied: encode them before anything changes."""
    return AccountValues(
        order=account.order,
        closed=account.closed,
        ledger=account.ledger,
        groups=list(account.groups),
        trajectories=list(account.trajectories.values()),
        active=list(account.active),
        ready=list(account.ready),
        values=list(account.values),
        taken=account.taken,
        committed=account.committed,
        again=account.again,
    )


def account_of(
    values: AccountValues,
    records: Iterable[Record],
    *,
    has_value: bool,
    has_environment: bool = False,
) -> Account:
    """The account with these values. `records` are those before the values were taken, from the
    issue of its oldest group on or from earlier. ValueError: they lack something."""
    account = Account(has_value=has_value, has_environment=has_environment)
    account.order, account.closed, account.ledger = values.order, values.closed, values.ledger
    account.taken, account.committed, account.again = values.taken, values.committed, values.again
    account.trajectories = {each.trajectory_id: each for each in values.trajectories}
    account.groups = _read_again(account.trajectories, set(values.groups), records)
    lacking = [key for key, each in account.trajectories.items() if not each.is_full]
    if lacking or list(account.groups) != values.groups:
        raise ValueError(f"the journal lacks groups, or tokens of {len(lacking)} trajectories")
    account.active = OrderedDict((key, account.trajectories[key]) for key in values.active)
    account.ready = OrderedDict((key, account.window(key)) for key in values.ready)
    account.values = OrderedDict((key, account.trajectories[key]) for key in values.values)
    return account


def _read_again(
    trajectories: dict[int, Trajectory], wanted: set[int], records: Iterable[Record]
) -> dict[int, Group]:
    """The wanted groups; their trajectories get prompts and tokens back."""
    groups: dict[int, Group] = {}
    for trajectory in trajectories.values():
        trajectory.opening = np.zeros(0, np.int32)
        trajectory.drop_tokens()
    for record in records:
        match record:
            case GroupIssued(group_id=key) if key in wanted:
                groups[key] = Group.issued(record)
                for trajectory_id in record.trajectory_ids:
                    trajectories[trajectory_id].opening = record.prompt_ids
            case ChunkArrived(trajectory_id=key) if key in trajectories:
                trajectories[key].refill(record)
    return groups
