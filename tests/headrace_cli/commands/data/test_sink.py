"""`headrace sink`: every figure once, under its own name, whatever the sink does."""

import json
import shutil
import struct
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import RunFailedError, UserError
from headrace.metrics.registry import METRICS, pattern_of
from headrace.protocol.records.record_types import EvaluationDone, Record, UpdateCommitted
from headrace.run_files.run_folder import read_config
from headrace_cli.cli import main
from headrace_cli.command_table import SINKS as NAMED
from headrace_cli.commands.data.sink import MAX_FAILURES, SINKS, MetricStreamer, RunFacts, sink_of
from storage.database.engine import DatabaseAwayError
from storage.journal.store import read_journal
from storage.queries import MetricsPosition, metric_series, metrics_since, run_line
from storage.run_store import RunStore
from tests.dashboard.scripted_run import write_run

EVALUATED = {"eval/accuracy", "eval/response_length", "eval/truncated"}
Told = dict[str, Any]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that went back to update 3 after its sixth."""
    return write_run(tmp_path_factory.mktemp("runs"), "run-1", updates=8, roll_back_after=6)


def records_of(run_dir: Path) -> list[Record]:
    return [record for batch in read_journal(run_dir / "journal") for _, record in batch]


def lines_of(folder: Path) -> list[Told]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_that_has_ended_is_told_once(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Updates that a rollback undid are told as well; what goes on has their numbers again."""
    out = tmp_path / "jsonl"
    command = ["sink", str(run_dir), "jsonl", "--out", str(out)]
    assert main(command) == 0
    lines = lines_of(out)
    commits = [r for r in records_of(run_dir) if isinstance(r, UpdateCommitted)]
    evaluations = [r for r in records_of(run_dir) if isinstance(r, EvaluationDone)]
    assert len(commits) > 8
    assert len(lines) == len(commits) + len(evaluations) > 8
    assert f"{len(lines)} steps of run-1" in capsys.readouterr().out
    updates = [line for line in lines if "eval/accuracy" not in line]
    assert [line["step"] for line in updates] == [c.update for c in commits]
    assert [line["at"] for line in updates] == [c.at for c in commits]
    names = {name for line in updates for name in line} - {"step", "at"}
    assert {name for name in names if pattern_of(name) not in METRICS} == set()
    assert {name for line in lines for name in line} - names == EVALUATED | {"step", "at"}
    assert main(command) == 0
    assert lines_of(out) == lines, "nothing is told twice"


def test_numbers_are_those_of_the_pages(run_dir: Path, tmp_path: Path) -> None:
    assert main(["sink", str(run_dir), "jsonl", "--out", str(tmp_path)]) == 0
    last = {line["step"]: line for line in lines_of(tmp_path) if "eval/accuracy" not in line}
    frame = metric_series(run_dir, ["reward/mean", "actor/entropy"])
    assert len(frame) > 10
    for update, name, value in frame.itertuples(index=False):
        assert last[update][str(name)] == value


def test_news_come_in_pieces_of_any_size(run_dir: Path) -> None:
    whole = metrics_since(run_dir, MetricsPosition())
    for most in (1, 3):
        found, position = [], MetricsPosition()
        while more := metrics_since(run_dir, position, most=most):
            found += more
            position = more[-1].position
        assert {(n.update, n.at) for n in found} == {(n.update, n.at) for n in whole}
        assert len(found) == len(whole)


class Kept:
    """A sink in memory; it fails at the writes that it is told to fail at."""

    def __init__(self, *failing: int) -> None:
        self.failing, self.writes = set(failing), 0
        self.opened = self.closed = 0
        self.told: list[tuple[int, float]] = []

    def open(self, run: RunFacts) -> None:
        assert run.run_id == "run-1"
        assert run.config["name"] == run.name == "scripted"
        self.opened += 1

    def write(self, step: int, at: float, metrics: Mapping[str, float]) -> None:
        self.writes += 1
        if self.writes in self.failing:
            raise ConnectionError("no route\nto host")
        assert metrics
        self.told.append((step, at))

    def close(self) -> None:
        self.closed += 1


def test_a_run_is_followed_while_it_is_written(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look finds what was written since the last one."""
    records, copy = records_of(run_dir), tmp_path / "run-1"
    measured = [r for r in records if isinstance(r, UpdateCommitted | EvaluationDone)]
    store = RunStore.create(copy, "run-1", read_config(run_dir))
    size = len(records) // 6
    store.append(records[:size])
    left = [records[i : i + size] for i in range(size, len(records), size)]
    seen: list[int] = []
    target = Kept()

    def sleep(seconds: float) -> None:
        seen.append(len(target.told))
        store.append(left.pop(0))

    monkeypatch.setattr(MetricStreamer, "_goes_on", lambda self: bool(left))
    streamer = MetricStreamer(target, copy, tmp_path, sleep=sleep)
    assert streamer.stream(once=False) == len(target.told)
    store.close()
    assert sorted(target.told) == sorted((r.update, r.at) for r in measured)
    assert len(set(seen)) > 2
    assert (target.opened, target.closed) == (1, 1)


def test_a_sink_that_fails_is_one_line_and_misses_nothing(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    waits: list[float] = []
    target = Kept(2, 3, 7)
    MetricStreamer(target, run_dir, tmp_path, sleep=waits.append).stream(once=False)
    whole = [(n.update, n.at) for n in metrics_since(run_dir, MetricsPosition())]
    assert target.told == whole
    assert waits == [1.0, 2.0, 1.0]
    assert target.opened == target.closed == 4
    failed = (
        "sink: ConnectionError: no route (test_sink.py, line 104); tries again, the run is not "
    )
    once = [f"{failed}held up", "sink: goes on"]
    assert capsys.readouterr().err.splitlines() == [*once, *once]


def test_a_server_that_is_away_for_a_while_does_not_end_the_stream(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run goes on meanwhile. With --once there is nothing to wait for."""
    away, waits, target = [DatabaseAwayError("cannot reach it")] * 2, list[float](), Kept()

    def line(folder: Path) -> Any:
        if away:
            raise away.pop()
        return run_line(folder)

    monkeypatch.setattr("storage.queries.run_line", line)
    MetricStreamer(target, run_dir, tmp_path, sleep=waits.append).stream(once=False)
    assert waits == [1.0, 2.0]
    assert len(target.told) == len(metrics_since(run_dir, MetricsPosition()))

    def gone(*_: Any) -> Any:
        raise DatabaseAwayError("cannot reach it")

    monkeypatch.setattr("storage.queries.metrics_since", gone)
    with pytest.raises(UserError, match="cannot reach it"):
        MetricStreamer(Kept(), run_dir, tmp_path).stream(once=True)


def test_a_server_that_stays_away_ends_the_stream_of_a_run_that_has_ended(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: Any) -> Any:
        raise DatabaseAwayError("cannot reach it")

    waits = list[float]()
    monkeypatch.setattr("storage.queries.run_line", gone)
    monkeypatch.setattr("storage.queries.metrics_since", gone)
    streamer = MetricStreamer(Kept(), run_dir, tmp_path, sleep=waits.append)
    with pytest.raises(RunFailedError, match="5 times in a row: DatabaseAwayError: cannot reach"):
        streamer.stream(once=False)
    assert waits == [1.0, 2.0, 4.0, 8.0]


BROKEN = """\
class Sink:
    def open(self, run):
        raise OSError("the board is away")
    def write(self, step, at, metrics):
        pass
    def close(self):
        pass
"""


def test_a_sink_that_never_works_is_given_up_when_the_run_is_over(
    run_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is a file of somebody's own."""
    (tmp_path / "broken.py").write_text(BROKEN)
    monkeypatch.setattr("headrace_cli.commands.data.sink.FIRST_WAIT_S", 0.0)
    command = ["sink", str(run_dir), str(tmp_path / "broken.py"), "--out", str(tmp_path / "o")]
    assert main(command) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("sink: OSError: the board is away")
    assert lines[1:] == [
        f"error: the sink failed {MAX_FAILURES} times in a row: OSError: the board is away "
        "(broken.py, line 3)"
    ]


def test_a_folder_that_knows_another_run_is_not_gone_on_with(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_run(tmp_path, "run-2", updates=3, roll_back_after=None)
    out = ("jsonl", "--out", str(tmp_path / "board"))
    assert main(["sink", str(other), *out]) == 0
    told = lines_of(tmp_path / "board")
    assert main(["sink", str(run_dir), *out]) == 2
    line = capsys.readouterr().err
    assert "was told of the run run-2: name another --out" in line
    assert line.count("\n") == 1
    assert lines_of(tmp_path / "board") == told


def test_a_run_whose_folder_was_renamed_is_the_same_run(run_dir: Path, tmp_path: Path) -> None:
    target = Kept()
    MetricStreamer(target, run_dir, tmp_path).stream(once=True)
    assert target.told
    again = Kept()
    moved = shutil.copytree(run_dir, tmp_path / "best-so-far")
    assert MetricStreamer(again, moved, tmp_path).stream(once=True) == 0
    assert (again.opened, again.told) == (1, [])


def test_a_sink_does_not_see_a_password(run_dir: Path, tmp_path: Path) -> None:
    resolved = json.loads((run_dir / "resolved.json").read_text())
    resolved["storage"]["database"] = "postgresql://me:secret@nowhere/runs"
    copy = tmp_path / "run-1"
    copy.mkdir()
    (copy / "resolved.json").write_text(json.dumps(resolved))
    config = MetricStreamer(Kept(), copy, tmp_path)._facts().config
    assert config["storage"]["database"] == "postgresql://me:***@nowhere/runs"


def test_a_sink_that_cannot_be_loaded_is_one_line(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in ("import nothing_of_this_name", "class Sink:\n"):
        (tmp_path / "mine.py").write_text(text)
        command = ["sink", str(run_dir), str(tmp_path / "mine.py"), "--out", str(tmp_path / "o")]
        assert main(command) == 2
        line = capsys.readouterr().err
        assert line.startswith(f"error: {tmp_path / 'mine.py'} cannot be loaded: ")
        assert line.count("\n") == 1


@pytest.mark.parametrize("name", ["nothing", "nowhere.py"])
def test_a_sink_that_there_is_not_is_one_line(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert main(["sink", str(run_dir), name, "--out", str(tmp_path / "o")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("name", ["tensorboard", "trackio", "wandb", "mlflow"])
def test_a_sink_without_its_package_says_what_to_install(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.host.install.find_spec", lambda module: None)
    with pytest.raises(UserError, match=rf"headrace\[{name}\]"):
        sink_of(name)


def test_the_command_line_names_the_sinks_that_there_are() -> None:
    assert tuple(SINKS) == NAMED


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="TensorBoard is not installed")
def test_tensorboard_reads_what_it_was_told(run_dir: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util import tensor_util

    assert main(["sink", str(run_dir), "tensorboard", "--out", str(tmp_path)]) == 0
    read = EventAccumulator(str(tmp_path), size_guidance={"tensors": 0})
    read.Reload()
    whole = metrics_since(run_dir, MetricsPosition())
    assert set(read.Tags()["tensors"]) == {name for n in whole for name in n.metrics}
    told = [n for n in whole if "reward/mean" in n.metrics]
    events = read.Tensors("reward/mean")
    assert [event.step for event in events] == [n.update for n in told]
    assert [event.wall_time for event in events] == pytest.approx([n.at for n in told])
    values = [float(tensor_util.make_ndarray(event.tensor_proto)) for event in events]
    assert values == pytest.approx([n.metrics["reward/mean"] for n in told])
    meaning = read.SummaryMetadata("reward/mean").summary_description
    assert meaning == METRICS["reward/mean"].meaning


@pytest.mark.skipif(find_spec("trackio") is None, reason="Trackio is not installed")
def test_trackio_stores_what_it_was_told(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    assert main(["sink", str(run_dir), "trackio", "--out", str(tmp_path)]) == 0
    from trackio.sqlite_storage import SQLiteStorage

    rows = SQLiteStorage.get_logs("scripted", "run-1")
    whole = metrics_since(run_dir, MetricsPosition())
    assert len(rows) == len(whole)
    assert [row["step"] for row in rows] == [n.update for n in whole]
    for row, item in zip(rows, whole, strict=True):
        assert {name: row[name] for name in item.metrics} == item.metrics
    assert SQLiteStorage.get_system_logs("scripted", "run-1") == []


def leveldb_records(log: bytes, *, before: int = 7, block: int = 32_768) -> Iterator[bytes]:
    """The records of a log as LevelDB writes it (its doc/log_format.md), `before` bytes into its
    first block: wandb's own format."""
    place, whole = before, b""
    while place - before < len(log):
        if block - place % block < 7:
            place += block - place % block
            continue
        at = place - before
        _, length, kind = struct.unpack_from("<IHB", log, at)
        whole += log[at + 7 : at + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # the whole of a record, or its end
            yield whole
            whole = b""


@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")
def test_wandb_writes_down_what_it_was_told(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offline, as a machine without an account does it."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert main(["sink", str(run_dir), "wandb", "--out", str(tmp_path)]) == 0
    from wandb.proto.wandb_internal_pb2 import Record

    whole, rows = metrics_since(run_dir, MetricsPosition()), list[dict[str, Any]]()
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    deadline = time.monotonic() + 60
    while len(rows) < len(whole) and time.monotonic() < deadline:
        time.sleep(0.1)  # a process of wandb's own writes the end of the file
        rows = []
        for data in leveldb_records(file.read_bytes()[7:]):
            record = Record()
            record.ParseFromString(data)
            if record.HasField("history"):
                items = record.history.item
                rows.append({(i.key or i.nested_key[0]): json.loads(i.value_json) for i in items})
    assert [row["update"] for row in rows] == [n.update for n in whole]
    for row, item in zip(rows, whole, strict=True):
        assert {name: row[name] for name in item.metrics} == pytest.approx(item.metrics)


@pytest.mark.skipif(find_spec("mlflow") is None, reason="MLflow is not installed")
def test_mlflow_stores_what_it_was_told(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second call goes on with the same run; nothing is written but into the folder."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for _ in range(2):
        assert main(["sink", str(run_dir), "mlflow", "--out", str(tmp_path)]) == 0
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_experiment_by_name("scripted")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.tags["headrace_run"] == "run-1"
    assert run.info.status == "FINISHED"
    told = [n for n in metrics_since(run_dir, MetricsPosition()) if "reward/mean" in n.metrics]
    found = client.get_metric_history(run.info.run_id, "reward/mean")
    assert [m.step for m in found] == [n.update for n in told]
    assert [m.value for m in found] == pytest.approx([n.metrics["reward/mean"] for n in told])
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_sink_that_is_away_for_days_is_tried_again(run_dir: Path, tmp_path: Path) -> None:
    waits: list[float] = []
    streamer = MetricStreamer(Kept(), run_dir, tmp_path, sleep=waits.append)
    for _ in range(1100):  # A float has 1,024 powers of two.
        streamer._failed(ConnectionError("away"), over=False)
    assert max(waits) == 60.0
