"""Leases and weights: the messages to generators.

In: free slots, the scheduler's choice, weight notices. Out: Leases, Hold, WeightNotice, none before
it is in the journal, so that a coordinator that takes over knows them. A generator that is lost
gives its trajectories back: acknowledged tokens are kept and resumed elsewhere. One that is heard
again goes on with those that nobody has taken: leases in force are reconciled with those that it
has.
"""

import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Literal

import msgspec

from coordinator.connections.peers import GeneratorPeer
from coordinator.dispatch.prompts import Prompts
from coordinator.hub import Hub
from coordinator.rollouts.limits import tokens_left
from headrace.protocol.messages import control as m
from headrace.protocol.records.record_types import (
    GroupIssued,
    LeaseIssued,
    TokensLost,
    VersionLoaded,
)
from headrace.protocol.transport.codec import in_parts
from headrace.trajectory.trajectories import Trajectory


class Generation:
    """The coordinator's side of the generators."""

    def __init__(self, hub: Hub, prompts: Prompts) -> None:
        self._hub = hub
        self._prompts = prompts
        self.reconciliation = LeaseReconciliation(hub)
        self.notice: m.WeightNotice | None = None
        self.draining = False
        self._fire: m.FireSampling | None = msgspec.convert(
            hub.config.generator.fire, m.FireSampling | None, from_attributes=True
        )
        self._newest_loaded: dict[str, int] = {}
        """Versions by name. A crash loop that loads the same version again is no progress."""
        self._cached_at: dict[int, str] = {}
        """Names of the last generators of trajectories that have turns."""
        self._processor = ""
        """Version of the image processor of the last prompt."""
        self._behind: GeneratorPeer | None = None
        """The last generator that was found to lack the newest version."""
        self._all_held = False
        """True where every training lease in force was asked to end."""
        self._awaited_until: float | None = None
        """Time until which generators may come back for their leases after a restart."""

    # -- generators come and go -------------------------------------------------------------------

    async def join(self, hello: m.Hello) -> None:
        """Take in a generator that said Hello.

        The same process may say it again (its engine is ready now, or it received nothing for a
        while) and keeps its leases, also where a restart or a long silence lies between; another
        process under the same name starts without any."""
        known = self._hub.peers.generators.get(hello.name)
        if hello.chosen and (known is None or known.hello.chosen != hello.chosen):
            self._hub.incident("info", "generator_settings", f"{hello.name}: {hello.chosen}")
        if known is not None and known.hello.pid == hello.pid:
            known.update_hello(hello)
        else:
            self.forget_generator(hello.name, died=True)
            # A generator that has received leases in a run that trains was tested.
            comes_back = hello.leases_until >= 0 and self._hub.state.given > 0
            tested = comes_back or not self._hub.config.self_tests
            self._hub.peers.join(hello, tested=tested)
            await self.reconciliation.agree(hello)
            self._all_held = False  # The leases that it comes back with were not asked to end.
        if self.notice is not None:
            self._notify(hello.name, self.notice)

    def resume(self) -> None:
        """Wait for the generators that have leases, after a new coordinator took over."""
        self._awaited_until = time.monotonic() + self._hub.config.transport.heartbeat_timeout_s

    def expire(self) -> None:
        """Give up generators that did not return after a restart; retry failed loads."""
        patience = self._hub.config.transport.heartbeat_timeout_s
        for name, generator in self._hub.peers.generators.items():
            failed_at = generator.not_loaded_at
            if self.notice and failed_at is not None and time.monotonic() - failed_at > patience:
                self._notify(name, self.notice)
        if self._awaited_until is None or time.monotonic() < self._awaited_until:
            return
        self._awaited_until = None
        for name in self._hub.leases.holders() - self._hub.peers.generators.keys():
            self._hub.leases.release_all(name)

    def forget_generator(self, name: str, *, died: bool) -> None:
        """Take back the leases of a generator, whose unsent tokens are lost if it `died`."""
        generator = self._hub.peers.leave(name)
        if generator is None:
            return
        self._hub.leases.release_all(name)
        if died and generator.report is not None:
            self._record_lost(name, generator.report.pending_tokens, "died")

    def report(self, name: str, report: m.GeneratorReport) -> None:
        """Take in a report: work and waits, tokens thrown away, and leases in hand."""
        generator = self._hub.peers.generators[name]
        generator.report = report
        self.reconciliation.report(name, report)
        pid, total = generator.hello.pid, report.discarded_tokens
        process, known = self._hub.state.discarded.get(name, (pid, 0))
        new = total - known if process == pid else total
        self._record_lost(name, new, "held", pid=pid, total=total)

    def _record_lost(
        self, name: str, tokens: int, reason: Literal["held", "died"], **process: int
    ) -> None:
        if tokens > 0:
            lost = TokensLost(generator=name, tokens=tokens, reason=reason, **process)
            self._hub.record_event(lost)

    # -- weights ----------------------------------------------------------------------------------

    def publish(self, notice: m.WeightNotice) -> None:
        """Announce new weights to every generator."""
        self.notice = notice
        for name in self._hub.peers.generators:
            self._notify(name, notice)

    def _notify(self, name: str, notice: m.WeightNotice) -> None:
        generator = self._hub.peers.generators[name]
        generator.noticed.add(notice.version)
        generator.not_loaded_at = None
        self._hub.send_after(name, notice, hurry=True)

    def loaded(self, name: str, message: m.WeightsLoaded) -> None:
        """Note that a generator samples from new weights, or could not load them."""
        generator = self._hub.peers.generators[name]
        # A notice that was overtaken is never answered.
        generator.noticed = {v for v in generator.noticed if v > message.version}
        if message.error is not None:
            self._hub.incident("error", "weights_not_loaded", f"{name}: {message.error}")
            generator.not_loaded_at = time.monotonic()
            return
        generator.loaded = message.version
        if message.version > self._newest_loaded.get(name, -1):
            self._newest_loaded[name] = message.version
            self._hub.progress("weights")
        gap_s, load_s = message.gap_s, message.load_s
        loaded = VersionLoaded(generator=name, version=message.version, gap_s=gap_s, load_s=load_s)
        self._hub.recorder.write(loaded)

    def all_loaded(self) -> bool:
        """Return whether there are generators, and all sample from the newest version.

        One that has not passed its self-test gets no leases, and nobody waits for it."""
        generators, newest = self._hub.peers.generators, self._hub.state.versions.current
        behind = self._behind
        if behind and generators.get(behind.hello.name) is behind and behind.loaded != newest:
            return False  # Asked at every message: a thousand are not looked at each time.
        tested = [generator for generator in generators.values() if generator.tested]
        self._behind = next((g for g in tested if g.loaded != newest), None)
        return bool(tested) and self._behind is None

    # -- leases -----------------------------------------------------------------------------------

    async def lease_training(self) -> None:
        """Fill free slots: unfinished trajectories first, then new groups."""
        if self.draining or self.notice is None or self._hub.scheduler.selector.is_behind():
            return
        free = self._hub.peers.room.total
        if free == 0:
            return
        chosen, groups = self._hub.scheduler.next_leases(free)
        if self._hub.config.environment is not None:
            # At most one trajectory per slot may wait for environments: more would only get old.
            spare = self._hub.peers.capacity - len(self._hub.leases.paused)
            groups = min(groups, -(-max(0, spare) // self._hub.config.schedule.num_generations))
        await self._lease([t for t in chosen if not t.paused][:free])
        new = list[Trajectory]()
        with self._hub.drawing_prompts():
            for _ in range(groups):
                new.extend(await self._issue_group())
        # Storing images takes a while, in which messages come.
        known, given = self._hub.account.trajectories, self._hub.leases
        now = [t for t in new if known.get(t.trajectory_id) is t and not (t.ended or t.paused)]
        now = [t for t in now if given.of(t.trajectory_id) is None]
        await self._lease(now[: self._hub.peers.room.total])

    async def _issue_group(self) -> list[Trajectory]:
        state = self._hub.state
        ids = state.position, state.next_group, state.next_trajectory
        record = self._prompts.next_group(*ids, state.mixture, state.committed)
        if not await self._stored():
            return []
        if record.processor and record.processor != self._processor:
            known = reversed(self._hub.account.groups.values())
            now = self._processor = record.processor
            before = next((group.processor for group in known if group.processor), now)
            if before != now:  # Before a restart images were processed in another way.
                text = f"images are processed by {now}, and were by {before}"
                self._hub.incident("warning", "processor_changed", text)
        self._hub.record_event(record)
        trajectories = [self._hub.account.trajectories[i] for i in record.trajectory_ids]
        self._hub.scheduler.issued(trajectories)
        return trajectories

    async def draw_evaluation(
        self, purpose: m.Purpose, lengths: Mapping[int, int] | None = None
    ) -> list[GroupIssued] | None:
        """Return the groups of an evaluation, their images stored (`Prompts.eval_groups`).

        None: images come later, the disk takes none, or others drew a prompt; draw again."""
        state = self._hub.state
        with self._hub.drawing_prompts():
            ids = state.next_group, state.next_trajectory
            groups = self._prompts.eval_groups(*ids, lengths, purpose=purpose)
            if await self._stored():
                return groups
        return None

    async def _stored(self) -> bool:
        """Store the images of drawn prompts; False: others were drawn meanwhile, draw again."""
        group = self._hub.state.next_group
        await self._hub.store_images(self._prompts.media)
        return group == self._hub.state.next_group

    async def lease_evaluation(self, most: int | None = None) -> None:
        """Fill free slots, at most `most`, with evaluation trajectories that have no lease."""
        free = self._hub.peers.room.total
        free = free if most is None else min(free, most)
        chosen: list[Trajectory] = []
        while len(chosen) < free and (key := self._hub.leases.evaluation.pop()) is not None:
            chosen.append(self._hub.account.trajectories[key])
        await self._lease(chosen)

    async def _lease(self, trajectories: list[Trajectory]) -> None:
        by_generator: dict[str, list[m.Lease]] = {}
        idle = self._hub.peers.room.any_idle
        self._all_held = self._all_held and not trajectories
        for trajectory in trajectories:
            name = self._choose(trajectory)
            self._hub.peers.generators[name].add_lease(trajectory.trajectory_id)
            lease = self._make_lease(trajectory)
            by_generator.setdefault(name, []).append(lease)
            self._hub.record_event(
                LeaseIssued(
                    lease_id=lease.lease_id,
                    trajectory_id=trajectory.trajectory_id,
                    generator=name,
                    start=trajectory.length,
                    version=self._hub.state.versions.current,
                )
            )
        for name, leases in by_generator.items():
            self._hub.recorder.after(partial(self._send_leases, name, leases), hurry=idle)

    def _choose(self, trajectory: Trajectory) -> str:
        """Return the generator with earlier turns cached, if it has room, or most room."""
        room, known = self._hub.peers.room, self._hub.account.trajectories
        if self._hub.config.environment is None:
            return room.most()
        name = self._cached_at.get(trajectory.trajectory_id, "")
        name = name if room.has(name) else room.most()
        self._cached_at[trajectory.trajectory_id] = name
        if len(self._cached_at) > 2 * len(known) + 1000:
            self._cached_at = {i: n for i, n in self._cached_at.items() if i in known}
        return name

    async def _send_leases(self, name: str, leases: list[m.Lease]) -> None:
        """Send the leases that are still in force, in messages that fit."""
        given = self._hub.leases.given
        now = [
            x for x in leases if (own := given.get(x.trajectory_id)) and own.lease_id == x.lease_id
        ]
        for part in in_parts(now, self._hub.config.transport.request_bytes):
            await self._hub.send(name, m.Leases(leases=part))
        self.reconciliation.sent(name, leases[-1].lease_id + 1)

    def _make_lease(self, trajectory: Trajectory) -> m.Lease:
        config, state = self._hub.config, self._hub.state
        total = trajectory.length + min(tokens_left(trajectory, config).values())
        evaluation = trajectory.purpose != "train"
        held_out = trajectory.purpose in m.EVALUATIONS and config.evaluation.rows == "held_out"
        border = trajectory.length + config.window - trajectory.open_tokens
        stops = self._hub.scheduler.stops_at_border() and not evaluation
        oldest = state.versions.current
        if not (evaluation or self._hub.scheduler.lockstep):
            # What older weights sample could not be trained any more.
            oldest = state.versions.oldest_allowed(state.update, self._hub.rules.max_age)
        sampling = config.evaluation if held_out else config.generator
        kept = config.environment is not None and not config.prefix_is_fresh
        begun = trajectory.spans[0].version if trajectory.spans and kept else -1
        return m.Lease(
            lease_id=state.next_lease,
            trajectory_id=trajectory.trajectory_id,
            purpose=trajectory.purpose,
            prompt_ids=trajectory.opening,
            prefix_ids=trajectory.tokens,
            seed=trajectory.seed,
            max_total=total,
            stop_at=min(border, total) if stops else total,
            window=max(total, 1) if evaluation else config.window,
            next_border=total if evaluation else border,
            next_chunk=trajectory.next_chunk,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=-1 if held_out else config.generator.top_k,
            version_at_least=max(oldest, 0),
            cache_version=begun,
            fire=None if evaluation or trajectory.sampled else self._fire,
            media=self._hub.account.groups[trajectory.group_id].media,
        )

    # -- stopping ---------------------------------------------------------------------------------

    def hold_all(self) -> None:
        """Take back all training leases with their tokens; a no-op until the next lease."""
        if self._all_held:
            return
        self._all_held = True
        self.hold(key for key, _ in self._hub.leases.training())

    def hold(self, trajectory_ids: Iterable[int]) -> None:
        """Take back the leases of these trajectories with their tokens, once."""
        by_generator: dict[str, list[tuple[int, int]]] = {}
        for key in trajectory_ids:
            lease = self._hub.leases.of(key)
            if lease is not None and not lease.holding:
                lease.holding = True
                by_generator.setdefault(lease.generator, []).append((lease.lease_id, -1))
        for name, leases in by_generator.items():
            # After the leases, which may be on their way to the disk.
            self._hub.send_after(name, m.Hold(leases=leases))


class LeaseReconciliation:
    """Reconciliation of leases in force with those that a generator's Hello and reports name.

    A lease that is on its way to a generator that says Hello (it stood still, or the network did)
    stays in force and goes on; one that never came is over as soon as the generator has received a
    heartbeat that was sent behind it."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def agree(self, hello: m.Hello) -> None:
        """Adapt the leases in force to those that a joining generator has.

        Leases that it lacks are over, but for those that may be on their way to it. It is asked to
        end leases that others got."""
        hub, name = self._hub, hello.name
        generator, theirs = hub.peers.generators[name], set(hello.leases)
        # A trajectory's last lease is the only one that `known` has.
        known = {lease: key for key, (lease, owner) in hub.state.leases.items() if owner == name}
        for lease_id, key in known.items():
            if lease_id in theirs or 0 <= hello.leases_until <= lease_id:
                if (lease := hub.leases.of(key)) is None:
                    hub.leases.give(key, lease_id, name)
                else:
                    lease.holding = False  # A hold from before this Hello went to nobody.
                generator.add_lease(key)
            elif hub.leases.of(key) is not None:
                hub.leases.release(key)
        generator.moved = theirs - known.keys()
        if generator.moved:
            await hub.send(name, m.Hold(leases=[(lease, -1) for lease in sorted(generator.moved)]))
        # Behind the leases that are still on their way to the disk.
        mark = partial(self._mark, name, generator, hub.state.next_lease)
        hub.recorder.after(mark, hurry=True)

    async def _mark(self, name: str, generator: GeneratorPeer, until: int) -> None:
        """Note that all leases from before this generator joined have been sent."""
        if self._hub.peers.generators.get(name) is generator:
            self.sent(name, until)
            await self.beat(name)

    def sent(self, name: str, until: int) -> None:
        """Note that a generator's leases below an id have been sent."""
        generator = self._hub.peers.generators.get(name)
        if generator is not None:
            generator.leases_until = max(generator.leases_until, until)

    async def beat(self, name: str) -> None:
        """Send a generator's heartbeat, which says how far leases have been sent.

        Not to one that has yet to pass its self-test: `join` would take it for tested."""
        generator = self._hub.peers.generators[name]
        until = generator.leases_until if generator.tested else -1
        await self._hub.send(name, m.Heartbeat(leases_until=until))

    def report(self, name: str, report: m.GeneratorReport) -> None:
        """End leases that a generator should have received by now and does not have."""
        leases, theirs = self._hub.leases, set(report.leases)
        for key in leases.held_by(name):
            lease = leases.of(key)
            assert lease is not None
            if lease.lease_id < report.leases_until and lease.lease_id not in theirs:
                leases.release(key)
                self._hub.peers.generators[name].drop_lease(key)
