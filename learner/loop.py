"""The learner's main loop: receive, update, publish, report.

Comes in: Welcome, Restore, Batch with its parts and CheckpointRequest from the coordinator (on rank
0, which shares them with the other ranks and hands each rank its parts). Goes out: the notice of
weights, UpdateDone with metrics and token diagnostics, CheckpointDone. Blocks while it waits for a
message. Wakes on any message, a signal to end, a publication that is due. Promises: it trains no
batch but the next update of its lineage; it continues from what a Restore names. At shutdown the
current update is finished first; a batch whose parts have not all come is given up for any other
message. On failure the exception ends the process, and the coordinator serves the batch again.
"""

import contextlib
import logging
from typing import cast

from headrace.protocol.messages import control as m
from learner.batching.shards import merge_shards
from learner.process.inbox import Inbox
from learner.process.rank_broadcast import RankRelay
from learner.process.trainer import Trainer
from learner.process.weight_publishing import WeightPublisher

_LOG = logging.getLogger("headrace.learner")
LAST_CHECKPOINT_S = 60.0
"""A learner that ends waits this long for a checkpoint that is being written."""


def run_loop(
    inbox: Inbox | None, publisher: WeightPublisher | None, relay: RankRelay, trainer: Trainer
) -> str:
    """Serve until Shutdown and return its reason.

    Only rank 0 has `inbox` and `publisher`; all ranks take the same turns."""
    waiting: m.Message | None = None
    while True:
        message, waiting = waiting or relay.share(_next(inbox, publisher, trainer)), None
        answer: m.Message | None = None
        match message:
            case m.Welcome():
                answer = trainer.announce(message.lineage, message.publish_as, publisher)
            case m.Restore():
                if publisher is not None:
                    publisher.behind.written(None)  # of a line that is given up
                trainer.go_back(message.line)
                _greet(inbox)
            case m.Batch() if not trainer.is_next(message):
                _LOG.error(
                    "update %d of lineage %d is refused: the weights are from update %d of lineage "
                    "%d", message.update, message.lineage, trainer.position.update,
                    trainer.position.lineage,
                )  # fmt: skip
                _greet(inbox)
            case m.Batch():
                answer, waiting = _update(message, inbox, publisher, relay, trainer)
            case m.WeightRequest():
                answer = trainer.publish(publisher, at_once=True)
            case m.CheckpointRequest():
                answer = trainer.checkpoint(message.lineage, message.journal)
            case m.Shutdown():
                trainer.checkpoints.writing.close(LAST_CHECKPOINT_S)
                return message.reason
        if inbox is not None and answer is not None:
            inbox.send(answer)
            if publisher is not None:
                trainer.announce_written(publisher, reported=True)
            while trainer.notices:  # an answer means that Hello was said
                inbox.send(trainer.notices.pop(0))


def _greet(inbox: Inbox | None) -> None:
    if inbox is not None:
        inbox.greet()


def _update(
    batch: m.Batch,
    inbox: Inbox | None,
    publisher: WeightPublisher | None,
    relay: RankRelay,
    trainer: Trainer,
) -> tuple[m.Message | None, m.Message | None]:
    """Train the batch; return rank 0's report, or another message than a part."""
    parts = relay.deliver(batch, None if inbox is None else inbox.next)
    if isinstance(parts, m.Message):
        return None, parts
    reports = relay.collect(trainer.train(batch, merge_shards(parts), publisher))
    return (trainer.report(cast(list[m.UpdateDone], reports)) if reports else None), None


def _next(
    inbox: Inbox | None, publisher: WeightPublisher | None, trainer: Trainer
) -> m.Message | None:
    if inbox is None or publisher is None:
        return None
    due_at = trainer.publication.due_at
    with contextlib.ExitStack() as stage:
        if trainer.announce_written(publisher):
            stage.enter_context(trainer.writing())

        def is_writing() -> bool:
            if not (goes_on := trainer.announce_written(publisher)):
                stage.close()
            return goes_on

        while isinstance(message := inbox.next(due_at=due_at, is_writing=is_writing), m.BatchPart):
            _LOG.warning("a part of batch %d ignored: the batch was given up", message.batch_id)
        return message
