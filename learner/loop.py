"""The learner's heart: receive, update, publish, report.

Comes in: Welcome, Batch and CheckpointRequest from the coordinator (on rank 0, which shares them
with the other ranks). Goes out: the notice of weights, UpdateDone with metrics and token
diagnostics, CheckpointDone. What blocks it: waiting for a message. What wakes it: any message, a
signal to end, a publication that is due. At shutdown the update at hand is finished first. On
failure the exception ends the process, and the coordinator serves the batch again.
"""

from typing import cast

from headrace.protocol.messages import (
    Batch,
    CheckpointRequest,
    Message,
    Shutdown,
    UpdateDone,
    WeightRequest,
    Welcome,
)
from learner.inbox import Inbox
from learner.publishing import Publisher
from learner.relay import Relay
from learner.trainer import Trainer, merged


def run_loop(
    inbox: Inbox | None, publisher: Publisher | None, relay: Relay, trainer: Trainer
) -> str:
    """Serve until Shutdown and give its reason. `inbox` and `publisher` on rank 0; all ranks take
    the same turns."""
    while True:
        message = relay.share(_next(inbox, trainer))
        answer: Message | None = None
        match message:
            case Welcome():
                answer = trainer.announce(message.publish_as, publisher)
            case Batch():
                reports = relay.collect(trainer.train(message, publisher))
                answer = merged(cast(list[UpdateDone], reports)) if reports else None
            case WeightRequest():
                answer = trainer.publish(publisher, at_once=True)
            case CheckpointRequest():
                answer = trainer.checkpoint(message)
            case Shutdown():
                return message.reason
        if inbox is not None and answer is not None:
            inbox.send(answer)


def _next(inbox: Inbox | None, trainer: Trainer) -> Message | None:
    if inbox is None:
        return None
    waiting, due_at = trainer.waiting, trainer.due_at
    due = (waiting, due_at) if waiting is not None and due_at is not None else None
    return inbox.next(due=due)
