"""Scoring of lines with everybody played by hand: a generator whose token ids are positions, a
worker, a clock that stands still."""

import asyncio
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from coordinator.connections.peers import RewardPeer
from coordinator.connections.ranker_versions import RankerVersions
from coordinator.incidents.reward_monitors import RewardMonitors
from coordinator.line_rewards.line_ends import LineTokens
from coordinator.scoring.score_requests import Scoring
from headrace.protocol.messages.control import Hello, Score, ScoreItem, ScoreRequest, Scores
from headrace.protocol.records.record_types import LinesScored, Record
from headrace.protocol.token_spans import Reward
from headrace.trajectory.trajectories import Trajectory
from tests.coordinator.world import World, make_config, policy_windows

LENGTH = 64
DEADLINE_S = 5.0
SOURCES = {
    "outcome": {"kind": "exact"},
    "lines": {"kind": "function", "function": "m:f", "unit": "line", "timeout_s": DEADLINE_S},
}


def letters(ends: Sequence[int]) -> LineTokens:
    """A vocabulary in which these ids end a line, and the last one has no text."""
    texts = ["\n" if token in ends else "x" for token in range(LENGTH - 1)]
    return LineTokens.of([*texts, ""], LENGTH)


class LineStage:
    """A hub with one worker, to whom lines go as well; keeps what is sent."""

    def __init__(self, ends: Sequence[int], **changes: Any) -> None:
        schedule = {
            "mode": "streaming", "window": 4, "batch_windows": 1, "max_staleness": 8,
            **changes.pop("schedule", {}),
        }  # fmt: skip
        process = {"source": "lines", "lines": 2, **changes.pop("process", {})}
        sources = changes.pop("sources", SOURCES)
        reward = {"sources": sources, "route": {"default": "outcome"}, "process": process}
        task = {"max_response_length": LENGTH}
        config = make_config(reward=reward, schedule=schedule, task=task, **changes)
        self.now = 0.0
        tokens = None if process["source"] is None else letters(ends)
        self.world = World(config, tokens, clock=lambda: self.now)
        self.config, self.lines = config, self.world.lines
        self.failed: str | None = None
        self.incidents: list[str] = []
        self.rejections = SimpleNamespace(count=lambda kind: None)
        self.rankers = RankerVersions(config, "/run")
        self.monitors = RewardMonitors(config.reward, lambda kind, text: None)
        hello = Hello(role="reward", name="reward-0", pid=1, host="here")
        self.peers = SimpleNamespace(rewards={"reward-0": RewardPeer(hello)})
        self.sent: list[ScoreItem] = []
        self._prompts = cast(Any, SimpleNamespace(decode=lambda ids: _decode(ids, ends)))
        hub: Any = self
        self.scoring = Scoring(hub, self._prompts)

    # -- the hub ----------------------------------------------------------------------------------

    @property
    def account(self) -> Any:
        return self.world.account

    def record_event(self, record: Record) -> None:
        self.world.note(record)

    def settle_windows(self, trajectories: Sequence[Trajectory]) -> None:
        self.world.settle(trajectories)

    def incident(self, level: str, kind: str, text: str) -> None:
        self.incidents.append(text)

    def progress(self, mover: str) -> None:
        pass

    async def send(self, name: str, message: ScoreRequest) -> None:
        self.sent += message.items

    # -- what happens -----------------------------------------------------------------------------

    def restart(self) -> None:
        """The coordinator and its workers die, and others take over."""
        self.world.restart()
        hub: Any = self
        self.lines, self.scoring = self.world.lines, Scoring(hub, self._prompts)
        old = self.peers.rewards
        self.peers.rewards = {name: RewardPeer(worker.hello) for name, worker in old.items()}
        for trajectory in self.account.trajectories.values():
            self.scoring.add(trajectory)

    def begin(self) -> Trajectory:
        """One more trajectory, leased."""
        (trajectory,) = self.world.issue()
        self.world.lease(trajectory)
        return trajectory

    def grow(self, trajectory: Trajectory, tokens: int, finish: str | None = None) -> None:
        """Tokens arrive."""
        self.world.chunk(trajectory, tokens, finish)
        if trajectory.ended:
            self.scoring.add(trajectory)

    def ask(self) -> list[ScoreItem]:
        """What goes out now."""
        self.sent = []
        asyncio.run(self.scoring.dispatch())
        return self.sent

    def answer(self, item: ScoreItem, *lines: float | None, **values: Any) -> list[Trajectory]:
        """The worker scores an item."""
        fields = {"status": "ok", "seconds": 0.25, "lines": list(lines), **values}
        score = Score(trajectory_id=item.trajectory_id, source=item.source, **fields)
        return self.scoring.receive("reward-0", Scores(scores=[score]))

    def wait(self, seconds: float) -> list[Trajectory]:
        """Time passes."""
        self.now += seconds
        return self.scoring.expire()

    def play(self, rng: random.Random, steps: int) -> dict[int, list[Reward]]:
        """A run by chance: lines are scored in time, late, in vain or never, batches are trained,
        given back, rolled back. What each window was last trained with."""
        live: list[Trajectory] = []
        out: list[ScoreItem] = []
        trained: dict[int, list[Reward]] = {}
        for _ in range(steps):
            live = [t for t in live if not t.ended]
            match rng.randrange(8):
                case 0 if len(live) < 3:
                    live.append(self.begin())
                case 1 | 2 if live:
                    self._grow_by_chance(rng.choice(live), rng)
                case 3:
                    out += self.ask()
                case 4 if out:
                    item = out.pop(rng.randrange(len(out)))
                    scores = [rng.choice([None, -1.0, 0.5, 1.0]) for _ in item.line_ends]
                    status, right = rng.choice(["ok", "ok", "ok", "timeout"]), rng.random() < 0.5
                    if status != "ok":
                        scores = []
                    self.answer(item, *scores, status=status, reward=float(right), correct=right)
                case 5:
                    self.wait(rng.choice([0.5, DEADLINE_S]))
                case 6:
                    trained |= self._train_by_chance(rng)
                case 7 if rng.random() < 0.2 and self.world.state.update > 0:
                    self.world.roll_back(self.world.state.update - 1)
                case 7 if rng.random() < 0.3:
                    self.restart()
                    out.clear()
                    live = [self.account.trajectories[t.trajectory_id] for t in live]
        return trained

    def _grow_by_chance(self, trajectory: Trajectory, rng: random.Random) -> None:
        size = rng.randint(1, min(4 - trajectory.open_tokens, 60 - trajectory.length))
        is_over = rng.random() < 0.15 or trajectory.length + size == 60
        self.grow(trajectory, size, "stop" if is_over else None)

    def _train_by_chance(self, rng: random.Random) -> dict[int, list[Reward]]:
        prepared = self.world.take()
        if prepared is None:
            return {}
        if rng.random() < 0.2:
            self.world.give_back()
            return {}
        self.world.commit()
        return {window.window_id: window.rewards for window in policy_windows(prepared)}

    def scored(self) -> list[LinesScored]:
        """Records of lines so far."""
        return [r for r in self.world.records if isinstance(r, LinesScored)]


def _decode(ids: np.ndarray[Any, Any], ends: Sequence[int]) -> str:
    return "".join(f"{token}\n" if token in ends else f"{token} " for token in ids.tolist())
