"""What a run looks like: numbers of a status as text, and a real coordinator socket behind them."""

import asyncio
import errno
import io
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from headrace.config.sections.run import RunConfig
from headrace.host.hardware import connections
from headrace.protocol.messages.control import Command, Hello, Message, Status, StatusRequest
from headrace.protocol.transport.sockets import Router
from headrace.run_files import run_folder
from headrace_cli.commands.run import train
from headrace_cli.commands.run.train import (
    has_begun,
    page_is_wanted,
    print_summary,
    report,
    root_option,
)
from headrace_cli.launch.display.progress import (
    ConsoleController,
    LiveScreen,
    PlainScreen,
    SilenceTimer,
    StatusTexts,
    print_line,
    time_left,
)
from headrace_cli.launch.display.units import duration
from headrace_cli.launch.monitor import coordinator_of
from headrace_cli.launch.plan import ProcessSpec
from headrace_cli.launch.supervisor import INTERRUPTED, RunOutcome
from tests.documented import is_documented

Make = Callable[..., RunConfig]


def status(**changes: object) -> Status:
    fields: dict[str, object] = {
        "run_id": "r",
        "phase": "training",
        "update": 20,
        "version": 16,
        "gauges": {
            "train_time_s": 60.0,
            "reward/mean": 0.5,
            "response_length/mean": 33.333,
            "perf/generated_tokens_per_s": 5432.1,
            "staleness/mean": 0.8,
        },
        "ledger": {"generated": 1000, "trained_policy": 700, "ready": 100, "in_flight": 150},
        "dropped": {"stale": 30, "value_warmup": 20},
        "waits": {"learner for windows": 12.0, "generator for the bound": 1.0},
        "processes": {},
    }
    return Status(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0s"), (59.6, "1m00s"), (185, "3m05s"), (7800, "2h10m")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_time_left_follows_the_nearest_stop(make_config: Make) -> None:
    assert time_left(make_config("stop.updates=40"), status()) == pytest.approx(60.0)
    both = make_config("stop.updates=40", "stop.train_time_s=90")
    assert time_left(both, status()) == pytest.approx(30.0)
    assert time_left(make_config("stop.tokens=1400"), status()) == pytest.approx(60.0)
    assert time_left(make_config(), status()) is None


def test_an_update_that_is_being_made_is_not_done(make_config: Make) -> None:
    config = make_config("stop.updates=40")
    busy = status(update=39, gauges={"train_time_s": 78.0, "schedule/learner_busy": 1.0})
    assert StatusTexts(config, busy).updates == "39/40"
    assert time_left(config, busy) == pytest.approx(2.0)
    watch = ConsoleController(config, Recorder())
    assert not has_begun(watch)
    watch.last = status(update=0)
    assert not has_begun(watch)
    watch.last = status(update=0, gauges={"schedule/learner_busy": 1.0})
    assert has_begun(watch)


def test_the_set_up_counts_for_the_first_run_alone(
    make_config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = {"time_to_first_update_s": 27.0, "time_to_first_policy_update_s": 27.0, "ended": ""}
    monkeypatch.setattr(train, "stored_figures", lambda _: figures)
    monkeypatch.setattr(train, "setup_seconds", lambda: 142.0)
    said = []
    for _ in range(2):
        out, config = io.StringIO(), make_config(f'root="{tmp_path}"')
        watch = ConsoleController(config, Recorder())
        folder = run_folder.make_run_folder(config)
        print_summary(Console(file=out, width=200), folder, watch, RunOutcome(0))
        said.append("2m49s from clone to first update" in out.getvalue())
        assert "27s after the start" in out.getvalue()
    assert said == [True, False]


def test_the_end_of_a_run_counts_no_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of millions that takes half a minute, and the line that says why it ended comes behind."""
    monkeypatch.setattr("storage.queries.run_figures", lambda run_dir: {"ended": "8 updates"})
    assert train.stored_figures(tmp_path) == {"ended": "8 updates"}


def test_facts(make_config: Make) -> None:
    facts = StatusTexts(make_config("stop.updates=40"), status())
    assert facts.updates == "20/40"
    assert facts.ledger == (
        "1,000 generated = 700 trained + 100 ready + 150 in flight + 50 dropped"
    )
    assert facts.waits[0] == "learner for windows 12s"
    assert facts.long_waits == ["learner for windows for 12s"]
    assert facts.learner_rate == ""
    evaluating = status(phase="evaluating", gauges={"eval/scored": 5.0, "eval/total": 64.0})
    assert StatusTexts(make_config(), evaluating).phase == "evaluating 5/64"


def test_plain_lines(make_config: Make) -> None:
    out = io.StringIO()
    screen = PlainScreen(make_config("stop.updates=40"), Console(file=out, width=60))
    screen.show(status())
    screen.show(status(update=21))
    screen.show(status(phase="draining", update=22))
    lines = out.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("training     update 20/40  reward 0.500  length 33.3")
    assert "left 1m00s" in lines[0]
    assert lines[1].startswith("draining     update 22/40")


FAR = {
    "generator-0": "loading version 17, 300 MiB moved",
    "learner-0": "update 21: step 3 of 8, 57 micro-batches",
}


def test_both_displays_say_how_far_processes_are(make_config: Make) -> None:
    out = io.StringIO()
    seen = status(doing=FAR, checkpoint=6)
    PlainScreen(make_config(), Console(file=out, width=200)).show(seen)
    live = LiveScreen(make_config(), Console(file=out, width=200, force_terminal=True))
    live.show(seen)
    live.close()
    assert out.getvalue().count(", ".join(f"{name} {text}" for name, text in FAR.items())) >= 2


def test_what_a_process_says_it_does_moves_no_cursor(make_config: Make) -> None:
    texts = StatusTexts(make_config(), status(doing={"generator-0": "\x9b2Jit"}))
    assert texts.how_far == "generator-0 \\x9b2Jit"


def test_what_an_end_would_lose(make_config: Make) -> None:
    watch = ConsoleController(make_config(), Recorder())
    assert watch.run_progress() == ("no update has begun", float("inf"))
    learner = {"learner-0": FAR["learner-0"]}
    watch.last = status(doing=learner, checkpoint=6, moved_s=1.5)
    text = f"learner-0 {FAR['learner-0']}; the newest checkpoint is of update 6"
    assert watch.run_progress() == (text, 1.5)


def test_the_live_display_shows_the_same(make_config: Make) -> None:
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True, color_system=None)
    screen = LiveScreen(make_config("stop.updates=40"), console)
    screen.show(status(message="disk full: waiting"))
    screen.note("generator-0 died [exit code 1]")
    screen.close()
    text = out.getvalue()
    for piece in ("20/40", "0.500", "5,432", "50%", "1m00s left", "disk full", "[exit code 1]"):
        assert piece in text


@pytest.mark.parametrize(("term", "kind"), [("xterm", LiveScreen), ("dumb", PlainScreen)])
def test_a_dumb_terminal_gets_lines(
    make_config: Make,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    term: str,
    kind: type[object],
) -> None:
    """Of a picture that is redrawn it would show the last one alone."""
    monkeypatch.setattr("headrace_cli.launch.supervisor.Supervisor.run", lambda _: RunOutcome(0))
    console = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": term})
    spec = ProcessSpec("coordinator", "coordinator", (), {}, tmp_path / "log")
    config = make_config("dashboard.enabled=false")
    _, controller = train.supervise(tmp_path, config, [spec], console)
    assert isinstance(controller._screen, kind)


class Recorder:
    """A screen that keeps what it is shown."""

    def __init__(self) -> None:
        self.seen: list[Status] = []
        self.notes: list[str] = []

    def show(self, status: Status) -> None:
        self.seen.append(status)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def close(self) -> None:
        pass


def test_a_watch_asks_and_passes_an_interrupt_on(make_config: Make) -> None:
    received: list[Message] = []
    address: list[str] = []
    done = threading.Event()

    async def serve() -> None:
        router = Router("127.0.0.1", 0, max_bytes=1 << 20)
        address.append(router.address)
        updates = 0
        while not any(isinstance(message, Command) for message in received):
            name, message = await router.receive()
            received.append(message)
            if isinstance(message, StatusRequest):
                updates += 1
                await router.send(name, status(version=updates - 1))
        router.close()
        done.set()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    while not address:
        time.sleep(0.01)
    screen = Recorder()
    watch = ConsoleController(make_config(), screen)
    watch.tick()
    watch.connect(address[0])
    try:
        while watch.last is None or watch.last.version < 1:
            watch.tick()
            time.sleep(0.01)
    finally:
        watch.request_stop()
        assert done.wait(10)
        thread.join()
        watch.close()
    assert [seen.version for seen in screen.seen][:2] == [0, 1]
    hello = received[0]
    assert isinstance(hello, Hello)
    assert hello.role == "monitor"
    assert isinstance(received[-1], Command)
    assert received[-1].action == "interrupt"


def test_silence_is_what_was_listened_to() -> None:
    now = [0.0]
    silence, seen = SilenceTimer(lambda: now[0]), []
    for seconds, heard in ((0.5, False), (0.5, False), (60.0, False), (0.5, False), (0.5, True)):
        now[0] += seconds
        seen.append(silence.update(heard=heard))
    assert seen == [0.5, 1.0, 1.0, 1.5, 0.0]


def test_a_coordinator_that_does_not_answer_is_missed_and_then_lost(make_config: Make) -> None:
    """Somebody holds its port and says nothing, as a process does that was stopped."""
    screen = Recorder()
    limits = {"heartbeat_s": 0.1, "heartbeat_timeout_s": 0.4, "stall_timeout_s": 1.0}
    config = make_config(*(f"transport.{name}={seconds}" for name, seconds in limits.items()))
    watch = ConsoleController(config, screen)
    with socket.create_server(("127.0.0.1", 0)) as server:
        watch.connect(f"tcp://127.0.0.1:{server.getsockname()[1]}")
        try:
            said = [watch.lost]
            while not said[-1]:
                watch.tick()
                said.append(watch.lost)
                time.sleep(0.02)
            lines = [*screen.notes, f"error: {said[-1]}; logs in runs/one/logs"]
        finally:
            watch.close()
    assert [line for line in lines if not is_documented(line)] == []
    assert (said[0], len(screen.notes)) == ("", 1)


def test_the_address_of_a_coordinator(tmp_path: Path) -> None:
    assert coordinator_of(tmp_path) is None
    path = tmp_path / "coordinator.json"
    path.write_text('{"address": "tcp://0.0.0.0:7001", "pid": 12, "run_id": "r"}')
    assert coordinator_of(tmp_path) == ("tcp://127.0.0.1:7001", 12)
    path.write_text("{")
    assert coordinator_of(tmp_path) is None


def test_the_end_of_a_run(make_config: Make, tmp_path: Path) -> None:
    gauges = {
        "eval/before/accuracy": 0.2031,
        "eval/after/accuracy": 0.9,
        "eval/before/response_length": 12.5,
        "eval/after/response_length": 41.0,
    }
    watch = ConsoleController(make_config(), Recorder())
    watch.last = status(gauges=gauges)
    out = io.StringIO()
    console = Console(file=out, width=40)
    print_summary(console, tmp_path / "runs" / "r1", watch, RunOutcome(INTERRUPTED))
    text = out.getvalue()
    assert "held-out accuracy  0.203 before, 0.900 after\n" in text
    assert "response length    12.5 before, 41.0 after\n" in text
    assert f"headrace train --resume r1 --root {tmp_path / 'runs'}\n" in text
    assert "headrace export r1 trajectories" in text


def test_a_failure_ends_with_its_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(RunOutcome(1, "learner-0 died (exit code 1)", "Traceback\nboom"), tmp_path) == 1
    *_, tail, blank, last = capsys.readouterr().err.splitlines()
    assert (tail, blank) == ("boom", "")
    assert last == f"error: learner-0 died (exit code 1); logs in {tmp_path / 'logs'}"
    assert report(RunOutcome(2, "error: no such row"), tmp_path) == 2
    assert capsys.readouterr().err == "error: no such row\n"
    assert report(RunOutcome(0), tmp_path) == 0
    assert capsys.readouterr().err == ""


def test_a_page_is_wanted_while_a_browser_has_it_open(make_config: Make) -> None:
    out = io.StringIO()
    console = Console(file=out, width=40)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        config = make_config(f"dashboard.port={port}", "dashboard.stay_s=1000")
        assert not page_is_wanted(config, RunOutcome(0), console)()  # nobody looks
        assert out.getvalue() == ""
        with socket.create_connection(("127.0.0.1", port)):
            is_wanted = page_is_wanted(config, RunOutcome(0), console, grace_s=0.0)
            assert connections(port) == 1
            assert not page_is_wanted(config, RunOutcome(INTERRUPTED), console)()
            brief = make_config(f"dashboard.port={port}", "dashboard.stay_s=0")
            assert not page_is_wanted(brief, RunOutcome(0), console)()
            kept = page_is_wanted(config, RunOutcome(0), console)
            assert kept()
        assert not is_wanted()
        assert kept()  # a moment without a connection is no end
    assert f"http://127.0.0.1:{port} stays while a browser has it open, 16m40s at most" in (
        out.getvalue()
    )


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(errno.EIO, "hung up")])
def test_a_screen_that_is_gone_ends_no_run(error: OSError) -> None:
    """rich leaves the process where a pipe is closed."""

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise error

        def fileno(self) -> int:
            return os.open(os.devnull, os.O_WRONLY)

    print_line(Console(file=Gone()), "stopping")


def test_a_command_that_is_shown_can_be_pasted() -> None:
    assert root_option(Path("/data/my runs/run-1")) == " --root '/data/my runs'"
