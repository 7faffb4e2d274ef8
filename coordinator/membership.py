"""Membership of the run: Hellos, Goodbyes, and processes that fall silent.

In: every Hello and Goodbye, and the time. Out: a Welcome or a refusal, and calls of the parts for
processes that join or are gone. Promises: a name has one process at a time, and a process that
lives keeps its own; a time in which this process received nothing counts as nobody's silence.
"""

import time

from coordinator.connections.message_checks import cut
from coordinator.connections.peers import Peer
from coordinator.connections.permissions import hello_problem
from coordinator.connections.rejections import COMINGS
from coordinator.hub import Hub, Mover
from coordinator.parts import Parts
from headrace.protocol.messages import control as m
from headrace.protocol.records.record_types import ProcessChanged

NEWCOMER_S = 60.0
"""Seconds for which Hellos under taken names, and requests for Hellos, count."""
ASK_EVERY_S, MOST_ASKED = 0.5, 1024
"""Seconds between two requests for a Hello; maximum number of processes asked."""
MOST_NEWCOMERS = 1000
MOST_PEERS = 4096
"""Maximum number of connected processes."""
HELLO_AGAIN_S = 1.0
"""Seconds in which the same Hello gets no second Welcome.

An honest peer waits longer, and another one would be sent the configuration without end."""
JOINING: dict[str, Mover] = {
    "generator": "generators",
    "reward": "reward workers",
    "environment": "environments",
    "learner": "learner",
}


class Membership:
    """The processes of the run."""

    def __init__(self, hub: Hub, parts: Parts) -> None:
        self.hub, self.parts = hub, parts
        self._joined: set[str] = set()
        """Names that ever joined. A rejoin is no progress, so no crash loop hides a stall."""
        self._newcomers: dict[str, float] = {}
        """Time of the first Hello of processes under a name that another one holds."""
        self._asked: dict[str, float] = {}
        """Time of the last request for the Hello of each identity."""
        self._woke_at = self.empty_at = 0.0
        """Times at which this process last went on after a standstill, and had nothing to
        receive."""

    async def ask_hello(self, identity: str) -> None:
        """Ask a live process, which may not read, for its Hello, but not too often."""
        now = time.monotonic()
        before = self._asked.get(identity)
        if len(self._asked) < MOST_ASKED if before is None else now - before >= ASK_EVERY_S:
            self._asked[identity] = now
            await self.hub.router.send(identity, m.AskHello())

    async def join(self, identity: str, hello: m.Hello) -> None:
        """Welcome or refuse a process, or let it wait until its name is known to be free."""
        hub, name = self.hub, hello.name
        problem = hello_problem(identity, hello, hub.state.given)
        if hello.role == "environment" and self.parts.episodes is None:
            problem = problem or "this run has no environment"
        if problem is None and await self._is_contested(identity, hello):
            return
        known = hub.peers.of(name, identity)
        now = time.monotonic()
        if known and hello == known.hello and now - known.welcomed < HELLO_AGAIN_S:
            hub.rejections.count("hello_again")
            return
        if known is None and len(hub.peers.identities) >= MOST_PEERS:
            problem = f"{MOST_PEERS} processes are connected, and more are not taken"
        if known is not None and (known.hello.role, known.hello.pid) != (hello.role, hello.pid):
            problem = f"this socket is of process {known.hello.pid}, a {known.hello.role}"
        if problem is not None:
            hub.rejections.add(identity, "hello_refused", problem)
            await hub.router.send(identity, m.Refused(reason=problem))
            return
        hub.let_in(name, identity)
        welcome = m.Welcome(
            run_id=hub.run_id,
            run_dir=hub.run_dir,
            config="" if hello.role == "monitor" else hub.config.public().model_dump_json(),
        )
        if hello.role != "learner":
            await hub.send(name, welcome)
        match hello.role:
            case "learner":
                await self.parts.training.join(hello, welcome)
            case "generator":
                await self.parts.generation.join(hello)
                self.parts.self_test.join(name)
            case "reward":
                self.parts.scoring.join(hello)
            case "environment":
                assert self.parts.episodes is not None
                self.parts.episodes.join(hello)
            case "monitor":
                hub.peers.monitors[name] = Peer(hello)
        if (peer := hub.peers.of(name, identity)) is not None:
            peer.welcomed = time.monotonic()
        if known is None:
            self._process_changed(hello, "up", "")
        mover = JOINING.get(hello.role)
        if mover is not None and name not in self._joined:
            self._joined.add(name)
            hub.progress(mover)

    async def _is_contested(self, identity: str, hello: m.Hello) -> bool:
        """Return whether another process that may live has the name, or learner's place.

        A holder whose connection is closed is forgotten. A holder that says anything after the
        newcomer's first Hello is alive, and the newcomer's next Hello is refused. Until then the
        newcomer gets no answer."""
        peers = self.hub.peers
        holder = peers.find(hello.name)
        if hello.role == "learner" and peers.learner is not None:
            holder = peers.learner
        if holder is None:
            return False
        name = holder.hello.name
        if peers.identities[name] == identity:
            return False
        if not await self.hub.send(name, m.Heartbeat()):
            self._process_changed(holder.hello, "lost", "its connection is closed")
            self.forget(name)
            return False
        if identity not in self._newcomers and len(self._newcomers) >= MOST_NEWCOMERS:
            self.hub.rejections.count("before_hello")
            return True
        asked_at = self._newcomers.setdefault(identity, time.monotonic())
        if holder.last_seen > asked_at:
            del self._newcomers[identity]
            reason = f"process {holder.hello.pid} on {holder.hello.host} is {name}, and it lives"
            self.hub.rejections.add(identity, "hello_refused", reason)
            await self.hub.router.send(identity, m.Refused(reason=reason))
        return True

    def leave(self, name: str, failed: str | None) -> None:
        """Take leave of a process; `failed`: the reason, where it did not mean to end."""
        peer = self.hub.peers.find(name)
        assert peer is not None
        role, failed = peer.hello.role, cut(failed)
        self._process_changed(peer.hello, "gone", failed or "")
        self.forget(name, died=False)
        if failed and role in ("reward", "environment", "learner"):
            self.hub.failed = self.hub.failed or f"{name}: {failed}"

    def forget(self, name: str, *, died: bool = True) -> None:
        """Remove a process that is gone, and give its work to others."""
        peers = self.hub.peers
        if name in peers.generators:
            self.parts.generation.forget_generator(name, died=died)
        elif name in peers.rewards:
            self.parts.scoring.forget_worker(name)
        elif name in peers.environments:
            assert self.parts.episodes is not None
            self.parts.episodes.forget_worker(name)
        elif name in peers.monitors:
            del peers.monitors[name]
        else:
            self.parts.training.forget_learner()
        self.hub.router.end_delivery(peers.identities.pop(name))
        self.hub.troubles.waits.pop(name, None)
        self.hub.doing.pop(name, None)

    def _process_changed(self, hello: m.Hello, state: str, detail: str) -> None:
        if hello.role == "monitor" or not self.hub.repeats.passes("process_changed", COMINGS):
            return
        self.hub.recorder.write(
            ProcessChanged(
                name=hello.name,
                role=hello.role,
                pid=hello.pid,
                host=hello.host,
                state=state,  # type: ignore[arg-type]
                detail=detail,
            )
        )

    def stood_still(self, now: float, seconds: float) -> None:
        """Count a standstill of this process neither as silence nor as lack of progress."""
        self._woke_at = now
        self.hub.peers.excuse(seconds)
        self.hub.progress_at = min(now, self.hub.progress_at + seconds)
        if seconds > self.hub.config.transport.heartbeat_s * 2:
            text = f"the coordinator stood still for {seconds:.1f} s"
            self.hub.incident("warning", "stood_still", text)

    def expire(self, now: float) -> bool:
        """Forget newcomers that did not come again, and peers that were silent too long.

        Return False where silence means nothing yet."""
        self._newcomers = {k: at for k, at in self._newcomers.items() if now - at < NEWCOMER_S}
        self._asked = {k: at for k, at in self._asked.items() if now - at < NEWCOMER_S}
        patience = self.hub.config.transport.heartbeat_timeout_s
        if self.empty_at < self._woke_at and now - self._woke_at <= patience:
            return False  # Messages of a standstill may be left to receive.
        for name, peer in self.hub.peers.silent(patience):
            self._process_changed(peer.hello, "lost", "no heartbeat")
            self.forget(name)
        return True
