"""Messages of who watches and steers a run, and what is to be told them.

They are among those of `messages`, which names all that are on the wire.
"""

from typing import Literal

import msgspec

from headrace.protocol import fields
from headrace.protocol.message import Message


class Trouble(Message, frozen=True, kw_only=True, tag=True):
    """Learner to coordinator: something that a user should know now. `waits`: the learner goes on
    when it is over, and then says so with an empty text."""

    kind: fields.Label
    text: fields.Prose
    waits: bool = False


class Command(Message, frozen=True, kw_only=True, tag=True):
    """Monitor to coordinator. drain, checkpoint, end; the run is then `stopped`, or
    `interrupted` when it was Ctrl-C."""

    action: Literal["stop", "interrupt"]


class StatusRequest(Message, frozen=True, kw_only=True, tag=True):
    """Monitor to coordinator."""


class Status(Message, frozen=True, kw_only=True, tag=True):
    """Coordinator to monitor: where the run stands. `gauges` are numbers by metric name. `waits`:
    whom the run waits for and for what, with the seconds since that last moved; `stalled`: nobody
    has made progress for too long, and the run is about to end for it. `troubles` are the last
    things that a user should know."""

    run_id: str
    phase: str
    update: int
    version: int
    gauges: dict[str, float]
    ledger: dict[str, int]
    dropped: dict[str, int]
    waits: dict[str, float]
    processes: dict[str, str]
    message: str = ""
    stalled: bool = False
    troubles: list[str] = msgspec.field(default_factory=list)
