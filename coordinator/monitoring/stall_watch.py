"""Current waits of the run: their owners, reasons and ages.

In: the hub and its parts, looked at ten times a second. Out: sentences that name an owner, each
with the seconds since its last progress (or since the wait began); events for long waits;
`now.json` in the run's folder; the end of a run without any progress. Promise: whatever can hold
the run up is among them, and the disk holds nobody up.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from coordinator.hub import Hub, Mover
from coordinator.parts import Parts
from headrace.run_files.run_folder import LIVE_STATE_FILE, write_atomically

LOOK_S = 2.0
"""Seconds from a stall's report to the run's end, for processes to dump stacks."""
LONG = 0.2
"""Share of `transport.stall_timeout_s` after which a wait is recorded."""
NAMED = 3
"""Maximum number of owners that are named; the others are counted."""


class CurrentWait(NamedTuple):
    """One wait: the part that has to move, a sentence, seconds without progress."""

    mover: Mover
    words: str
    age_s: float


class StallWatch:
    """See the module's docstring."""

    def __init__(self, hub: Hub, parts: Parts) -> None:
        self._hub, self._parts = hub, parts
        self._since: dict[Mover, float] = {}
        self._told: set[Mover] = set()
        """Long waits that are recorded."""
        self._writing: asyncio.Future[None] | None = None

    def now(self) -> list[CurrentWait]:
        """Return the waits of this moment, and forget those that are over."""
        found, at = list(self._find()), time.monotonic()
        self._since = {mover: self._since.get(mover, at) for mover, _ in found}
        moved = self._hub.moved
        return [
            CurrentWait(mover, words, at - max(self._since[mover], moved.get(mover, 0.0)))
            for mover, words in found
        ]

    def watch(self, overdue_s: float) -> None:
        """Record each wait that gets long, and end a run that makes no progress.

        Before its end a stall is recorded, so that observers have time to look at the processes.
        `overdue_s`: seconds since the last progress beyond those that are allowed."""
        hub, waits = self._hub, self.now()
        limit_s = hub.config.transport.stall_timeout_s
        long = {wait.mover: wait for wait in waits if wait.age_s > limit_s * LONG}
        for mover in long.keys() - self._told:
            wait = long[mover]
            hub.incident("warning", "waiting", f"for {wait.words}, {wait.age_s:.0f} s so far")
        self._told = set(long)
        if overdue_s <= 0:
            hub.stalled = None
            return
        if hub.stalled is None:
            stuck = ", ".join(f"{wait.words} for {wait.age_s:.0f} s" for wait in waits)
            hub.stalled = f"nobody makes progress: {stuck}"
            hub.incident("error", "stalled", hub.stalled)
        if overdue_s > LOOK_S:
            hub.failed = hub.failed or hub.stalled

    def show(self, phase: str) -> None:
        """Write waits and peers' silences into the run's folder, if no write is under way."""
        if self._writing is not None and not self._writing.done():
            return
        waits = [{"for": wait.words, "age_s": round(wait.age_s, 1)} for wait in self.now()]
        heard = {name: round(age, 1) for name, age in self._hub.peers.heard().items()}
        recorder, store, state = self._hub.recorder, self._hub.recorder.store, self._hub.state
        said = {"at": time.time(), "phase": phase, "waits": waits, "heard": heard}
        said |= {"updates": state.committed, "records": recorder.end.records, "sql": None}
        if store.behind:
            said["sql"] = {"text": store.behind, "age_s": round(store.behind_s, 1)}
        path, text = Path(self._hub.run_dir) / LIVE_STATE_FILE, json.dumps(said)
        self._writing = asyncio.ensure_future(asyncio.to_thread(_write, path, text))

    async def write_last(self, phase: str) -> None:
        """Write them a last time, when all records are on disk."""
        if self._writing is not None:
            await self._writing
        self.show(phase)
        if self._writing is not None:
            await self._writing

    def _find(self) -> Iterator[tuple[Mover, str]]:
        hub, parts, peers = self._hub, self._parts, self._hub.peers
        newest = hub.state.versions.current
        late = [name for name, one in peers.generators.items() if one.loaded != newest]
        all_in = parts.self_test.is_over and parts.generation.all_loaded()
        if not peers.generators:
            yield "generators", "a generator to join"
        elif newest >= 0 and late and not all_in:
            yield "weights", f"{names(late)} to load version {newest}{self._how_far(*late)}"
        if hub.config.is_scored and not peers.rewards:
            yield "reward workers", "a reward worker to join"
        if parts.episodes is not None and not peers.environments:
            yield "environments", "an environment worker to join"
        elif parts.episodes is not None and (steps := parts.episodes.waiting()):
            yield "environments", f"{steps} steps of environments"
        if not hub.config.evaluation.only and (words := self._learner()):
            yield "learner", words + self._how_far("learner")
        if disks := hub.troubles.waits:
            yield "disk", ", ".join(f"{wait.text} ({name})" for name, wait in disks.items())
        if rewards := parts.scoring.waiting():
            busy = [name for name, one in peers.rewards.items() if one.scoring]
            yield "rewards", f"{rewards} rewards" + (f" of {names(busy)}" if busy else "")
        for words in parts.self_test.waits():
            yield "phase", words
        if live := len(hub.leases.given):
            busy = [name for name, one in peers.generators.items() if one.live]
            whose = f" of {names(busy)}" if busy else ""
            yield "trajectories", f"{live} trajectories{whose} to go on"

    def _how_far(self, *names: str) -> str:
        """Return progress text of the first of these; a loading learner is no peer yet."""
        doing = self._hub.doing.items()
        return next((f" ({text})" for name, text in doing if text and name.startswith(names)), "")

    def _learner(self) -> str:
        hub, training = self._hub, self._parts.training
        if hub.peers.learner is None:
            return "the learner to join"
        if not training.ready:
            return "the learner to publish its weights"
        if hub.account.taken:
            return f"the learner's update {hub.account.taken.update}"
        if training.orders.follows is not None:
            return f"the learner to publish version {training.orders.follows}"
        if training.orders.checkpoints:
            return f"the learner's checkpoint of update {min(training.orders.checkpoints)}"
        return ""


def _write(path: Path, text: str) -> None:
    """Write the text, unless the disk is full: the recorder reports that."""
    with contextlib.suppress(OSError):
        write_atomically(path, text)


def names(owners: Iterable[str]) -> str:
    """Return the first names, and the number of further ones."""
    ordered = sorted(owners)
    shown, more = ordered[:NAMED], len(ordered) - NAMED
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")
