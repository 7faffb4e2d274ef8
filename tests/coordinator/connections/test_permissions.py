"""Who may say what: the table of roles and messages, and what a message may concern."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from msgspec.structs import replace

from coordinator import membership
from coordinator.connections.permissions import (
    MAY_SAY,
    OutstandingRequests,
    hello_problem,
    learner_refusal,
    role_refusal,
)
from headrace.errors import UserError
from headrace.protocol.messages import control as m
from headrace.protocol.messages.diagnostics import COLUMN_NAMES, TokenDiagnostics
from headrace.protocol.transport.endpoints import identity_of, name_of
from headrace.trajectory.windows import Window, trajectory_of
from tests.coordinator.stage import endless, staged
from tests.headrace.protocol.samples import sample_of

TABLE = """
                    generator reward environment learner monitor
    Hello           yes       yes    yes         yes     yes
    Heartbeat       yes       yes    yes         yes     yes
    Goodbye         yes       yes    yes         yes     yes
    Chunks          yes       -      -           -       -
    GeneratorReport yes       -      -           -       -
    WeightsLoaded   yes       -      -           -       -
    Scores          -         yes    -           -       -
    StepReplies     -         -      yes         -       -
    WeightNotice    -         -      -           yes     -
    UpdateDone      -         -      -           yes     -
    CheckpointDone  -         -      -           yes     -
    Trouble         -         -      -           yes     -
    Progress        yes       -      -           yes     -
    StatusRequest   -         -      -           -       yes
    Command         -         -      -           -       yes
"""
_ROLES, *_ROWS = [line.split() for line in TABLE.strip().splitlines()]
ALLOWED = {
    (role, kind)
    for kind, *cells in _ROWS
    for role, cell in zip(_ROLES, cells, strict=True)
    if cell == "yes"
}


@pytest.mark.parametrize("kind", get_args(m.AnyMessage), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("role", get_args(m.Role))
def test_each_role_says_what_the_table_says(role: m.Role, kind: type[m.Message]) -> None:
    refusal = role_refusal(sample_of(kind), role)
    assert (refusal is None) == ((role, kind.__name__) in ALLOWED)
    if refusal is not None:
        assert refusal == ("not_permitted", f"a {role} may not send {kind.__name__}")


def test_every_role_is_in_the_table() -> None:
    assert set(MAY_SAY) == set(get_args(m.Role)) == set(_ROLES)


# -- Hello -----------------------------------------------------------------------------------------


def hello(role: m.Role = "learner", name: str = "learner-0", update: int = 0) -> m.Hello:
    return m.Hello(role=role, name=name, pid=1, host="here", update=update)


def test_an_identity_has_the_name_and_a_secret() -> None:
    identity = identity_of("learner-0")
    assert name_of(identity) == "learner-0"
    assert identity != identity_of("learner-0")
    assert hello_problem(identity, hello(), 0) is None
    for other in ("learner-0", "learner-0~", identity_of("learner-1"), ""):
        assert "identity" in (hello_problem(other, hello(), 0) or "")


@pytest.mark.parametrize("name", ["", "two words", "a~b", "a#pulse", "x" * 65, "nul\0"])
def test_a_name_that_the_coordinator_would_not_take_is_the_users_mistake(name: str) -> None:
    with pytest.raises(UserError, match="cannot be the name of a process"):
        identity_of(name)


def test_a_learner_from_an_update_that_never_was_is_another_runs() -> None:
    identity = identity_of("learner-0")
    assert hello_problem(identity, hello(update=7), 7) is None
    assert "another run" in (hello_problem(identity, hello(update=8), 7) or "")


def test_another_protocol_is_refused() -> None:
    other = m.Hello(role="learner", name="learner-0", pid=1, host="h", protocol=1)
    assert hello_problem(identity_of("learner-0"), other, 0) == (
        f"this is protocol {m.PROTOCOL_VERSION}"
    )


async def test_no_more_processes_connect_than_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One more is refused while all places are taken, and taken once there is one."""
    async with staged(endless(), tmp_path / "run") as stage:
        there, identity = stage.hub.peers.identities, identity_of("monitor-1")
        frames = stage.codec.encode(hello("monitor", "monitor-1"))
        monkeypatch.setattr(membership, "MOST_PEERS", len(there))
        await stage.send(identity, frames)
        assert "monitor-1" not in there
        assert stage.hub.rejections.counts["hello_refused"] == 1
        monkeypatch.setattr(membership, "MOST_PEERS", len(there) + 1)
        await stage.send(identity, frames)
        assert there["monitor-1"] == identity


# -- the learner's work ----------------------------------------------------------------------------

LINEAGE = 2


def window(window_id: int, start: int, end: int) -> Window:
    trajectory_id, index = trajectory_of(window_id)
    return Window(
        trajectory_id=trajectory_id,
        index=index,
        start=start,
        end=end,
        tokens=end - start,
        min_version=0,
        max_version=0,
        state="taken",
    )


def batch(
    update: int, publish_as: int, *, checkpoint: bool = False, warm_up: bool = False
) -> m.Batch:
    """A warm-up trains no policy: its weights stay the version that they are."""
    return m.Batch(
        batch_id=update,
        update=update,
        lineage=LINEAGE,
        version=publish_as - (not warm_up),
        publish_as=publish_as,
        parts=[1],
        value_epochs=1,
        checkpoint=checkpoint,
    )


def notice(version: int, update: int) -> m.WeightNotice:
    return m.WeightNotice(version=version, update=update, digest="", num_bytes=0, sources=[])


def row(window_id: int, start: int, sizes: tuple[int, int, int, int]) -> TokenDiagnostics:
    return TokenDiagnostics(
        window_id=window_id,
        trajectory_id=window_id >> 16,
        start=start,
        lam=1.0,
        columns={
            name: np.zeros(size, np.float32) for name, size in zip(COLUMN_NAMES, sizes, strict=True)
        },
    )


def fewer(diagnostics: TokenDiagnostics) -> TokenDiagnostics:
    """Without the last column."""
    columns = {name: diagnostics.columns[name] for name in COLUMN_NAMES[:-1]}
    return replace(diagnostics, columns=columns)


def foreign(diagnostics: TokenDiagnostics) -> TokenDiagnostics:
    """Said to be of another trajectory."""
    return replace(diagnostics, trajectory_id=diagnostics.trajectory_id + 1)


def done(update: int, **fields: object) -> m.UpdateDone:
    usual: dict[str, object] = {"diagnostics": [], "lineage": LINEAGE, "batch_id": update}
    return m.UpdateDone(update=update, metrics={}, **(usual | fields))  # type: ignore[arg-type]


def at_work() -> OutstandingRequests:
    """Update 5 is out, with two windows; its weights will be version 9."""
    orders = OutstandingRequests(versions={8: 4}, newest=4)
    orders.published(8)
    orders.batch_sent(batch(5, 9), [window(65536, 0, 4), window(65537, 4, 6)])
    return orders


def refused(
    message: m.UpdateDone | m.WeightNotice | m.CheckpointDone, orders: OutstandingRequests
) -> str:
    refusal = learner_refusal(message, orders)
    return refusal.text if refusal else ""


def test_the_update_that_is_out_may_come_back_once() -> None:
    orders = at_work()
    whole = done(5, notice=notice(9, 5), diagnostics=[row(65537, 4, (2, 2, 2, 2))])
    assert refused(whole, orders) == ""
    assert refused(done(5), orders) == ""
    orders.batch_answered()
    assert refused(whole, orders) == "update 5 of lineage 2, batch 5, was not expected"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (done(6), "update 6 of lineage 2, batch 6, was not expected"),
        (done(5, batch_id=4), "update 5 of lineage 2, batch 4, was not expected"),
        (done(5, lineage=1), "update 5 of lineage 1, batch 5, was not expected"),
        (done(5, notice=notice(10, 5)), "version 10 is not that of update 5"),
        (done(5, notice=notice(9, 4)), "version 9 is not that of update 5"),
        (done(5, notice=notice(8, 5)), "version 8 is not that of update 5"),
        (done(5, follows=10), "version 10 cannot follow update 5"),
        (done(5, follows=9, notice=notice(9, 5)), "version 9 cannot follow update 5"),
        (done(5, checkpoint="step_5"), "no checkpoint of update 5 was asked for"),
        (done(5, diagnostics=[row(65538, 0, (4, 4, 4, 4))]), "window 65538 is not in the batch"),
        (done(5, diagnostics=[foreign(row(65536, 0, (4, 4, 4, 4)))]), "65536 is not in the batch"),
        (done(5, diagnostics=[row(65536, 1, (4, 4, 4, 4))]), "window 65536 do not cover it"),
        (done(5, diagnostics=[row(65536, 0, (4, 4, 4, 3))]), "window 65536 do not cover it"),
        (
            done(5, diagnostics=[fewer(row(65536, 0, (4, 4, 4, 4)))]),
            "window 65536 have other columns",
        ),
    ],
)
def test_an_update_with_anything_that_was_not_asked_for(message: m.UpdateDone, reason: str) -> None:
    assert reason in refused(message, at_work())


def test_a_warm_up_publishes_nothing() -> None:
    orders = OutstandingRequests(versions={}, newest=0)
    orders.batch_sent(batch(1, 3, warm_up=True), [])
    assert refused(done(1), orders) == ""
    assert refused(done(1, notice=notice(3, 1)), orders) != ""
    assert refused(notice(3, 1), orders) != ""


def test_versions_are_published_as_they_were_issued_and_never_backwards() -> None:
    orders = at_work()
    assert refused(notice(9, 5), orders) == ""
    assert refused(notice(8, 4), orders) != "", "it is out already"
    assert refused(notice(10, 5), orders) != ""
    orders.batch_answered()
    orders.batch_sent(batch(6, 10), [window(131072, 0, 4)])
    assert refused(notice(9, 6), orders) == "", "an update that changed nothing went by"
    assert refused(notice(10, 5), orders) != "", "version 10 is of update 6"
    orders.published(10)
    assert refused(notice(9, 5), orders) != "", "version 10 overtook it"


def test_a_version_that_follows_its_update_is_awaited_until_it_or_a_later_one_is_there() -> None:
    for comes in (9, 10):
        orders = at_work()
        assert refused(done(5, follows=9), orders) == ""
        orders.batch_answered(follows=9)
        orders.batch_sent(batch(6, 10), [window(131072, 0, 4)])
        assert orders.follows == 9
        orders.published(comes)
        assert orders.follows is None


def test_checkpoints_are_those_that_were_asked_for() -> None:
    orders = at_work()
    answer = m.CheckpointDone(update=5, path="step_5")
    assert refused(answer, orders) == "no checkpoint of update 5 was asked for"
    orders.checkpoints.add(5)
    assert refused(answer, orders) == ""
    orders.batch_answered()
    orders.batch_sent(batch(6, 10, checkpoint=True), [window(131072, 0, 4)])
    assert refused(done(6, checkpoint="step_6"), orders) == ""
    late = m.CheckpointDone(update=6, path="step_6")
    assert refused(late, orders) == "no checkpoint of update 6 was asked for"
    orders.batch_answered()
    assert refused(late, orders) == "", "it may follow its update"
    orders.batch_sent(batch(7, 11, checkpoint=True), [window(131072, 0, 4)])
    orders.batch_answered(checkpoint="step_7")
    assert refused(m.CheckpointDone(update=7, path="step_7"), orders) != "", "it is there"


def test_a_learner_that_was_told_nothing_may_report_nothing() -> None:
    for message in (done(0), notice(0, 0), m.CheckpointDone(update=0, path="")):
        assert refused(message, OutstandingRequests()) != ""
