"""The first words of the page Health, golden, for every state of a run."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from dashboard.reads.process_health import HealthSnapshot, health_rows, health_sentence
from storage.queries import CoordinatorStatus, RunLine
from storage.queries.processes import COLUMNS

START = 1000.0
NAMES = ("coordinator", "generator-0", "learner-0", "reward-0")


def line(status: str = "training", detail: str = "", wall_s: float = 100.0) -> RunLine:
    return RunLine(
        run_id="r", run_dir=Path("/r"), name="r", status=status, started_at=START, wall_s=wall_s,
        updates=3, trained_tokens=0, accuracy_before=None, accuracy_after=None, reward=None,
        detail=detail,
    )  # fmt: skip


def processes(**changes: dict[str, Any]) -> pd.DataFrame:
    """Four processes that are well; changes by name, with _ for -."""
    rows = []
    for number, name in enumerate(NAMES):
        row = {
            "name": name, "role": name.partition("-")[0], "pid": 7 + number, "host": "h",
            "state": "up", "detail": "", "changed_at": START, "starts": 1, "deaths": 0,
            "last_death": None, "heartbeat_s": None if name == "coordinator" else 0.4,
            "memory_bytes": 2.0**30,
        }  # fmt: skip
        rows.append(row | changes.get(name.replace("-", "_"), {}))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def look(
    run: RunLine, *, later: float = 1.0, word: CoordinatorStatus | None = None
) -> HealthSnapshot:
    return HealthSnapshot(run, word, START + run.wall_s + later, silent_s=6.0)


DIED = {"deaths": 1, "starts": 2, "last_death": "killed by SIGKILL"}


@pytest.mark.parametrize(
    ("rows", "run", "later", "said", "well"),
    [
        (processes(), line(), 1.0, "All 4 processes are well.", True),
        (
            processes(generator_0={"heartbeat_s": 11.0}, reward_0={"heartbeat_s": 29.0}),
            line(),
            1.0,
            "generator-0 has been silent for 12 s; reward-0 has been silent for 30 s.",
            False,
        ),
        (processes(), line(), 40.0, "coordinator has been silent for 40 s.", False),
        (
            processes(learner_0=DIED),
            line(),
            1.0,
            "All 4 processes are well. learner-0 died once (killed by SIGKILL).",
            True,
        ),
        (
            processes(learner_0=DIED | {"state": "lost", "detail": "no heartbeat"}),
            line(),
            1.0,
            "learner-0 is lost (no heartbeat).",
            False,
        ),
        (processes()[:0], line("starting"), 1.0, "No process has said hello yet.", True),
        (
            processes(),
            line("finished", "updates"),
            9999.0,
            "The run has finished. All 4 processes ended in good order.",
            True,
        ),
        (
            processes(generator_0=DIED | {"deaths": 3}),
            line("finished"),
            9999.0,
            "The run has finished. generator-0 died 3 times (killed by SIGKILL).",
            True,
        ),
        (
            processes(coordinator=DIED),
            line("failed", "no such file"),
            9999.0,
            "The run has failed: no such file. coordinator died once (killed by SIGKILL).",
            False,
        ),
        (
            processes(),
            line("lost", "the coordinator is gone, last seen while training"),
            9999.0,
            "The run was lost: the coordinator is gone, last seen while training.",
            False,
        ),
        (processes(), line("interrupted"), 9999.0, "The run was interrupted.", True),
    ],
)
def test_the_first_words(
    rows: pd.DataFrame, run: RunLine, later: float, said: str, well: bool
) -> None:
    assert health_sentence(rows, look(run, later=later)) == (said, well)


def word(seconds: float, **more: Any) -> CoordinatorStatus:
    """The coordinator's last word, so many seconds after the run's newest record."""
    values: dict[str, Any] = {"phase": "starting", "waits": {}, "heard": {}}
    return CoordinatorStatus(at=START + 100.0 + seconds, **(values | more))


def test_the_coordinators_last_word_is_newer_than_its_records() -> None:
    """While models load, nothing is recorded, and everybody lives."""
    heard = dict.fromkeys(NAMES[1:], 0.5)
    at = look(line("starting"), later=300.0, word=word(299.0, heard=heard))
    assert health_sentence(processes(), at) == ("All 4 processes are well.", True)
    assert health_rows(processes(), at)["last heard"].tolist() == ["1.0 s ago"] + 3 * ["1.5 s ago"]
    old = look(line("starting"), later=300.0, word=word(-50.0, heard=heard))
    assert health_sentence(processes(), old)[0] == "coordinator has been silent for 5:00 min."


def test_a_long_wait_is_named() -> None:
    waits = {"12 rewards of reward-0": 3.0, "the learner's update 7": 95.0}
    at = look(line(), word=word(0.5, waits=waits))
    assert health_sentence(processes(), at) == (
        "All 4 processes are well. The run waits for the learner's update 7: 1:35 min by now.",
        False,
    )


def test_the_table_says_what_is_known_and_a_dash_for_the_rest() -> None:
    rows = processes(
        coordinator={"memory_bytes": None},
        generator_0={"state": "lost", "heartbeat_s": 3.0},
        learner_0={"memory_bytes": 5.5 * 2**20, **DIED},
    )
    shown = health_rows(rows, look(line())).set_index("process")
    assert shown["state"].tolist() == ["up", "lost", "up", "up"]
    assert shown["last heard"].tolist() == ["1.0 s ago", "-", "1.4 s ago", "1.4 s ago"]
    assert shown["memory"].tolist() == ["-", "1.0 GiB", "6 MiB", "1.0 GiB"]
    assert shown["restarts"].tolist() == [0, 0, 1, 0]
    assert shown["last death"].tolist() == ["-", "-", "killed by SIGKILL", "-"]
    ended = health_rows(rows, look(line("finished"))).set_index("process")
    assert ended["state"].tolist() == ["ended", "lost", "ended", "ended"]
    left = health_rows(rows, look(line("lost"))).set_index("process")
    assert left["state"].tolist() == ["left behind", "lost", "left behind", "left behind"]


def test_ages_grow_while_nothing_is_written() -> None:
    rows = processes(reward_0={"heartbeat_s": None})
    shown = health_rows(rows, look(line(), later=10.0)).set_index("process")
    assert shown.loc["learner-0", "last heard"] == "10.4 s ago"
    assert shown.loc["reward-0", "last heard"] == "-"


def test_many_troubles_are_counted() -> None:
    rows = pd.concat(
        [processes().iloc[[1]].assign(name=f"generator-{i}", heartbeat_s=60.0) for i in range(7)]
    )
    said, _ = health_sentence(rows, look(line()))
    assert said.startswith("generator-0 has been silent for 1:01 min; generator-1 ")
    assert said.endswith("; and 3 more.")
