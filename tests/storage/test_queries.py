"""What the dashboard and `headrace show` are told about a run."""

import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from headrace.errors import UserError
from headrace.protocol.records.record_types import (
    AuditArrived,
    BatchTaken,
    CheckpointWritten,
    EvaluationDone,
    Incident,
    LineageBegan,
    MetricsSampled,
    Record,
    RunPhase,
    TokensLost,
    UpdateCommitted,
    VersionIssued,
    VersionPublished,
)
from headrace.run_files.checked_lines import checked_line
from headrace.run_files.run_folder import find_run, hold_writer
from storage import queries
from storage.database.reader import open_run
from storage.database.tables import Trajectory
from storage.journal.record_batches import SegmentWalk
from storage.journal.segments import segment_paths
from storage.queries.runs import run_line
from storage.run_store import RunStore
from storage.text.token_table import REASONS
from tests.storage.samples import commit, names_of, run_config, small_run, write_run


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "sample-1")


def test_summary(run_dir: Path) -> None:
    summary = queries.run_summary(run_dir)
    assert json.loads(json.dumps(summary)) == summary
    wanted = "run_id status recipe updates wall_s time_to_first_update_s eval reward "
    wanted += "response_length tokens trajectories weight_version staleness idle_share checkpoints"
    assert set(wanted.split()) <= set(summary)
    assert summary["run_id"] == "sample-1"
    assert summary["status"] == "finished"
    assert summary["updates"] == 2
    assert summary["wall_s"] == 41.0
    assert summary["time_to_first_update_s"] == 11.0
    assert summary["time_to_first_policy_update_s"] == 11.0
    assert summary["train_time_s"] == 2.0
    assert summary["eval"] == {"before": None, "after": 0.75}
    assert summary["response_length"] == {"first": None, "last": 9.5}
    assert summary["reward"] == {"first": 0.25, "last": 0.25, "best": 0.25}
    assert summary["lineage"] == 1
    assert summary["weight_version"] == 1
    assert summary["trajectories"] == {
        "issued": 4, "running": 2, "finished": 1, "truncated": 1, "failed": 0, "unfinished": 0,
        "dropped": 1,
    }  # fmt: skip
    assert [c["path"] for c in summary["checkpoints"]] == ["checkpoints/step_1"]


def test_tokens_of_the_summary_are_the_newest_ledger(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path / "run", "run", run_config())
    for records in small_run()[:5]:
        store.append(records)
    metrics = {"ledger/generated": 49.0, "ledger/ready": 7.0, "ledger/dropped/stale": 3.0}
    metrics |= {"ledger/value_finished": 9.0, "ledger/value_waiting": 5.0}
    metrics |= {"ledger/trained_value": 3.0, "ledger/value_dropped": 1.0}
    lost = [("generator-0", 3, "held"), ("generator-1", 5, "held"), ("generator-0", 2, "refused")]
    store.append(
        [
            MetricsSampled(at=14.0, update=1, metrics=metrics),
            *(TokensLost(at=14.0, generator=g, tokens=n, reason=why) for g, n, why in lost),  # type: ignore[arg-type]
        ]
    )
    store.append([TokensLost(at=15.0, generator="generator-0", tokens=4, reason="held")])
    store.close()
    tokens = queries.run_summary(tmp_path / "run")["tokens"]
    assert (tokens["generated"], tokens["ready"], tokens["dropped"]) == (49, 7, {"stale": 3})
    assert (tokens["discarded_at_hold"], tokens["lost"]) == (12, 2)
    names = ("value_finished", "trained_value", "value_waiting", "value_dropped")
    assert [tokens[name] for name in names] == [9, 3, 5, 1]


def test_series_are_of_the_surviving_lineage(run_dir: Path) -> None:
    series = queries.metric_series(run_dir, ["actor/pg_loss"])
    assert list(zip(series.x, series.value, strict=True)) == [(1, 0.5), (2, 0.125)]
    by_time = {
        x: queries.metric_series(run_dir, ["actor/pg_loss"], x).x.tolist()
        for x in ("train_time", "wall", "tokens")
    }
    assert by_time == {"train_time": [1.0, 2.0], "wall": [11.0, 31.0], "tokens": [10, 20]}
    gauges = queries.metric_series(run_dir, ["schedule/held"], "wall", samples=True)
    assert gauges[["x", "value"]].to_numpy().tolist() == [[12.5, 2.0]]


def test_an_array_has_a_number_for_each_bin(run_dir: Path) -> None:
    frame = queries.metric_arrays(run_dir, "value/bias")
    assert frame["update"].tolist() == [1] * 10 + [2] * 10
    assert frame["bin"].tolist()[:2] == ["0 to 10 %", "10 to 20 %"]
    assert frame["value"].tolist()[0] == 0.5
    assert np.isnan(frame["value"].tolist()[1])
    assert frame["value"].tolist()[2:10] == [-0.25] * 8
    assert queries.metric_arrays(run_dir, "value/bias", points=1)["update"].unique().tolist() == [2]
    assert "value/bias" not in queries.latest_metrics(run_dir)


def test_arrays_that_few_updates_have_are_all_found(tmp_path: Path) -> None:
    """As those of the value model, where only every fourth update has a value batch."""
    store = RunStore.create(tmp_path / "run", "run", run_config())
    for update in range(1, 41):
        batch = BatchTaken(
            at=update, update=update, lineage=0, version=0, windows=[], value_trajectories=[]
        )
        metrics: dict[str, Any] = {"value/bias": [0.5] * 10} if update % 4 == 1 else {}
        store.append([batch, commit(batch, at=update + 0.5, metrics=metrics)])
    store.close()
    found = queries.metric_arrays(tmp_path / "run", "value/bias", points=10)
    assert found["update"].unique().tolist() == list(range(1, 41, 4))


def test_numbers_that_are_not_finite_are_unknown(run_dir: Path) -> None:
    latest = queries.latest_metrics(run_dir)
    assert latest["critic/vf_loss"] is None
    assert latest["actor/pg_loss"] == 0.125
    assert queries.latest_metrics(run_dir, "schedule/") == {"schedule/held": 2.0}
    assert "actor/pg_loss" in queries.metric_names(run_dir)


def test_a_search_in_responses_without_a_tokenizer_says_so(run_dir: Path) -> None:
    with pytest.raises(UserError, match="has no tokenizer"):
        queries.search_responses(run_dir, "1", purpose="train")


def test_page_of_trajectories(run_dir: Path) -> None:
    page = queries.trajectory_page(run_dir, sort="length", limit=2)
    assert page.total == 5
    assert page.rows.trajectory_id.tolist() == [20, 10]
    assert page.rows.prompt.tolist() == ["2 + 1 =", "1 + 1 ="]
    rest = queries.trajectory_page(run_dir, sort="length", limit=2, offset=2)
    assert rest.rows.length.tolist() == [5, 4]
    found = queries.trajectory_page(run_dir, where="reward is null", filters={"purpose": "train"})
    assert sorted(found.rows.trajectory_id) == [20, 30, 50]
    either = queries.trajectory_page(run_dir, filters={"status": ["truncated", "running"]})
    assert sorted(either.rows.trajectory_id) == [20, 30]
    assert queries.trajectory_page(run_dir, search="2 + 1").total == 2
    with pytest.raises(UserError, match="did you mean reward"):
        queries.trajectory_page(run_dir, sort="rewards")


def test_detail_of_a_trajectory(run_dir: Path) -> None:
    detail = queries.trajectory_detail(run_dir, 10)
    tokens = detail.tokens
    assert detail.row["status"] == "finished"
    assert detail.reward_parts == {"exact": 1.0}
    assert tokens.token_ids.tolist() == list(range(20))
    assert tokens.logprobs.tolist() == [-p / 8 for p in range(20)]
    assert tokens.versions.tolist() == [0] * 8 + [1] * 12
    assert tokens.window_index.tolist() == [0] * 8 + [1] * 8 + [2] * 4
    assert tokens.trained_at_update.tolist() == [1] * 8 + [2] * 8 + [-1] * 4
    assert tokens.loss_mask.tolist() == [1] * 6 + [0] * 2 + [0] * 3 + [1] * 5 + [0] * 4
    reasons = names_of(tokens.mask_reasons, REASONS).tolist()
    assert reasons == [None] * 6 + ["boundary_mask"] * 2 + ["stale"] * 3 + [None] * 9
    assert tokens.figures["values"][:16].tolist() == [1.0] * 8 + [2.0] * 8
    assert np.isnan(tokens.figures["values"][16:]).all()
    assert tokens.figures["advantages"][:16].tolist() == list(range(16))
    assert tokens.figures["learner_logprobs"][4] == -1.0
    assert np.isnan(tokens.figures["returns"]).all()
    assert detail.windows["state"].tolist() == ["trained", "trained", "ready"]
    assert detail.siblings.trajectory_id.tolist() == [10]
    assert detail.text is None
    assert detail.prompt_ids.tolist() == [0, 1, 2, 3, 4]


def test_detail_without_tokens_or_trajectory(run_dir: Path) -> None:
    assert len(queries.trajectory_detail(run_dir, 50).tokens.token_ids) == 0
    with pytest.raises(UserError, match="no trajectory 99"):
        queries.trajectory_detail(run_dir, 99)


def test_an_answer_behind_the_end_of_the_journal_is_a_line(tmp_path: Path) -> None:
    """SQL knows its place, and the journal was copied before its last batches were written."""
    run_dir = write_run(tmp_path / "run")
    (path,) = segment_paths(run_dir / "journal")
    path.write_bytes(path.read_bytes()[: list(SegmentWalk(path))[2].end - 9])
    assert len(queries.trajectory_detail(run_dir, 50).tokens.token_ids) == 0
    with pytest.raises(UserError, match="journal of run ends before trajectory 10 does"):
        queries.trajectory_detail(run_dir, 10)


def test_text_comes_from_the_models_tokenizer(tmp_path: Path) -> None:
    from tasks.procedural.chain_sums import CHAIN_SUMS
    from tasks.procedural.character_tokenizer import build_tokenizer, vocabulary

    tokens = vocabulary(CHAIN_SUMS.characters)
    build_tokenizer(CHAIN_SUMS.characters).save_pretrained(tmp_path / "model")
    run_dir = write_run(tmp_path / "run", run_config(model={"path": str(tmp_path / "model")}))
    detail = queries.trajectory_detail(run_dir, 10)
    assert detail.pieces == list(tokens[:20])
    assert detail.said == {0: "".join(tokens[:20])}
    assert detail.text == "".join(tokens[4:20])


def test_dropped_windows(run_dir: Path) -> None:
    pages = [queries.dropped_page(run_dir, limit=3, offset=first).rows for first in (0, 3)]
    assert [list(page["at"]) for page in pages] == [[31.0, 13.0, 11.0], [8.0]]
    assert queries.dropped_tokens(run_dir) == {
        "boundary_mask": 2, "filtered": 8, "reward_failed": 8, "stale": 3,
    }  # fmt: skip


def test_dropped_page_by_window(run_dir: Path) -> None:
    page = queries.dropped_page(run_dir)
    rows: list[Any] = [
        (row.trajectory_id, row.start, row.end, row.reasons, row.lost, row.of)
        for row in page.rows.itertuples()
    ]
    assert page.total == len(rows) == 4
    assert sorted(rows) == [
        (10, 0, 8, {"boundary_mask": 2}, 2, 8),
        (10, 8, 16, {"stale": 3}, 3, 8),
        (20, 0, 8, {"filtered": 8}, 8, 8),
        (20, 16, 24, {"reward_failed": 8}, 8, 8),
    ]
    assert page.rows["at"].is_monotonic_decreasing
    found = sum((Counter(reasons) for reasons in page.rows["reasons"]), Counter[str]())
    assert found == Counter(queries.dropped_tokens(run_dir))
    second = queries.dropped_page(run_dir, limit=2, offset=2)
    assert second.rows["start"].tolist() == page.rows["start"].tolist()[2:]
    most = queries.dropped_page(run_dir, order="most tokens").rows
    assert most["lost"].tolist() == [8, 8, 3, 2]
    stale = queries.dropped_page(run_dir, reasons=["stale"])
    assert (stale.total, stale.rows["reasons"].tolist()) == (1, [{"stale": 3}])
    whole = queries.dropped_page(run_dir, reasons=["filtered", "stale"])
    assert whole.total == 2
    assert queries.dropped_page(run_dir, lengths=(21, None)).total == 2
    assert queries.dropped_page(run_dir, lengths=(None, 20), reasons=["filtered"]).total == 0


def test_dropped_page_by_trajectory(run_dir: Path) -> None:
    page = queries.dropped_page(run_dir, by="trajectory", order="most tokens")
    assert page.total == 2
    assert page.rows[["trajectory_id", "windows", "lost"]].to_numpy().tolist() == [
        [20, 2, 16],
        [10, 2, 5],
    ]
    assert page.rows["reasons"].tolist() == [
        {"filtered": 8, "reward_failed": 8},
        {"boundary_mask": 2, "stale": 3},
    ]
    assert page.rows["length"].tolist() == [24, 20]
    stale = queries.dropped_page(run_dir, by="trajectory", reasons=["stale"])
    assert stale.rows[["trajectory_id", "windows", "lost"]].to_numpy().tolist() == [[10, 1, 3]]


def test_losses_by_length(run_dir: Path) -> None:
    """Of answers that ended, the shortest first; windows that wait are no loss."""
    frame = queries.losses_by_length(run_dir, 2)
    reasons = ["boundary_mask", "filtered", "reward_failed", "stale"]
    assert list(frame.columns) == ["longest", "tokens", *reasons]
    assert frame.to_numpy().tolist() == [[20, 20, 2, 0, 0, 3], [24, 24, 0, 8, 8, 0]]
    assert queries.losses_by_length(run_dir, 1).to_numpy().tolist() == [[24, 44, 2, 8, 8, 3]]
    assert len(queries.losses_by_length(run_dir)) == 2, "fewer answers than parts"


def test_events_with_those_of_the_supervisor(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run")
    lines = [
        {"at": 24.5, "event": "died", "name": "learner-0", "code": -9, "detail": "killed"},
        {"at": 0.1, "event": "started", "name": "coordinator"},
    ]
    damaged = checked_line({"at": 99.0, "event": "died"}).replace(b"died", b"d\xefed")
    text = b"".join(map(checked_line, lines)) + damaged + b'{"at": 99, "ev'
    (run_dir / "supervisor.jsonl").write_bytes(text)
    events = queries.events(run_dir)
    assert events["at"].is_monotonic_decreasing
    died = events[events.text.str.contains("learner-0 died")]
    assert died[["level", "kind"]].to_numpy().tolist() == [["warning", "supervisor"]]
    assert "the learner died" in " ".join(events.text)
    assert queries.events(run_dir, kind="rejected").text.tolist() == ["a malformed message"]
    assert len(queries.events(run_dir, limit=1)) == 1


def test_a_judge_that_stays_away_is_an_alert(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run")
    lines = [
        {"at": 20.0, "event": "gave_up", "name": "judge-fair", "detail": "no such model"},
        {"at": 21.0, "event": "gave_up", "name": "dashboard", "detail": "exit code 1"},
    ]
    (run_dir / "supervisor.jsonl").write_bytes(b"".join(map(checked_line, lines)))
    alerts = queries.events(run_dir, kind=queries.ALERT)
    assert "judge-fair gave_up: no such model" in set(alerts.text)
    assert "judge-fair gave_up: no such model" in queries.run_summary(run_dir)["alerts"]
    others = queries.events(run_dir, kind="supervisor")
    assert others.text.tolist() == ["dashboard gave_up: exit code 1"]


def test_an_alert_is_about_what_was_scored_since_the_update_before(tmp_path: Path) -> None:
    """Its record lies before the commit during which it was raised, and is younger than that."""
    store = RunStore.create(tmp_path / "run", "run", run_config())
    first, second = (
        BatchTaken(at=at, update=n, lineage=0, version=0, windows=[], value_trajectories=[])
        for n, at in ((1, 15.0), (2, 25.0))
    )
    text = "source: the entropy of its answers is low"
    store.append(
        [
            RunPhase(at=10.0, phase="training"),
            first,
            commit(first, at=20.0, metrics={}),
            second,
            Incident(at=30.5, level="warning", kind=queries.ALERT, text=text),
            commit(second, at=30.0, metrics={}),
        ]
    )
    store.close()
    (alert,) = queries.reward_alerts(tmp_path / "run", 8)
    assert (alert.at, alert.source) == (30.5, "source")
    assert (alert.since, alert.until) == (10.0, 20.5)


def test_processes_and_evaluations(run_dir: Path) -> None:
    (process,) = queries.process_health(run_dir).to_dict("records")
    assert (process["name"], process["state"], process["starts"]) == ("generator-0", "up", 1)
    assert queries.evaluations(run_dir)[["label", "accuracy"]].to_numpy().tolist() == [
        ["after", 0.75]
    ]
    (row,) = queries.evaluations(run_dir).to_dict("records")
    line = queries.run_line(run_dir)
    assert row["wall_s"] == row["at"] - (line.started_at or 0.0)
    assert row["trained_tokens"] == line.trained_tokens > 0


def test_runs_under_a_root(tmp_path: Path) -> None:
    write_run(tmp_path / "alpha-1")
    other = write_run(tmp_path / "beta-2")
    (tmp_path / "no-run").mkdir()
    (tmp_path / "latest").write_text("beta-2\n")
    assert {line.run_id for line in queries.list_runs(tmp_path)} == {"alpha-1", "beta-2"}
    line = queries.list_runs(tmp_path)[0]
    assert (line.status, line.updates, line.accuracy_after) == ("finished", 2, 0.75)
    for name in ("latest", "beta-2", "bet", str(other)):
        assert find_run(tmp_path, name) == other
    with pytest.raises(UserError, match="alpha-1"):
        find_run(tmp_path, "alpah-1")
    with pytest.raises(UserError, match="not a run folder"):
        queries.run_summary(tmp_path / "no-run")


def trained(lineage: int, update: int, **metrics: float) -> list[Record]:
    """An update without windows, and its metrics `reward/NAME`."""
    place: dict[str, Any] = {"at": 1.0, "update": update, "lineage": lineage, "version": 0}
    committed = UpdateCommitted(
        **place, train_time_s=1.0, trained_tokens=0, window_ids=[], value_trajectories=[],
        metrics={f"reward/{name}": value for name, value in metrics.items()}, diagnostics=[],
    )  # fmt: skip
    return [BatchTaken(**place, windows=[], value_trajectories=[]), committed]


def rolled_back(update: int) -> Record:
    """The line goes on from this update."""
    return LineageBegan(
        at=4.0, lineage=1, update=update, version=2, reason="?", window_ids=[],
        value_trajectories=[],
    )  # fmt: skip


def test_the_newest_metrics_are_of_no_update_that_a_rollback_undid(tmp_path: Path) -> None:
    """A gauge is as of now; what the rollback undid counts again once it is trained again."""
    store, run = RunStore.create(tmp_path / "run", "run", run_config()), tmp_path / "run"
    gauge = MetricsSampled(at=2.0, update=2, metrics={"schedule/held": 2.0})
    first = [*trained(0, 1, mean=0.25), *trained(0, 2, mean=0.75, std=0.5), gauge]
    store.append([RunPhase(at=0.0, phase="training"), *first])
    assert queries.run_line(run).reward == queries.latest_metrics(run)["reward/mean"] == 0.75
    store.append([rolled_back(1)])
    assert queries.latest_metrics(run) == {"reward/mean": 0.25, "schedule/held": 2.0}
    assert queries.run_line(run).reward == 0.25
    store.append(trained(1, 2, mean=0.5))
    store.close()
    assert queries.latest_metrics(run) == {"reward/mean": 0.5, "schedule/held": 2.0}
    assert queries.run_line(run).reward == 0.5


def test_an_evaluation_that_a_rollback_undid_is_told_apart(tmp_path: Path) -> None:
    """Also where the surviving line has trained an update of the same number since."""
    store = RunStore.create(tmp_path / "run", "run", run_config())

    def evaluated(update: int, accuracy: float = 0.5) -> Record:
        return EvaluationDone(
            at=2.0, label="during", update=update, version=1, num_prompts=8, accuracy=accuracy,
            response_length=1.0, max_response_length=1, truncated=0.0, failed=0, seconds=1.0,
            train_time_s=1.0,
        )  # fmt: skip

    first = [evaluated(0), *trained(0, 1), evaluated(1), *trained(0, 2), evaluated(2, 0.75)]
    store.append([RunPhase(at=0.0, phase="training"), *first])
    assert queries.run_line(tmp_path / "run").accuracy == 0.75
    store.append([rolled_back(1), *trained(1, 2)])
    assert queries.run_line(tmp_path / "run").accuracy == 0.5
    store.append([evaluated(2)])
    store.close()
    rows = queries.evaluations(tmp_path / "run")
    assert rows["update"].tolist() == [0, 1, 2, 2]
    assert rows["abandoned"].tolist() == [False, False, True, False]
    summary = queries.run_summary(tmp_path / "run")
    assert [row["update"] for row in summary["evaluations"]] == [0, 1, 2]


def test_a_checkpoint_has_its_own_accuracy_or_none(tmp_path: Path) -> None:
    """That of an evaluation behind it, too. After a rollback update 2 is made anew: what the first
    one reached is not the second's."""
    store = RunStore.create(tmp_path / "run", "run", run_config())

    def published(version: int, lineage: int, update: int) -> list[Record]:
        return [
            VersionIssued(at=1.0, version=version),
            VersionPublished(at=1.0, version=version, lineage=lineage, update=update, num_bytes=1),
        ]

    def kept(lineage: int, accuracy: float | None = 0.5) -> Record:
        path = f"checkpoints/step_2-{lineage}"
        return CheckpointWritten(at=3.0, update=2, lineage=lineage, path=path, accuracy=accuracy)

    evaluated = EvaluationDone(
        at=2.0, label="during", update=2, version=1, num_prompts=8, accuracy=0.5,
        response_length=1.0, max_response_length=1, truncated=0.0, failed=0, seconds=1.0,
        train_time_s=1.0,
    )  # fmt: skip
    first = [*published(1, 0, 2), kept(0, None), evaluated, kept(0)]
    records = [*first, rolled_back(1), *published(2, 1, 1), *published(3, 1, 2), kept(1)]
    store.append([RunPhase(at=0.0, phase="training"), *records])
    store.close()
    rows = queries.run_summary(tmp_path / "run")["checkpoints"]
    assert [(row["lineage"], row["accuracy"]) for row in rows] == [(0, 0.5), (0, 0.5), (1, None)]


def test_a_run_that_has_ended_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that lists many runs asks each of them again only when it has gone on."""
    read: list[str] = []

    def counted(run_dir: Path) -> queries.RunLine:
        read.append(run_dir.name)
        return run_line(run_dir)

    ended = write_run(tmp_path / "ended-1")
    store = RunStore.create(tmp_path / "live-2", "live-2", run_config())
    store.append([RunPhase(at=time.time(), phase="training")])
    monkeypatch.setattr("storage.queries.runs.run_line", counted)
    for _ in range(3):
        assert {line.status for line in queries.list_runs(tmp_path)} == {"finished", "training"}
    assert sorted(read) == ["ended-1", *["live-2"] * 3]
    again = RunStore.open(ended)
    again.append([RunPhase(at=time.time(), phase="training")])
    again.close()
    assert {line.status for line in queries.list_runs(tmp_path)} == {"training"}
    store.close()


def test_a_lost_run_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until somebody holds it again: a folder may have dozens of them."""
    read: list[str] = []

    def counted(run_dir: Path) -> queries.RunLine:
        read.append(run_dir.name)
        return run_line(run_dir)

    store = RunStore.create(tmp_path / "lost-1", "lost-1", run_config())
    store.append([RunPhase(at=1.0, phase="training")])
    store.close()
    monkeypatch.setattr("storage.queries.runs.run_line", counted)
    for _ in range(3):
        assert [line.status for line in queries.list_runs(tmp_path)] == ["lost"]
    assert read == ["lost-1"]
    with hold_writer(tmp_path / "lost-1"):
        assert [line.status for line in queries.list_runs(tmp_path)] == ["training"]


@pytest.mark.parametrize(
    ("phases", "ended"),
    [
        ([("training", "")], ""),
        ([("training", ""), ("draining", "24 updates"), ("finished", "")], "24 updates"),
        ([("draining", "evaluation"), ("draining", "9 tokens trained"), ("finished", "")],
         "9 tokens trained"),
        ([("draining", "stop"), ("stopped", "")], "asked to stop"),
        ([("draining", "stop"), ("interrupted", "")], "interrupted by Ctrl-C or a signal"),
        ([("training", ""), ("failed", "64 rewards in a row failed")],
         "64 rewards in a row failed"),
    ],
)  # fmt: skip
def test_why_a_run_ended(tmp_path: Path, phases: list[tuple[str, str]], ended: str) -> None:
    store = RunStore.create(tmp_path / "run", "run", run_config())
    now = time.time()
    store.append([RunPhase(at=now, phase=phase, detail=detail) for phase, detail in phases])
    store.close()
    assert queries.run_summary(tmp_path / "run")["ended"] == ended
    assert queries.run_line(tmp_path / "run").detail == ended


def test_run_whose_coordinator_is_gone(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    store = RunStore.create(run_dir, "run", run_config())
    store.append([RunPhase(at=1.0, phase="training")])
    store.close()
    # Its id is that of another process by now.
    (run_dir / "coordinator.json").write_text(json.dumps({"pid": os.getpid()}))
    assert queries.run_summary(run_dir)["status"] == "lost"
    with hold_writer(run_dir):
        assert queries.run_summary(run_dir)["status"] == "training"


def test_queries_while_the_run_goes_on(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    store = RunStore.create(run_dir, "run", run_config())
    assert queries.run_summary(run_dir)["updates"] == 0
    for records in small_run():
        store.append(records)
        queries.run_summary(run_dir)
        assert queries.trajectory_detail(run_dir, 10).row["trajectory_id"] == 10
        assert queries.activity(run_dir) is not None
    store.close()


@pytest.mark.postgresql
def test_queries_on_postgresql(tmp_path: Path, postgresql_url: str) -> None:
    config = run_config(storage={"database": postgresql_url})
    run_dir = write_run(tmp_path / "sample-1", config)
    plain = write_run(tmp_path / "other" / "sample-1")
    assert queries.run_summary(run_dir) == queries.run_summary(plain)
    assert queries.events(run_dir).equals(queries.events(plain))
    for by in ("window", "trajectory"):
        asked: Any = {"by": by, "reasons": ["stale", "filtered"], "order": "most tokens"}
        pages = [queries.dropped_page(folder, **asked) for folder in (run_dir, plain)]
        assert pages[0].rows.equals(pages[1].rows)
        assert pages[0].total == pages[1].total > 0
    for folder in (run_dir, plain):
        assert queries.trajectory_page(folder, search="PROMPT-1").total == 2
    page = queries.trajectory_page(run_dir, where="reward > 0 or status like '%trunc%'")
    assert page.total == 2
    detail = queries.trajectory_detail(run_dir, 10)
    assert detail.tokens.token_ids.tolist() == list(range(20))


@pytest.mark.postgresql
def test_rows_of_a_server_are_fetched_in_parts(
    tmp_path: Path, postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a long run would fill the memory, as a driver has all of a plain query at once."""
    monkeypatch.setattr("storage.database.reader._FETCH_ROWS", 2)
    run_dir = write_run(tmp_path / "run", run_config(storage={"database": postgresql_url}))
    query, cursors = select(Trajectory.trajectory_id), "select name from pg_cursors where name > ''"
    with open_run(run_dir).moment() as now:
        assert now.connection is not None
        for rows in (now.tuples(query), now.columns(query, 2)):
            assert next(rows)
            assert len(now.connection.exec_driver_sql(cursors).all()) == 1
            assert list(rows)


def test_sources_of_rewards(tmp_path: Path) -> None:
    """One good score of two answers; the good one is audited in vain, then not again."""
    reward = {
        "sources": {"truth": {"kind": "math"}, "judge": {"kind": "function", "function": "m:f"}},
        "route": {"default": "truth"},
        "audit": {"source": "truth", "share": 1.0},
    }
    store = RunStore.create(tmp_path / "run", "run", run_config(reward=reward))
    for records in small_run():
        store.append(records)
    audited = AuditArrived(
        at=8.5, trajectory_id=10, source="truth", status="ok", reward=0.25, seconds=1.0
    )

    def audits() -> int:
        filters, where = {"purpose": "train"}, "audit_status = 'ok'"
        return queries.trajectory_page(tmp_path / "run", filters=filters, where=where).total

    assert audits() == 0
    store.append([audited])
    store.close()
    assert audits() == 1
    (row,) = queries.reward_sources(tmp_path / "run").to_dict("records")
    counts = {name: row[name] for name in ("answers", "ok", "timeout", "crashed", "invalid")}
    assert counts == {"answers": 2, "ok": 1, "timeout": 1, "crashed": 0, "invalid": 0}
    assert (row["source"], row["reward"], row["correct"]) == ("default", 1.0, 1.0)
    assert (row["error"], row["audit_error"]) == ("5 s", None)
    assert (row["audits"], row["audits_failed"], row["gap"]) == (1, 0, 0.75)
    assert row["slowest"] == 5.0
    points = queries.reward_lengths(tmp_path / "run")
    assert points.to_dict("records") == [
        {"trajectory_id": 10, "source": "default", "length": 20, "reward": 1.0, "correct": True}
    ]
    summary = queries.run_summary(tmp_path / "run")
    assert summary["alerts"] == []
    assert summary["rewards"]["default"] == {
        "failed": 1, "answers": 2, "reward": 1.0, "correct": 1.0, "seconds": 2.6, "audits": 1,
        "gap": 0.75, "error": "5 s",
    }  # fmt: skip
    detail = queries.trajectory_detail(tmp_path / "run", 10)
    assert (detail.row["audit_source"], detail.row["audit_reward"]) == ("truth", 0.25)
