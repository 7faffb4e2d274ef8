"""The record that a restart begins with. It is among those of `records`, which names all kinds."""

import msgspec

from headrace.protocol.record import Record


class Milestone(msgspec.Struct, frozen=True, array_like=True):
    """Groups from `group` on were issued at the journal's record `record` or later."""

    record: int
    group: int


class Snapshot(Record, frozen=True, kw_only=True, tag=True):
    """What the coordinator's state is after all records before this one, so that a restart need not
    read those. It changes nothing. `state` is the coordinator's own (`coordinator.snapshots`);
    prompts and tokens are not in it, because the journal has them: those that it still needs stand
    at the first milestone's record or later."""

    state: bytes
    milestones: list[Milestone]
