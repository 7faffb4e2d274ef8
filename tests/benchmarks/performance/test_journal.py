"""The journal's cost: turns leave out their part and make up for it, figures are those of the
turns, and a run in turns is an ordinary run."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy import select

from benchmarks.kit.rows import result_line
from benchmarks.performance import journal_turns
from benchmarks.performance.journal import Flow, figures, in_turns, measure, options_from, rounds_of
from benchmarks.performance.journal_turns import (
    KINDS,
    Kind,
    Plan,
    Turn,
    Work,
    new_store,
    read_turns,
)
from generators.engine import GenerationRequest
from generators.run import build_engine
from headrace.config.sections.run import RunConfig
from headrace.errors import RunFailedError, StorageBlockedError, UserError
from headrace.host.hardware import Hardware
from headrace.protocol.records.record_types import (
    ChunkArrived,
    EvaluationDone,
    GroupIssued,
    LeaseIssued,
    Record,
    RewardArrived,
    TrajectoryEnded,
)
from headrace.run_files.run_folder import read_config
from headrace_cli.launch.plan import plan_processes
from storage.audit import audit_run
from storage.database.engine import open_reader
from storage.database.tables import Projection
from storage.journal.store import read_journal
from storage.run_store import RunStore
from tests.storage.samples import chunk, group, run_config, same
from tests.storage.test_run_store import dump


def at_once(first: Kind) -> Plan:
    """A turn lasts from one commit to the next, and settles in no time."""
    plans = (Plan(turn_s=0.0, settle_s=0.0, seed=seed) for seed in range(100))
    return next(plan for plan in plans if next(plan.order()) == first)


def evaluating() -> RunConfig:
    return run_config(evaluation={"only": True, "before": True, "after": False})


def answer(number: int) -> list[Record]:
    """What a commit holds: an answer of four tokens from its prompt to its end."""
    key = number * 10
    return [
        group(number, purpose="eval"),
        chunk(key, 0, 4, finish="stop"),
        TrajectoryEnded(at=3.0, trajectory_id=key, status="finished", length=4),
    ]


def in_sql(run_dir: Path) -> int:
    with open_reader(run_dir, None).connect() as connection:
        return int(connection.execute(select(Projection.next_offset)).scalar_one())


@pytest.mark.parametrize("kind", KINDS)
def test_a_turn_leaves_out_its_part_and_makes_up_for_it(tmp_path: Path, kind: Kind) -> None:
    run_dir = tmp_path / "run"
    store = new_store(at_once(kind), run_dir, "run", evaluating())
    # The first chunk brings the turn, the next commit begins it, and the one behind that ends it.
    for number in range(3):
        store.append(answer(number))
    written, projected = store.end.records, in_sql(run_dir)
    assert written == (3 if kind == "none" else 9)
    assert projected == (3 if kind == "none" else 9)
    store.append(answer(3))
    assert (store.end.records, in_sql(run_dir)) == (12, 12)
    # The next turn is cut short by the run's end.
    store.append(answer(4))
    store.close()
    assert in_sql(run_dir) == 15
    assert sum(len(batch) for batch in read_journal(run_dir / "journal")) == 15
    (turn,) = read_turns(run_dir)
    assert turn.kind == kind
    assert (turn.work.commits, turn.work.records) == (1, 3)
    assert turn.work.fsyncs == (1 if kind == "journal" else 0)
    assert (turn.work.journal_bytes == 0) is (kind == "none")


def test_what_turns_left_out_is_in_journal_and_sql_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Record by record and row by row, also where a turn leaves more than one commit makes up
    for."""
    monkeypatch.setattr(journal_turns, "AT_ONCE", 2)
    plain = RunStore.create(tmp_path / "plain" / "run", "run", evaluating())
    turned = new_store(at_once("none"), tmp_path / "turned" / "run", "run", evaluating())
    for number in range(80):
        for store in (plain, turned):
            store.append(answer(number))
    for store in (plain, turned):
        store.close()
    turns = read_turns(tmp_path / "turned" / "run")
    assert len(turns) > 2 * len(KINDS)
    for first in range(0, len(turns) - len(KINDS) + 1, len(KINDS)):
        assert {turn.kind for turn in turns[first : first + len(KINDS)]} == set(KINDS)
    journals = [
        [pair for batch in read_journal(tmp_path / name / "run" / "journal") for pair in batch]
        for name in ("plain", "turned")
    ]
    assert len(journals[0]) == len(journals[1]) == 240
    for (offset, record), (other_offset, other) in zip(*journals, strict=True):
        assert offset == other_offset
        assert same(record, other)
    assert dump(tmp_path / "plain" / "run") == dump(tmp_path / "turned" / "run")


def test_behind_the_evaluation_nothing_is_left_out(tmp_path: Path) -> None:
    store = new_store(at_once("none"), tmp_path / "run", "run", evaluating())
    done = EvaluationDone(
        at=9.0, label="before", update=0, version=0, num_prompts=2, accuracy=0.5,
        response_length=4.0, max_response_length=4, truncated=0.0, failed=0, seconds=1.0,
        train_time_s=0.0,
    )  # fmt: skip
    store.append(answer(0))
    store.append([*answer(1), done])
    assert store.end.records == 3
    store.append(answer(2))
    assert store.end.records == 10
    store.close()
    assert read_turns(tmp_path / "run") == []


def test_a_run_that_trains_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="evaluate alone"):
        new_store(at_once("none"), tmp_path / "run", "run", run_config())
    assert not (tmp_path / "run").exists()


def test_a_full_disk_ends_the_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = new_store(at_once("journal"), tmp_path / "run", "run", evaluating())

    def full(*_: object) -> None:
        raise StorageBlockedError("room")

    with monkeypatch.context() as patch:
        patch.setattr(RunStore, "append", full)
        with pytest.raises(RunFailedError, match="needs room"):
            store.append(answer(0))
    store.close()


def test_the_coordinator_alone_is_another_program(tmp_path: Path) -> None:
    machine = Hardware(cores=(0, 1), memory_bytes=2**34, available_bytes=2**34)
    plan = Plan(turn_s=4.0, settle_s=1.0, seed=3)
    for spec in plan_processes(evaluating(), tmp_path, machine):
        other = in_turns(spec, plan)
        if spec.role != "coordinator":
            assert other == spec
            continue
        assert other.argv[1:4] == ("-m", "benchmarks.performance.journal_turns", "--plan")
        assert other.argv[-2:] == spec.argv[-2:]
        assert other.restarts.limit == 0


def test_rounds_count_while_prompts_wait() -> None:
    """Chunks of ten tokens every second, of twenty from the fifth on; the last lease at 9."""
    flow = Flow(
        chunks=[float(at) for at in range(12)],
        tokens=[0, 10, 20, 30, 40, 50, *range(70, 191, 20)],
        ended=[0.5, 5.5, 6.5],
        last_lease=9.0,
    )
    work = Work(commits=4, records=8, cpu_s=0.5, fsyncs=4, fsync_s=0.2,
                journal_bytes=300, written_bytes=900)  # fmt: skip
    turns = [
        Turn("journal", 1.0, 3.0, work),
        Turn("none", 4.0, 6.0, Work()),
        Turn("none", 6.0, 8.0, Work()),
        Turn("journal", 8.0, 9.5, work),
    ]
    (found,) = rounds_of(flow, turns)
    assert (found["journal"]["tokens"], found["none"]["tokens"]) == (20, 30)
    assert (found["journal"]["answers"], found["none"]["answers"]) == (0, 1)
    said = figures([found])
    assert said["ratio"] == pytest.approx(2 / 3, abs=1e-4)
    assert said["interval"] is None
    assert said["tokens_per_s"] == {"journal": 10.0, "none": 15.0}
    assert said["answers_per_s"] == {"journal": 0.0, "none": 0.5}
    writes = said["writer"]
    assert (writes["core_share"], writes["fsync_share"]) == (0.25, 0.1)
    assert (writes["commits_per_s"], writes["fsyncs"]) == (2.0, 4)
    assert (writes["journal_bytes_per_token"], writes["written_bytes_per_token"]) == (15.0, 45.0)


def test_a_ratio_is_of_means() -> None:
    flow = Flow(chunks=[0.0, 2.0, 4.0, 6.0], tokens=[0, 95, 195, 300, 390], ended=[],
                last_lease=99.0)  # fmt: skip
    order: tuple[Kind, ...] = ("journal", "none", "none", "journal")
    turns = [Turn(kind, 2.0 * n, 2.0 * n + 1, Work()) for n, kind in enumerate(order)]
    found = figures(rounds_of(flow, turns))
    # With: 95 and 90; without: 100 and 105.
    assert found["ratio"] == pytest.approx(185 / 205, abs=1e-4)
    assert (found["ratio_min"], found["ratio_max"]) == (round(90 / 105, 4), 0.95)
    assert found["interval"] == [round(90 / 105, 4), 0.95]


@pytest.mark.slow
def test_a_run_in_turns_is_an_ordinary_run(tmp_path: Path) -> None:
    """Real processes around a scripted engine: all answers are the engine's, whatever turn they
    came in, and nobody who reads the run finds anything."""
    options = options_from(
        ["--engine", "fake", "--prompts", "3000", "--repeats", "1", "--turn-s", "0.1",
         "--settle-s", "0.05", "task.max_response_length=420", "reward.kind=exact"]
    )  # fmt: skip
    result = json.loads(result_line(measure(options, tmp_path)))
    assert result["rounds"] >= 1
    assert result["ratio"] > 0.0
    assert (result["engine"], result["runs"]) == ("fake", 1)
    assert result["writer"]["fsyncs"] > 0
    assert {"others_cpu_share", "steal_share", "disturbed", "filesystem"} <= result.keys()
    assert {"coordinator", "generator-0", "reward-0"} <= result["cpu_s"].keys()

    (run_dir,) = (path for path in tmp_path.iterdir() if path.is_dir())
    report = audit_run(run_dir)
    assert report.balanced
    # Nobody gives out the version of a model folder that is evaluated as it is.
    assert [finding for finding in report.findings if finding.kind != "versions"] == []
    records = [record for batch in read_journal(run_dir / "journal") for _, record in batch]
    for kind in (GroupIssued, LeaseIssued, TrajectoryEnded, RewardArrived):
        assert sum(isinstance(record, kind) for record in records) == 3000
    (done,) = (record for record in records if isinstance(record, EvaluationDone))
    assert (done.num_prompts, done.failed) == (3000, 0)
    bare = [turn for turn in read_turns(run_dir) if turn.kind == "none"]
    groups = {r.trajectory_ids[0]: r for r in records if isinstance(r, GroupIssued)}
    ended_bare = [
        groups[record.trajectory_id]
        for record in records
        if isinstance(record, TrajectoryEnded)
        and any(turn.began <= record.at < turn.ended for turn in bare)
    ]
    assert ended_bare
    asked = [*ended_bare[:50], *list(groups.values())[:50]]
    arrived: dict[int, list[int]] = {}
    for record in records:
        if isinstance(record, ChunkArrived):
            arrived.setdefault(record.trajectory_id, []).extend(record.token_ids.tolist())
    said = asyncio.run(answers_of(read_config(run_dir), asked))
    assert [arrived[one.trajectory_ids[0]] for one in asked] == said


async def answers_of(config: RunConfig, groups: Sequence[GroupIssued]) -> list[list[int]]:
    """What the run's engine answers by itself."""
    engine = build_engine(config)
    await engine.start()
    answers = []
    for one in groups:
        request = GenerationRequest(
            str(one.group_id), one.prompt_ids.tolist(), seed=one.seeds[0],
            max_tokens=config.task.max_response_length,
        )  # fmt: skip
        deltas = [delta async for delta in engine.generate(request)]
        answers.append([token for delta in deltas for token in delta.token_ids])
    await engine.stop()
    return answers
