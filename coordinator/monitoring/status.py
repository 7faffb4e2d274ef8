"""Status of the coordinator for a monitor: the run's position and its waits."""

import time

from coordinator.hub import Hub
from coordinator.monitoring.stall_watch import StallWatch
from coordinator.parts import Parts
from headrace.protocol.messages.control import Status


def status(hub: Hub, parts: Parts, waits: StallWatch, phase: str) -> Status:
    """Return the run's phase, its gauges and ledger, and its waits."""
    state = hub.state
    ledger = hub.account.ledger
    scored, total = parts.evaluation.progress()
    gauges = (
        parts.gauges.latest
        | parts.gauges.now(hub.leases.live(), parts.scoring.waiting())
        | {
            "train_time_s": hub.clock.now(),
            "eval/scored": float(scored),
            "eval/total": float(total),
            "warming_up": float(hub.scheduler.warming and phase == "training"),
            "rejected_messages": float(hub.rejections.total),
        }
    )
    for evaluation in state.evaluations:
        gauges[f"eval/{evaluation.label}/accuracy"] = evaluation.accuracy
        gauges[f"eval/{evaluation.label}/response_length"] = evaluation.response_length
    return Status(
        run_id=hub.run_id,
        phase=phase,
        update=state.committed,
        version=state.versions.current,
        gauges=gauges,
        ledger={
            "generated": ledger.generated,
            **{name: ledger.accounts[name] for name in ("trained_policy", "ready", "in_flight")},
        },
        dropped=dict(ledger.dropped),
        waits={wait.words: wait.age_s for wait in waits.now()},
        processes={n: p.hello.role for n, p in hub.peers.everyone()},
        message=hub.failed
        or hub.stalled
        or "; ".join(f"{name} waits: {wait.text}" for name, wait in hub.troubles.waits.items()),
        troubles=list(hub.troubles.newest),
        stalled=hub.stalled is not None,
        doing={name: text for name, text in hub.doing.items() if text},
        moved_s=time.monotonic() - hub.progress_at,
        checkpoint=max(0, parts.training.checkpoint_update),
    )
