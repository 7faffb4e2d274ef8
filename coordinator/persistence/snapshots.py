"""Snapshots of the coordinator's state, from which a restart begins.

It reads no more of the journal than the state still needs, however long the run is. In: the state;
or the journal's snapshots and records. Out: a Snapshot record; or the state that a successor begins
with. Promises: it is the state that folding all records gives, the order of its queues included; a
snapshot that cannot be used is reported and replaced by the one before it, and without any the
whole journal is folded. Prompts, tokens and logprobs are not among the values of an account, which
are so a few hundred bytes for each trajectory, however long that is.
"""

import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import numpy as np

from coordinator.connections.versions import Versions
from coordinator.dispatch.mixture import MixtureProgress
from coordinator.persistence.state import State
from headrace.config.sections.run import RunConfig
from headrace.protocol.records.record_types import (
    BatchTaken,
    ChunkArrived,
    EvaluationDone,
    GroupIssued,
    Milestone,
    Record,
    Snapshot,
)
from headrace.trajectory.account import Account
from headrace.trajectory.token_ledger import Ledger
from headrace.trajectory.trajectories import Trajectory
from storage.run_store import RunStore

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
) -> dict[int, GroupIssued]:
    """The wanted groups; their trajectories get prompts and tokens back."""
    groups: dict[int, GroupIssued] = {}
    for trajectory in trajectories.values():
        trajectory.opening = np.zeros(0, np.int32)
        trajectory.drop_tokens()
    for record in records:
        match record:
            case GroupIssued(group_id=key) if key in wanted:
                groups[key] = record
                for trajectory_id in record.trajectory_ids:
                    trajectories[trajectory_id].opening = record.prompt_ids
            case ChunkArrived(trajectory_id=key) if key in trajectories:
                trajectories[key].refill(record)
    return groups


log = logging.getLogger(__name__)
FORMAT = 4
"""Version of snapshots; older ones are passed over.

Raise it when a field of the state, or a record's effect on one, changes its meaning."""
SAY_EVERY_S = 10.0
"""Seconds between progress messages of a long replay, which keep the supervisor waiting."""
MOST = 200_000
"""Maximum number of trajectories in a snapshot, some hundred MiB of values.

Only a run without a checkpoint to go back to exceeds it."""


class StateValues(msgspec.Struct, frozen=True, kw_only=True):
    """Values of a `State`, by the same names; milestones stand in the record."""

    format: int
    account: AccountValues
    versions: Versions
    next_group: int
    next_trajectory: int
    next_lease: int
    position: int
    mixture: MixtureProgress
    update: int
    given: int
    lineage: int
    line: dict[int, int | None]
    first_policy_update: int | None
    train_time_s: float
    evaluations: list[EvaluationDone]
    checkpoints: list[int]
    leases: dict[int, tuple[int, str]]
    discarded: dict[str, tuple[int, int]]
    issued: int
    ended: Counter[str]
    rejected: float
    cpu_s: float


_AS_THEY_ARE = set(StateValues.__struct_fields__) - {"format", "account"}


def _no_array(value: Any) -> bytes:
    """Leave arrays out, because the journal has them."""
    assert isinstance(value, np.ndarray)
    return b""


def _from_plain(kind: Any, value: Any) -> Any:
    return Counter(value) if isinstance(value, dict) else np.zeros(0)


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_no_array)
_DECODER = msgspec.msgpack.Decoder(StateValues, dec_hook=_from_plain)


def snapshot_of(state: State, end: int) -> Snapshot | None:
    """Return a snapshot of the state, or None where it is too large.

    The journal has `end` records; those on their way there are in the state, too."""
    if len(state.account.trajectories) > MOST:
        return None
    values = StateValues(
        format=FORMAT,
        account=values_of(state.account),
        **{name: getattr(state, name) for name in _AS_THEY_ARE},
    )
    known = [*state.milestones, Milestone(end, state.next_group)]
    oldest = min(state.account.groups, default=state.next_group)
    # From the last one before all that the state still needs.
    before = [number for number, each in enumerate(known) if each.group <= oldest]
    return Snapshot(state=_ENCODER.encode(values), milestones=known[before[-1] :])


def restored(config: RunConfig, journal: RunStore) -> State:
    """Return the state after all records of a journal."""
    began = time.monotonic()
    state, begin = State(config), 0
    for offset, snapshot in journal.snapshots():
        try:
            state = _state_of(config, snapshot, journal, offset)
        except (msgspec.MsgspecError, ValueError, LookupError) as error:
            log.warning("the snapshot at record %d cannot be used: %s", offset, error)
            continue
        begin = offset + 1
        break
    followed = 0
    for record in _told(journal.replay(begin)):
        state.apply(record)
        followed += 1
    origin = f"the snapshot at record {begin - 1} and " if begin else ""
    took = time.monotonic() - began
    log.info("the state is made of %s%d records, in %.1f s", origin, followed, took)
    return state


def _told(records: Iterable[Record]) -> Iterator[Record]:
    """The same records; while they are read, a message now and then."""
    said_at = time.monotonic()
    for number, record in enumerate(records, 1):
        if time.monotonic() - said_at > SAY_EVERY_S:
            said_at = time.monotonic()
            log.info("%d records of the journal are read", number)
        yield record


def _state_of(config: RunConfig, snapshot: Snapshot, journal: RunStore, offset: int) -> State:
    """Return the state stored in the snapshot at `offset`."""
    values = _DECODER.decode(snapshot.state)
    if values.format != FORMAT:
        raise ValueError(f"it has format {values.format}, and this version of Headrace {FORMAT}")
    state = State(config)
    for name in _AS_THEY_ARE:
        setattr(state, name, getattr(values, name))
    state.milestones = snapshot.milestones
    state.account = account_of(
        values.account,
        _told(journal.replay(snapshot.milestones[0].record, offset, only=NEEDED)),
        has_value=config.algorithm.value is not None,
        has_environment=config.environment is not None,
    )
    return state
