"""Snapshots of the coordinator's state, from which a restart begins.

It reads no more of the journal than the state still needs, however long the run is. In: the state;
or the journal's snapshots and records. Out: a Snapshot record; or the state that a successor begins
with. Promises: it is the state that folding all records gives; a snapshot that cannot be used is
reported and replaced by the one before it, and without any the whole journal is folded.
"""

import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from coordinator.connections.versions import Versions
from coordinator.dispatch.mixture import MixtureProgress
from coordinator.persistence.state import State
from headrace.config.sections.run import RunConfig
from headrace.protocol.records.record_types import EvaluationDone, Milestone, Record, Snapshot
from headrace.trajectory.snapshots import NEEDED, AccountValues, account_of, values_of

log = logging.getLogger(__name__)
FORMAT = 3
"""Version of snapshots; older ones are passed over.

Raise it when a field of the state, or a record's effect on one, changes its meaning."""
SAY_EVERY_S = 10.0
"""Seconds between progress messages of a long replay, which keep the supervisor waiting."""
MOST = 200_000
"""Maximum number of trajectories in a snapshot, some hundred MiB of values.

Only a run without a checkpoint to go back to exceeds it."""


class RecordSource(Protocol):
    """Methods of storage.run_store.RunStore that a restart needs."""

    def snapshots(self) -> Iterator[tuple[int, Snapshot]]:
        """Iterate over offsets and snapshots, the newest first."""

    def replay(
        self, first: int = 0, end: int | None = None, *, only: Sequence[type[Record]] = ()
    ) -> Iterator[Record]:
        """Iterate over these offsets' records; of kinds `only`, as far as that is easy."""


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
    return Snapshot(state=_ENCODER.encode(values), milestones=_milestones(state, end))


def _milestones(state: State, end: int) -> list[Milestone]:
    """Return the milestones from the last one before all that the state still needs."""
    known = [*state.milestones, Milestone(end, state.next_group)]
    oldest = min(state.account.groups, default=state.next_group)
    before = [number for number, each in enumerate(known) if each.group <= oldest]
    return known[before[-1] :]


def restored(config: RunConfig, journal: RecordSource) -> State:
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
    followed, said_at = 0, began
    for followed, record in enumerate(journal.replay(begin), 1):
        state.apply(record)
        if followed % 1024 == 0 and time.monotonic() - said_at > SAY_EVERY_S:
            said_at = time.monotonic()
            log.info("%d records of the journal are read", followed)
    origin = f"the snapshot at record {begin - 1} and " if begin else ""
    took = time.monotonic() - began
    log.info("the state is made of %s%d records, in %.1f s", origin, followed, took)
    return state


def _state_of(config: RunConfig, snapshot: Snapshot, journal: RecordSource, offset: int) -> State:
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
        journal.replay(snapshot.milestones[0].record, offset, only=NEEDED),
        has_value=config.algorithm.value is not None,
        has_environment=config.environment is not None,
    )
    return state
