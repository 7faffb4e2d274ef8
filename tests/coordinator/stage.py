"""A coordinator in this process, its real journal and SQL, and peers who say what a test says."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from coordinator.persistence.state import State
from coordinator.run import build
from headrace.config.sections.run import RunConfig
from headrace.errors import ProtocolError
from headrace.protocol.messages import control as m
from headrace.protocol.messages.diagnostics import COLUMN_NAMES, TokenDiagnostics
from headrace.protocol.token_spans import Span
from headrace.protocol.transport.codec import MAGIC, message_codec
from headrace.protocol.transport.endpoints import identity_of
from headrace.trajectory.trajectories import Trajectory
from storage.run_store import RunStore
from tests.coordinator.test_loop import run_config

GENERATOR, REWARD, LEARNER, MONITOR = "generator-0", "reward-0", "learner-0", "monitor-0"
_ROLES: dict[str, m.Role] = {
    GENERATOR: "generator",
    REWARD: "reward",
    LEARNER: "learner",
    MONITOR: "monitor",
}
_STEPS = 500


class Stage:
    """One run. Messages go through the codec, so that its checks are part of every test."""

    def __init__(self, config: RunConfig, run_dir: Path) -> None:
        self.config, self.run_dir = config, run_dir
        run_dir.mkdir(parents=True)
        self.coordinator, self.store = build(config, run_dir, resume=False)
        self.hub, self.training = self.coordinator.hub, self.coordinator.parts.training
        self.identities = {name: identity_of(name) for name in _ROLES}
        self.codec = message_codec(max_bytes=64 << 20)

    async def begin(self) -> None:
        """Everyone joins, weights are published, generation begins."""
        self.coordinator.phases.record_start()
        for name, role in _ROLES.items():
            hello = m.Hello(role=role, name=name, pid=1, host="here", capacity=8)
            await self.say(name, hello)
        notice = self.notice()
        assert notice is not None
        await self.say(LEARNER, notice)

    async def say(self, name: str, message: m.Message) -> bool:
        """A message of a peer; False where it was refused."""
        return await self.send(self.identities[name], self.codec.encode(message))

    async def send(self, identity: str, frames: Sequence[bytes]) -> bool:
        """Frames of a peer; False where they were refused."""
        try:
            message = self.codec.decode(frames)
        except ProtocolError:
            return False
        heard = await self.coordinator._dispatch(identity, message)
        await self.coordinator.phases.advance()
        await asyncio.sleep(0)
        return heard

    # -- what each peer would honestly say now, or None -------------------------------------------

    def chunks(self) -> m.Chunks | None:
        """The end of a response that is being generated."""
        leases = (pair for pair in self.hub.leases.training() if pair[1].generator == GENERATOR)
        found = next(leases, None)
        if found is None:
            return None
        trajectory = self.hub.account.trajectories[found[0]]
        size = min(2, self.config.task.max_response_length - trajectory.length)
        return self.chunk_of(trajectory, size)

    def chunk_of(self, trajectory: Trajectory, size: int, finish: str = "stop") -> m.Chunks:
        """The next `size` tokens of a response that is being generated."""
        lease = self.hub.leases.of(trajectory.trajectory_id)
        assert lease is not None
        start, version = trajectory.length, self.hub.state.versions.current
        chunk = m.TrajectoryChunk(
            lease_id=lease.lease_id,
            trajectory_id=trajectory.trajectory_id,
            chunk_index=trajectory.next_chunk,
            start=start,
            token_ids=np.full(size, 5, np.int32),
            logprobs=np.full(size, -0.5, np.float32),
            spans=[Span(version, start, start + size)],
            finish=finish,  # type: ignore[arg-type]
        )
        return m.Chunks(chunks=[chunk])

    def scores(self) -> m.Scores | None:
        """The score of a response that the worker has."""
        given = sorted(self.hub.peers.rewards[REWARD].scoring)
        if not given:
            return None
        score = m.Score(
            trajectory_id=given[0].trajectory_id,
            status="ok",
            reward=0.5,
            parts={"form": 1.0},
            seconds=0.1,
        )
        return m.Scores(scores=[score])

    def notice(self) -> m.WeightNotice | None:
        """Weights that the learner may publish."""
        orders = self.training.orders
        for version, update in orders.versions.items():
            return m.WeightNotice(
                version=version, update=update, digest="", num_bytes=1, sources=["file:/w"]
            )
        return None

    def update(self) -> m.UpdateDone | None:
        """The update that is out; odd ones leave their weights for a notice by itself."""
        orders = self.training.orders
        batch = orders.batch
        if batch is None:
            return None
        rows = [
            TokenDiagnostics(
                window_id=w.window_id,
                trajectory_id=w.trajectory_id,
                start=w.start,
                lam=0.9,
                columns={name: np.zeros(w.end - w.start, np.float32) for name in COLUMN_NAMES},
            )
            for w in orders.windows[:1]
        ]
        notice = None
        if orders.publish_as is not None and batch.update % 2 == 0:
            notice = m.WeightNotice(
                version=orders.publish_as,
                update=batch.update,
                digest="",
                num_bytes=1,
                sources=[],
            )
        return m.UpdateDone(
            batch_id=batch.batch_id,
            update=batch.update,
            lineage=batch.lineage,
            metrics={"actor/pg_loss": 0.5, "critic/vf_explained_var": 0.1},
            diagnostics=rows,
            notice=notice,
        )

    def loaded(self) -> m.WeightsLoaded | None:
        """The answer to a notice."""
        noticed = self.hub.peers.generators[GENERATOR].noticed
        return m.WeightsLoaded(version=max(noticed), gap_s=0.1, load_s=0.2) if noticed else None

    async def work(self, but: Any = None) -> None:
        """One honest step of each peer, without the step `but`."""
        if self.hub.peers.learner is None:
            await self.rejoin()
        steps = ((GENERATOR, self.loaded), (GENERATOR, self.chunks), (REWARD, self.scores))
        for name, step in (*steps, (LEARNER, self.update), (LEARNER, self.notice)):
            message = None if step == but else step()
            if message is not None:
                await self.say(name, message)
        await self.coordinator.phases.advance()

    async def rejoin(self, update: int | None = None) -> None:
        """The learner was told to go back: it does, to the newest place on the line; or it begins
        again from the checkpoint of `update`."""
        state, found = self.hub.state, "a checkpoint" if update is None else f"step_{update}"
        update = state.committed if update is None else update
        hello = m.Hello(
            role="learner",
            name=LEARNER,
            pid=1,
            host="here",
            update=update,
            batch_id=state.line[update],
            resumed_from=found,
        )
        await self.say(LEARNER, hello)

    async def reach(self, wanted: Any) -> m.Message:
        """Work until a peer has such a message to say."""
        for _ in range(_STEPS):
            if (message := wanted()) is not None:
                assert isinstance(message, m.Message)
                return message
            await self.work(but=wanted)
        raise AssertionError("honest peers never came to it")

    def replayed(self) -> State:
        """The state as the journal gives it to a coordinator that resumes."""
        self.store.close()
        self.store = RunStore.open(self.run_dir)
        state = State(self.config)
        for record in self.store.replay():
            state.apply(record)
        self.store.close()
        return state


@contextlib.asynccontextmanager
async def staged(config: RunConfig, run_dir: Path) -> AsyncIterator[Stage]:
    """A stage with everybody on it; what a test says is on disk when the block ends."""
    stage = Stage(config, run_dir)
    recorder = asyncio.create_task(stage.hub.recorder.run())
    try:
        await stage.begin()
        yield stage
        idle = asyncio.create_task(stage.hub.recorder.flush())
        done, _ = await asyncio.wait([recorder, idle], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        recorder.cancel()
        stage.hub.router.close()
        stage.store.close()


def endless() -> RunConfig:
    """A configuration of a run that does not end by itself."""
    return run_config(
        evaluation={"before": False, "after": False},
        stop={"updates": 10**6},
        schedule={"mode": "streaming", "window": 4, "batch_windows": 8, "max_staleness": 1},
    )


def assert_sound(stage: Stage) -> None:
    """What is on disk gives the state that the coordinator has, and all of it is in SQL."""
    state, live = stage.replayed(), stage.hub.state
    assert state.account.ledger.as_metrics() == live.account.ledger.as_metrics()
    assert (state.update, state.lineage) == (live.update, live.lineage)
    assert state.versions == live.versions
    assert state.line == live.line
    assert sorted(state.account.trajectories) == sorted(live.account.trajectories)
    assert not stage.store.behind


Place = tuple[str | int, ...]
"""Keys and indices that lead to a value in a message's map."""


def body_of(frames: Sequence[bytes]) -> tuple[Any, bytes]:
    """The map in a message's header, and its raw frame."""
    return msgspec.msgpack.decode(frames[0][len(MAGIC) :]), frames[1]


def places(value: Any, kinds: tuple[type, ...], here: Place = ()) -> list[Place]:
    """Where a message's map has values of these types."""
    if isinstance(value, dict):
        pairs = [(key, item) for key, item in value.items() if key != "type"]
    elif isinstance(value, list):
        pairs = list(enumerate(value))
    else:
        return [here] if isinstance(value, kinds) and not isinstance(value, bool) else []
    return [place for key, item in pairs for place in places(item, kinds, (*here, key))]


def with_value(body: Any, place: Place, value: Any) -> list[bytes]:
    """The header of a message with another value at one place."""
    *way, last = place
    changed = msgspec.msgpack.decode(msgspec.msgpack.encode(body))
    target = changed
    for key in way:
        target = target[key]
    target[last] = value
    return [MAGIC + msgspec.msgpack.encode(changed)]
