"""A whole run of a real coordinator and scripted peers with an audited share: records, SQL,
exports, metrics and the audit of the books agree; what it trains on are the rewards alone."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from coordinator.persistence.state import State
from coordinator.scoring.group_diversity import chosen
from headrace.metrics.registry import METRICS, pattern_of
from headrace.protocol.messages import control as m
from headrace.protocol.records.record_types import (
    AnyRecord,
    AuditArrived,
    BatchTaken,
    GroupIssued,
    Incident,
    Record,
    RewardArrived,
    UpdateCommitted,
)
from storage import queries
from storage.audit import audit_run
from tests.coordinator.peers import ScriptedReward
from tests.coordinator.test_group_runs import run
from tests.coordinator.test_loop import assert_balanced, records_of, run_config

SHARE = 0.5
R = TypeVar("R", bound=Record)
REWARD = {
    "sources": {"judge": {"kind": "exact", "kl_coefficient": 0.25}, "truth": {"kind": "exact"}},
    "route": {"default": "judge"},
    "audit": {"source": "truth", "share": SHARE},
    "alerts": {"answers": 8, "entropy": 0.6},
}
ALGORITHM = {
    "advantages": {"kind": "egae"}, "value": {"warmup_updates": 1},
    "kl": {"coef": 0.5, "where": "loss"},
}  # fmt: skip


class AuditedReward(ScriptedReward):
    """The judge likes everything; in truth even ones are right, and every fifth audit fails."""

    async def answer(self, message: m.Message) -> None:
        if isinstance(message, m.ScoreRequest):
            await self.dealer.send(m.Scores(scores=[_score(item) for item in message.items]))


def _score(item: m.ScoreItem) -> m.Score:
    assert item.source == ("truth" if item.audit else "judge")
    truth = float(item.trajectory_id % 2 == 0)
    failed = item.audit and item.trajectory_id % 5 == 0
    return m.Score(
        trajectory_id=item.trajectory_id,
        status="crashed" if failed else "ok",
        reward=truth if item.audit else 1.0,
        correct=True,
        audit=item.audit,
        source=item.source,
        error="no judge" if failed else None,
    )


def of(records: Sequence[AnyRecord], kind: type[R]) -> list[R]:
    return [record for record in records if isinstance(record, kind)]


@pytest.mark.timeout(120)
async def test_an_audited_run(tmp_path: Path) -> None:
    run_dir, parts = await run(
        tmp_path, reward=AuditedReward, reward_section=REWARD, algorithm=ALGORITHM
    )
    records = records_of(run_dir)
    assert_balanced(records)
    groups = {g.group_id: g for g in of(records, GroupIssued)}
    audits = {r.trajectory_id: r for r in of(records, AuditArrived)}
    rewards = {r.trajectory_id: r for r in of(records, RewardArrived)}
    assert len(audits) == len(of(records, AuditArrived)) > 0
    group_of = {t: g for g in groups.values() for t in g.trajectory_ids}
    for key, audit in audits.items():
        assert group_of[key].purpose == "train"
        assert chosen(f"0/{group_of[key].prompt_id}", SHARE)
        assert (audit.status == "crashed") == (key % 5 == 0)
    assert all(r.reward == 1.0 for r in rewards.values())

    windows = [window for part in parts for window in part.shard.windows]
    assert {c.value for w in windows for c in w.coefficients} == {0.25}
    assert all(w.coefficients for w in windows)
    assert any(not w.finished for w in windows)

    state = State(run_config(reward=REWARD, algorithm=ALGORITHM))
    for record in records:
        state.apply(record)
    known = state.account.trajectories
    assert any(t.audit_status for t in known.values())
    assert all(t.audit_status == audits[key].status for key, t in known.items() if t.audit_status)
    found = {f.kind for f in audit_run(run_dir).findings}
    assert found <= {"checkpoint", "diagnostics"}, "the scripted learner writes neither"

    rows = queries.trajectory_page(run_dir, where="audit_status = 'ok'", limit=1000).rows
    assert set(rows["trajectory_id"]) == {k for k in audits if k % 5}
    assert set(rows["audit_source"]) == {"truth"}
    out = tmp_path / "t.jsonl"
    queries.export(run_dir, "trajectories", fmt="jsonl", out=out, where="audit_status = 'crashed'")
    exported = [json.loads(line) for line in out.read_text().splitlines()]
    assert {row["trajectory_id"] for row in exported} == {k for k in audits if k % 5 == 0}
    assert {row["audit_error"] for row in exported} <= {"no judge"}
    (source,) = queries.reward_sources(run_dir).to_dict("records")
    assert (source["source"], source["audits"]) == ("judge", len(audits))
    wrong = [float(k % 2) for k in audits if k % 5]
    assert source["gap"] == pytest.approx(sum(wrong) / len(wrong))

    updates = of(records, UpdateCommitted)
    assert {name for u in updates for name in u.metrics if pattern_of(name) not in METRICS} == set()
    # An update during which no answer was scored has no figure.
    entropies = [x for u in updates if (x := u.metrics.get("rewards/judge/entropy_estimate"))]
    assert entropies[-1] == pytest.approx(0.5)
    alerts = [r.text for r in of(records, Incident) if r.kind == "reward_alert"]
    entropy = [text for text in alerts if "nats a token" in text]
    assert len(entropy) == 1, "once for the crossing, not for each update"
    summary = queries.run_summary(run_dir)
    assert summary["alerts"] == alerts
    assert summary["rewards"]["judge"]["audits"] == len(audits)
    assert len(of(records, BatchTaken)) >= len(updates)
