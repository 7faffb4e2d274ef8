"""Reconciliation of leases in force with those that a generator has.

In: the leases in a generator's Hello and reports. Out: the leases in force adapted to them, and
heartbeats that say how far leases have been sent. Promises: a lease that is on its way to a
generator that says Hello (it stood still, or the network did) stays in force and goes on; one that
never came is over as soon as the generator has received a heartbeat that was sent behind it.
"""

from functools import partial

from coordinator.connections.peers import GeneratorPeer
from coordinator.hub import Hub
from headrace.protocol.messages.control import GeneratorReport, Heartbeat, Hello, Hold


class LeaseReconciliation:
    """See the module's docstring."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def agree(self, hello: Hello) -> None:
        """Adapt the leases in force to those that a joining generator has.

        Leases that it lacks are over, but for those that may be on their way to it. It is asked to
        end leases that others got."""
        hub, name = self._hub, hello.name
        generator, theirs = hub.peers.generators[name], set(hello.leases)
        # A trajectory's last lease is the only one that `known` has.
        known = {lease: key for key, (lease, owner) in hub.state.leases.items() if owner == name}
        for lease_id, key in known.items():
            if lease_id in theirs or 0 <= hello.leases_until <= lease_id:
                if hub.leases.of(key) is None:
                    hub.leases.give(key, lease_id, name)
                generator.add_lease(key)
            elif hub.leases.of(key) is not None:
                hub.leases.release(key)
        generator.moved = theirs - known.keys()
        if generator.moved:
            await hub.send(name, Hold(leases=[(lease, -1) for lease in sorted(generator.moved)]))
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
        """Send a generator's heartbeat, which says how far leases have been sent."""
        until = self._hub.peers.generators[name].leases_until
        await self._hub.send(name, Heartbeat(leases_until=until))

    def report(self, name: str, report: GeneratorReport) -> None:
        """End leases that a generator should have received by now and does not have."""
        leases, theirs = self._hub.leases, set(report.leases)
        for key in leases.held_by(name):
            lease = leases.of(key)
            assert lease is not None
            if lease.lease_id < report.leases_until and lease.lease_id not in theirs:
                leases.release(key)
                self._hub.peers.generators[name].drop_lease(key)
