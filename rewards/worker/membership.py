"""A worker's membership in a run: it joins, receives requests, and leaves.

In: a link to the coordinator, what the worker says of itself, and what it does. Out: messages, as
they come. Silence: after a heartbeat timeout without a message the worker says Hello again (a
restarted coordinator has forgotten it), after the stall timeout it gives up. Failure:
RunFailedError, also where the coordinator refuses the worker; leave is taken in every case.
"""

from collections.abc import AsyncIterator, Awaitable, Callable

from headrace.config.sections.process import TransportConfig
from headrace.config.sections.run import RunConfig
from headrace.errors import RunFailedError, UserError
from headrace.protocol.messages import control as m
from headrace.protocol.transport.endpoints import identity_of
from headrace.protocol.transport.sockets import Dealer, Link, sending_heartbeats

HELLO_EVERY_S = 2.0

Serve = Callable[[Dealer, RunConfig, AsyncIterator[m.Message]], Awaitable[None]]
"""Work on the configuration and the messages of a run until Shutdown."""


async def take_part(link: Link, hello: m.Hello, serve: Serve) -> None:
    """Join the run at `link`, serve until it ends, and take leave, saying why where it failed."""
    identity = identity_of(hello.name)
    dealer = Dealer(link, identity)
    cause: str | None = None
    try:
        config = await _join(dealer, hello)
        if config is None:
            return
        with sending_heartbeats(link, identity, interval_s=config.transport.heartbeat_s):
            await serve(dealer, config, _messages(dealer, hello, config.transport))
    except (UserError, RunFailedError) as error:
        cause = str(error)
        raise
    finally:
        await dealer.send(m.Goodbye(failed=cause))
        dealer.close()


async def _join(dealer: Dealer, hello: m.Hello) -> RunConfig | None:
    """Say Hello until there is a Welcome; its configuration, or None when the run is over."""
    patience = TransportConfig().stall_timeout_s
    for _ in range(round(patience / HELLO_EVERY_S)):
        await dealer.send(hello)
        message = await dealer.receive_within(HELLO_EVERY_S)
        if isinstance(message, m.Welcome):
            return RunConfig.model_validate_json(message.config)
        if isinstance(message, m.Refused):
            raise RunFailedError(f"the coordinator refuses this worker: {message.reason}")
        if isinstance(message, m.Shutdown):
            return None
    raise RunFailedError(f"no coordinator answered for {patience:.0f} s")


async def _messages(
    dealer: Dealer, hello: m.Hello, transport: TransportConfig
) -> AsyncIterator[m.Message]:
    stall_s, silent_s = transport.stall_timeout_s, 0.0
    wait_s = min(transport.heartbeat_timeout_s, stall_s)
    while True:
        message = await dealer.receive_within(wait_s)
        if message is None:
            silent_s += wait_s  # Not by the clock: a standstill of this process is no silence.
            if silent_s >= stall_s:
                raise RunFailedError(f"no word from the coordinator for {silent_s:.0f} s")
            await dealer.send(hello)
            continue
        silent_s = 0.0
        if isinstance(message, m.AskHello):
            await dealer.send(hello)
        elif isinstance(message, m.Refused):
            raise RunFailedError(f"the coordinator refuses this worker: {message.reason}")
        elif isinstance(message, m.Shutdown):
            return
        else:
            yield message
