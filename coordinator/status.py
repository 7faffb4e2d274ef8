"""What the coordinator tells a monitor: where the run stands and what is waited for."""

import time

from coordinator.hub import Hub
from coordinator.parts import Parts
from headrace.protocol.messages import Status


def waits(hub: Hub, parts: Parts) -> dict[str, float]:
    """What is waited for, in words, and for how long."""
    peers = hub.peers
    waits: list[str] = []
    if not peers.generators:
        waits.append("a generator to join")
    elif hub.state.versions.current >= 0 and not parts.generation.all_loaded():
        waits.append(f"generators to load version {hub.state.versions.current}")
    if not peers.rewards:
        waits.append("a reward worker to join")
    if hub.config.evaluation.only:
        pass
    elif peers.learner is None:
        waits.append("the learner to join")
    elif not parts.training.ready:
        waits.append("the learner to publish its weights")
    elif hub.account.taken:
        waits.append(f"the learner's update {hub.account.taken.update}")
    if parts.scoring.waiting():
        waits.append(f"{parts.scoring.waiting()} rewards")
    if parts.generation.live():
        waits.append(f"{parts.generation.live()} trajectories to go on")
    now = time.monotonic()
    disks = {f"{name}: {w.text}": now - w.since for name, w in hub.troubles.waits.items()}
    return dict.fromkeys(waits, now - hub.progress_at) | disks


def status(hub: Hub, parts: Parts, phase: str) -> Status:
    """The run's phase, its gauges and ledger, and what is waited for."""
    state = hub.state
    ledger = hub.account.ledger
    scored, total = parts.evaluation.progress()
    gauges = (
        parts.gauges.latest
        | parts.gauges.now(parts.generation.live(), parts.scoring.waiting())
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
        update=state.update,
        version=state.versions.current,
        gauges=gauges,
        ledger={
            "generated": ledger.generated,
            **{name: ledger.accounts[name] for name in ("trained_policy", "ready", "in_flight")},
        },
        dropped=dict(ledger.dropped),
        waits=waits(hub, parts),
        processes={n: p.hello.role for n, p in hub.peers.everyone()},
        message=hub.failed
        or "; ".join(f"{name} waits: {wait.text}" for name, wait in hub.troubles.waits.items()),
        troubles=list(hub.troubles.newest),
    )
