"""State, leases, recorder, socket and peers that the coordinator's parts share.

`record_event` changes the state: it applies a record and queues it for the disk (`Lineage.commit`
does the first alone). `settle_windows` records the consequences of events for windows. Whatever a
peer may cause without end (incidents, refused tokens) is summed up here, so that a flood of it does
not become a flood of records.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from coordinator.connections.message_checks import cut
from coordinator.connections.peers import Peers
from coordinator.connections.ranker_versions import RankerVersions
from coordinator.connections.rejections import RejectionLog, RepeatLimiter
from coordinator.dispatch.leases import LeaseTable
from coordinator.incidents.alerts import Incidents, Level, ProcessWait
from coordinator.incidents.reward_monitors import RewardMonitors
from coordinator.line_rewards.line_scoring import LineScoring
from coordinator.persistence.recorder import Recorder
from coordinator.persistence.snapshots import MOST, snapshot_of
from coordinator.persistence.state import State
from coordinator.scheduling.base import Scheduler
from coordinator.scheduling.window_lifecycle import WindowLifecycle
from headrace.config.sections.run import RunConfig
from headrace.config.validation.batch_rules import BatchRules
from headrace.data.media import MediaStore
from headrace.errors import StorageBlockedError
from headrace.protocol.messages.control import Message, Progress
from headrace.protocol.records.record_types import Incident, Record, TokensLost
from headrace.protocol.transport.sockets import Router
from headrace.trajectory.account import Account
from headrace.trajectory.trajectories import Trajectory

Mover = Literal[
    "phase", "generators", "weights", "reward workers", "learner", "disk", "rewards",
    "environments", "trajectories",
]  # fmt: skip
"""Parts of a run that can make progress, or hold it up."""
IMAGES = "the store of images"
FETCHES = "the next prompt"
STORING_S = 0.5


@dataclass
class TrainingClock:
    """Seconds of training, and of the learner's waits in it; pauses do not count."""

    train_s: float = 0.0
    learner_idle_s: float = 0.0
    before_s: float = field(init=False)
    """Seconds of training under earlier coordinators."""
    _since: float | None = None
    _idle_since: float | None = None

    def __post_init__(self) -> None:
        self.before_s = self.train_s

    @property
    def running(self) -> bool:
        """True while training goes on."""
        return self._since is not None

    def own(self) -> float:
        """Return the seconds of training under this coordinator."""
        return self.now() - self.before_s

    def start(self) -> None:
        """Count training time from now on."""
        self._since = self._since or time.monotonic()

    def stop(self) -> None:
        """Pause all counts."""
        self.train_s, self.learner_idle_s = self.now(), self.idle()
        self._since = self._idle_since = None

    def now(self) -> float:
        """Return the seconds of training so far."""
        return self.train_s + (time.monotonic() - self._since if self._since else 0.0)

    def learner_waits(self, waits: bool) -> None:
        """Begin or end a wait of the learner, which has nothing to do meanwhile."""
        if waits and self._since and not self._idle_since:
            self._idle_since = time.monotonic()
        if not waits and self._idle_since:
            self.learner_idle_s = self.idle()
            self._idle_since = None

    def idle(self) -> float:
        """Return the seconds that the learner waited so far."""
        waiting = time.monotonic() - self._idle_since if self._idle_since else 0.0
        return self.learner_idle_s + waiting


@dataclass
class Hub:
    """Shared state and services of the coordinator's parts.

    Attributes:
        lines: scores of lines, where a source scores them. on_record: called after each record,
        where there is an environment. told: names that were sent something since the last
        heartbeats. moved: time of each part's last progress. doing: progress texts by process;
        empty where nothing is under way. stalled: the reason why nothing has made progress for too
        long. failed: the first cause for which the run cannot go on. refused_tokens: those of
        refused chunks not recorded yet, by generator and reason. monitors: of rewards. rankers:
        versions of a ranker that the run trains along.
    """

    config: RunConfig
    run_id: str
    run_dir: str
    state: State
    leases: LeaseTable
    lifecycle: WindowLifecycle
    scheduler: Scheduler
    rules: BatchRules
    recorder: Recorder
    router: Router
    peers: Peers = field(default_factory=Peers)
    clock: TrainingClock = field(default_factory=TrainingClock)
    lines: LineScoring | None = None
    on_record: Callable[[Record], None] | None = None
    told: set[str] = field(default_factory=set)
    moved: dict[Mover, float] = field(default_factory=dict)
    progress_at: float = field(default_factory=time.monotonic)
    doing: dict[str, str] = field(default_factory=dict)
    stalled: str | None = None
    failed: str | None = None
    _denied: int = 0
    rejections: RejectionLog = field(init=False)
    repeats: RepeatLimiter = field(default_factory=RepeatLimiter)
    refused_tokens: Counter[tuple[str, Literal["refused", "moved"]]] = field(
        default_factory=Counter
    )
    monitors: RewardMonitors = field(init=False)
    troubles: Incidents = field(init=False)
    rankers: RankerVersions = field(init=False)

    def __post_init__(self) -> None:
        self._storing: asyncio.Future[None] | None = None
        self.rejections = RejectionLog(partial(self._write_incident, "warning"))
        self.troubles = Incidents(self.incident)
        self.rankers = RankerVersions(self.config, self.run_dir)
        self.recorder.snapshot = self._snapshot
        reward = self.config.reward
        if not self.config.is_scored:  # The environment alone pays, whatever sources are named.
            reward = reward.model_copy(update={"sources": {}})
        self.monitors = RewardMonitors(reward, partial(self.incident, "warning"))

    @property
    def account(self) -> Account:
        """The trajectories, windows, queues and the ledger."""
        return self.state.account

    @contextmanager
    def drawing_prompts(self) -> Iterator[None]:
        """Break off drawing prompts where images come later, or, reported, the disk takes none."""
        problem = ""
        try:
            yield
        except StorageBlockedError as error:
            problem = str(error)
        except BlockingIOError as error:
            self.troubles.waits[FETCHES] = ProcessWait(f"images of row {error}", time.monotonic())
            return
        self.troubles.set_wait(IMAGES, "disk", problem)

    async def store_images(self, media: MediaStore | None) -> None:
        """Write the images of drawn prompts.

        StorageBlockedError where the disk takes none now, or none in `STORING_S`: others go on."""
        while media is not None and (media.waits or self._storing):
            if first := self._storing is None:
                self._storing = asyncio.ensure_future(asyncio.to_thread(media.write))
            await asyncio.wait([self._storing], timeout=STORING_S if first else 0.0)
            if not self._storing.done():
                raise StorageBlockedError(f"the disk of {media.folder} to take images")
            stored, self._storing = self._storing, None
            stored.result()  # It may have begun before these images came.

    def record_event(self, record: Record) -> None:
        """Apply a record and queue it for the disk."""
        self.state.apply(record)
        self.leases.apply(record)
        self.recorder.write(record)
        if self.on_record is not None:
            self.on_record(record)

    def _snapshot(self) -> None:
        """Record the whole state, from which a restart can begin."""
        snapshot = snapshot_of(self.state, self.recorder.end.records)
        if snapshot is not None:
            self.record_event(snapshot)
            return
        since = self.state.milestones[0].record
        self.troubles.report(
            "no_snapshot",
            f"over {MOST:,} trajectories could still be rolled back to, too many for a snapshot: a "
            f"restart reads the journal from record {since:,} on. Lower checkpoint.every_updates "
            "or checkpoint.keep_last",
        )

    def settle_windows(self, trajectories: Iterable[Trajectory]) -> None:
        """Record the consequences of events of these trajectories for their windows."""
        for record in self.lifecycle.next_records(trajectories):
            self.record_event(record)

    def incident(self, level: Level, kind: str, text: str) -> None:
        """Record something a user should know; of too many of one kind, only the number."""
        if self.repeats.passes(kind):
            self._write_incident(level, kind, text)

    def write_summaries(self, *, at_once: bool = False) -> None:
        """Record refused tokens, and the summaries of ended periods (or all, `at_once`)."""
        if denied := self.router.denied - self._denied:
            self._denied += denied
            text = f"{denied} connections without the keys of this run were turned away"
            self.rejections.add("somebody", "connection_denied", text, denied)
        self.rejections.write_summary_if_due()
        if summary := self.repeats.summary(at_once=at_once):
            self._write_incident("warning", "incidents_summed_up", summary)
        for (name, reason), tokens in self.refused_tokens.items():
            self.record_event(TokensLost(generator=name, tokens=tokens, reason=reason))
        self.refused_tokens.clear()
        if at_once:
            self.rejections.close()

    def _write_incident(self, level: Level, kind: str, text: str) -> None:
        self.recorder.write(Incident(level=level, kind=kind, text=cut(text) or ""))

    def progress(self, mover: Mover) -> None:
        """Note that a part made progress, which resets the watchdog.

        Not for events that change nothing, such as a refused or known chunk, or weights that a
        generator has loaded before."""
        self.moved[mover] = self.progress_at = time.monotonic()

    def does(self, name: str, said: Progress) -> None:
        """Note a process's progress text; a repeated one is no progress."""
        of_all = f" of {said.total:,}" if said.total else ""
        text = f"{said.stage}, {said.done:,}{of_all} {said.unit}" if said.done else said.stage
        before, self.doing[name] = self.doing.get(name), text
        if text and text != before:
            self.progress("learner" if name.startswith("learner") else "weights")

    def let_in(self, name: str, identity: str) -> None:
        """Give this name to the process that said Hello, and deliver its messages, in both
        directions, once and in order."""
        before = self.peers.identities.get(name, identity)
        if before != identity:
            self.router.end_delivery(before)
        self.peers.identities[name] = identity
        self.router.begin_delivery(identity)

    async def send(self, name: str, message: Message) -> bool:
        """Send to a peer; False when it is not connected."""
        self.told.add(name)
        return await self.router.send(self.peers.identities.get(name, name), message)

    def send_after(self, name: str, message: Message, *, hurry: bool = False) -> None:
        """Send once all records so far are on disk, to the process that has the name then."""
        self.recorder.after(lambda: self.send(name, message), hurry=hurry)
