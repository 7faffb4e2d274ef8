"""What generators and learner did with their time: every second is of one kind."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from headrace.protocol.records import record_types as r
from headrace.protocol.token_spans import Span
from storage.database.reader import open_run
from storage.queries import activity, idle_of, lives, run_line
from storage.run_store import RunStore
from tests.dashboard import scripted_run
from tests.storage.samples import run_config

# 0 to 10 s start, 10 to 20 evaluation, 20 to 100 training, 100 to 110 the end. The learner has
# batches from 30 to 50 and from 60 to 100. The generator has a trajectory from 12 to 90, of which
# it may not go on for 16 of the 80 s of training, and stands still for weights for 2 s at 70.


def write(run_dir: Path) -> Path:
    store = RunStore.create(run_dir, run_dir.name, run_config())

    def phase(at: float, name: str, detail: str = "") -> r.Record:
        return r.RunPhase(at=at, phase=name, detail=detail)

    def taken(at: float, update: int) -> r.Record:
        return r.BatchTaken(
            at=at, update=update, lineage=0, version=0, windows=[], value_trajectories=[]
        )

    def committed(at: float, update: int) -> r.Record:
        rest: dict[str, Any] = {"window_ids": [], "value_trajectories": [], "diagnostics": []}
        return r.UpdateCommitted(
            at=at, update=update, lineage=0, version=0, train_time_s=at, trained_tokens=0,
            metrics={}, **rest,
        )  # fmt: skip

    def idle(at: float, share: float) -> r.Record:
        return r.MetricsSampled(at=at, update=0, metrics={"idle/generator": share})

    chunk: dict[str, Any] = {
        "trajectory_id": 1, "lease_id": 1, "generator": "generator-0",
        "token_ids": np.zeros(1, np.int32), "logprobs": np.zeros(1, np.float32),
    }  # fmt: skip
    up = {"name": "generator-0", "role": "generator", "pid": 1, "host": "h", "detail": ""}
    store.append(
        [
            phase(0.0, "starting"),
            r.ProcessChanged(at=2.0, state="up", **up),  # type: ignore[arg-type]
            phase(10.0, "evaluating", "before"),
            r.GroupIssued(
                at=11.0,
                group_id=1,
                prompt_id="p",
                position=0,
                purpose="train",
                prompt="?",
                answer="!",
                info="{}",
                prompt_ids=np.zeros(1, np.int32),
                trajectory_ids=[1],
                seeds=[1],
            ),
            r.LeaseIssued(
                at=11.5, lease_id=1, trajectory_id=1, generator="generator-0", start=0, version=0
            ),
            r.ChunkArrived(
                at=12.0, chunk_index=0, start=0, spans=[Span(0, 0, 1)], finish=None, **chunk
            ),
            phase(20.0, "training"),
            idle(20.0, 0.0),
            taken(30.0, 1),
            committed(50.0, 1),
            idle(60.0, 0.4),
            taken(60.0, 2),
            r.VersionLoaded(at=70.0, generator="generator-0", version=0, gap_s=2.0, load_s=9.0),
            r.ChunkArrived(
                at=90.0, chunk_index=1, start=1, spans=[Span(0, 1, 2)], finish="stop", **chunk
            ),
            r.TrajectoryEnded(at=90.0, trajectory_id=1, status="finished", length=2),
            idle(90.0, 16 / 70),
            committed(100.0, 2),
            idle(100.0, 26 / 80),
            phase(100.0, "closing"),
            phase(110.0, "finished", "updates"),
        ]
    )
    store.close()
    return run_dir


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("runs") / "run")


def seconds(frame: Any) -> dict[tuple[str, str], float]:
    spent = (frame["end"] - frame["start"]) * frame["share"]
    found = spent.groupby([frame["lane"], frame["kind"]]).sum()
    return {key: round(float(value), 6) for key, value in found.items()}


def test_every_second_is_of_one_kind(run_dir: Path) -> None:
    found = seconds(activity(run_dir, stretches=110))
    assert {kind: n for (lane, kind), n in found.items() if lane == "learner"} == {
        "starting": 10, "evaluation": 10, "waiting": 20, "working": 60, "ending": 10,
    }  # fmt: skip
    # It came up at 2 s; it had a trajectory for 70 of 80 s, so 10 of its 26 idle seconds were
    # without one, and 16 were held.
    assert {kind: n for (lane, kind), n in found.items() if lane == "generator-0"} == {
        "starting": 8, "evaluation": 10, "loading": 2, "held": 16, "waiting": 10, "working": 52,
        "ending": 10,
    }  # fmt: skip


@pytest.mark.parametrize("stretches", [7, 55, 1000])
def test_sums_do_not_depend_on_the_stretches(run_dir: Path, stretches: int) -> None:
    frame = activity(run_dir, stretches=stretches)
    found = seconds(frame)
    assert found["learner", "working"] == pytest.approx(60, abs=1e-3)
    assert sum(n for (lane, _), n in found.items() if lane == "learner") == pytest.approx(110)
    assert (frame["end"] - frame["start"]).min() > 0
    assert frame.groupby(["lane", "start"])["share"].sum().max() <= 1 + 1e-6
    assert len(frame) <= 2 * 7 * stretches


def test_idle_shares_are_of_the_span_that_is_asked_for(run_dir: Path) -> None:
    whole = idle_of(activity(run_dir, stretches=110))
    assert whole == pytest.approx({"learner": 20 / 80, "generator-0": 26 / 80})
    middle = activity(run_dir, since=40.0, until=60.0, stretches=20)
    assert (middle["start"].min(), middle["end"].max()) == (40.0, 60.0)
    assert idle_of(middle)["learner"] == pytest.approx(10 / 20)
    assert idle_of(activity(run_dir, since=60.0, until=90.0))["learner"] == 0.0
    assert idle_of(activity(run_dir, until=15.0)) == {}


def test_a_run_that_has_only_begun_did_nothing_yet(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path / "run", "run", run_config())
    assert activity(tmp_path / "run").empty
    store.append([r.RunPhase(at=1.0, phase="starting")])
    assert activity(tmp_path / "run").empty
    store.close()


def test_time_between_a_crash_and_a_resume_is_no_training(tmp_path: Path) -> None:
    def sampled(at: float) -> r.Record:
        return r.MetricsSampled(at=at, update=0, metrics={"idle/generator": 0.0})

    store = RunStore.create(tmp_path / "run", "run", run_config())
    for start in (0.0, 100.0):  # It is killed at 20.5 s.
        store.append(
            [
                r.RunPhase(at=start, phase="starting"),
                r.RunPhase(at=start + 10.0, phase="training"),
                sampled(start + 10.0),
                sampled(start + 20.0),
            ]
        )
    store.append([r.RunPhase(at=125.0, phase="stopped")])
    store.close()
    assert seconds(activity(tmp_path / "run", stretches=125)) == {
        ("learner", "starting"): 20, ("learner", "waiting"): 25, ("learner", "ending"): 80,
    }  # fmt: skip


@pytest.mark.parametrize("reason", [None, "stale"])
def test_a_scored_answer_waits_for_its_update_unless_it_was_dropped(
    tmp_path: Path, reason: r.DropReason | None
) -> None:
    run_dir = write(tmp_path / "run")
    window = r.ClosedWindow(
        window_id=4, trajectory_id=1, index=0, start=0, end=2, tokens=2, min_version=0,
        max_version=0, final=True,
    )  # fmt: skip
    drop = [r.WindowsDropped(at=122.0, window_ids=[4], reason=reason)] if reason else []
    store = RunStore.open(run_dir)
    store.append(
        [
            r.WindowsClosed(at=111.0, windows=[window]),
            r.RewardArrived(at=120.0, trajectory_id=1, status="ok", reward=1.0),
            r.WindowsReady(at=121.0, window_ids=[4]),
            *drop,
            r.RunPhase(at=130.0, phase="training"),
        ]
    )
    store.close()
    found = lives(run_dir, newest=1).sort_values("start")
    waits = [] if reason else [["waiting", 120.0, 130.0]]
    assert found[["stage", "start", "end"]].to_numpy().tolist() == [
        ["waiting", 11.0, 12.0], ["generating", 12.0, 90.0], ["scoring", 90.0, 120.0], *waits,
    ]  # fmt: skip


@pytest.mark.parametrize("seconds", [3.0, 10.0])
def test_what_came_long_before_a_span_changes_nothing_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """It is not read, which nobody can see."""
    run_dir = scripted_run.write_run(tmp_path, updates=12)
    line = run_line(run_dir)
    since = (line.started_at or 0.0) + line.wall_s - seconds
    module = importlib.import_module("storage.queries.activity")
    monkeypatch.setattr(module, "_SKEW_S", 0.0)
    assert module._written_before(open_run(run_dir), since) > 0
    found = activity(run_dir, since=since)
    monkeypatch.setattr(module, "_written_before", lambda reader, at: 0)
    assert len(found) > 0
    pd.testing.assert_frame_equal(found, activity(run_dir, since=since))
