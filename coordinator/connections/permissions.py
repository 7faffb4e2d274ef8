"""Permissions: each role's messages, and the work that each message must refer to.

In: a message, the role under which its sender said Hello, and the requests sent to that sender.
Out: the reason why the message is refused, or None. Pure functions over arguments;
`OutstandingRequests` alone has a memory, and the coordinator's side of the learner keeps it. Chunks
and scores are checked one by one where they are taken (`intake`, `scoring`).
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from coordinator.connections.message_checks import diagnostics_problem
from headrace.protocol.messages import control as m
from headrace.protocol.transport.endpoints import name_of
from headrace.trajectory.windows import Window

_ALWAYS: frozenset[type[m.Message]] = frozenset({m.Hello, m.Heartbeat, m.Goodbye})
MAY_SAY: dict[m.Role, frozenset[type[m.Message]]] = {
    "generator": _ALWAYS | {m.Chunks, m.GeneratorReport, m.Progress, m.WeightsLoaded},
    "reward": _ALWAYS | {m.Scores},
    "environment": _ALWAYS | {m.StepReplies},
    "learner": _ALWAYS | {m.WeightNotice, m.UpdateDone, m.CheckpointDone, m.Trouble, m.Progress},
    "monitor": _ALWAYS | {m.StatusRequest, m.Command},
}
"""Messages that each role may send; the run's keys let a monitor in, to steer it.

A process that has said no Hello may only say Hello, but for the Progress of a learner that loads
its models."""


class Refusal(NamedTuple):
    """Reason for which a message is refused."""

    kind: str
    text: str


@dataclass
class OutstandingRequests:
    """Requests that the learner has not answered.

    Attributes:
        batch: the one in flight, without its parts. windows: those in it. publish_as: the version
        that its weights will have; None where it trains no policy. checkpoints: the updates of
        those that are to come by themselves. versions: those that the learner may publish, each
        with the first update that its weights may be from. newest: the last update sent to it.
        follows: the version of its weights, where that is not published yet.
    """

    batch: m.Batch | None = None
    windows: list[Window] = field(default_factory=list)
    publish_as: int | None = None
    checkpoints: set[int] = field(default_factory=set)
    versions: dict[int, int] = field(default_factory=dict)
    newest: int = 0
    follows: int | None = None

    def batch_sent(self, batch: m.Batch, windows: list[Window]) -> None:
        """Note a batch that is sent to the learner."""
        self.batch, self.windows, self.newest = batch, windows, batch.update
        trains = batch.publish_as != batch.version
        self.publish_as = batch.publish_as if trains else None
        if trains:
            self.versions[batch.publish_as] = batch.update

    def batch_answered(self, follows: int | None = None, checkpoint: str | None = None) -> None:
        """Note that the learner has answered for the batch, and which version will follow.

        Its checkpoint will follow, too, if one was requested and is not there."""
        if self.batch is not None and self.batch.checkpoint and checkpoint is None:
            self.checkpoints.add(self.batch.update)
        self.follows = self.follows if follows is None else follows
        self.batch, self.windows, self.publish_as = None, [], None

    def published(self, version: int) -> None:
        """Note a published version: it and those it overtook will not come again."""
        self.versions = {v: u for v, u in self.versions.items() if v > version}
        if version == self.publish_as:
            self.publish_as = None
        if self.follows is not None and version >= self.follows:
            self.follows = None


def role_refusal(message: m.Message, role: m.Role) -> Refusal | None:
    """Refuse a message of a kind that this role never sends."""
    if type(message) in MAY_SAY[role]:
        return None
    return Refusal("not_permitted", f"a {role} may not send {type(message).__name__}")


def learner_refusal(
    message: m.UpdateDone | m.WeightNotice | m.CheckpointDone, orders: OutstandingRequests
) -> Refusal | None:
    """Refuse reports of foreign batches, unissued versions, unrequested checkpoints."""
    match message:
        case m.UpdateDone():
            problem = _update_problem(message, orders)
        case m.WeightNotice():
            problem, since = None, orders.versions.get(message.version)
            if since is None:
                problem = (
                    f"version {message.version} was not issued to the learner, or is overtaken"
                )
            # Weights that wait for their turn may be those of a later update that changed nothing.
            elif not since <= message.update <= orders.newest:
                problem = f"version {message.version} is not of update {message.update}"
        case m.CheckpointDone():
            asked = message.update in orders.checkpoints
            problem = None if asked else f"no checkpoint of update {message.update} was asked for"
    return Refusal("not_asked", problem) if problem else None


def _update_problem(message: m.UpdateDone, orders: OutstandingRequests) -> str | None:
    batch, said = orders.batch, (message.lineage, message.update, message.batch_id)
    if batch is None or said != (batch.lineage, batch.update, batch.batch_id):
        return (
            f"update {message.update} of lineage {message.lineage}, batch {message.batch_id}, was "
            "not expected"
        )
    notice, expected = message.notice, (orders.publish_as, batch.update)
    if notice is not None and (notice.version, notice.update) != expected:
        return f"version {notice.version} is not that of update {message.update}"
    if message.follows is not None and (notice or message.follows != orders.publish_as):
        return f"version {message.follows} cannot follow update {message.update}"
    if message.checkpoint is not None and not batch.checkpoint:
        return f"no checkpoint of update {message.update} was asked for"
    return diagnostics_problem(message.diagnostics, orders.windows)


def hello_problem(identity: str, hello: m.Hello, given: int) -> str | None:
    """Return the reason to refuse a Hello whatever other processes do, or None.

    `given`: the highest update that the run has ever given to a learner."""
    if hello.protocol != m.PROTOCOL_VERSION:
        return f"this is protocol {m.PROTOCOL_VERSION}"
    if name_of(identity) != hello.name:
        return "the socket's identity is not NAME~SECRET with the name in Hello"
    if hello.role == "learner" and hello.update > given:
        return (
            f"its weights are from update {hello.update}, and this run has come to update "
            f"{given}: the checkpoint is another run's"
        )
    return None
