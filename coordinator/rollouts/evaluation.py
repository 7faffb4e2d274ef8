"""Evaluations: the same prompts on one version that every tested generator has loaded.

In: a quiet pipeline (no training lease and no batch in flight). Out: evaluation leases, then one
EvaluationDone record. Accuracy is the share of responses that their score calls correct. A response
that failed or could not be scored counts as wrong, and in `failed`. After the first evaluation an
alert names each source whose answer marker stands in no answer. Where a value model learns, probes
follow (`probes`), and an alert where it explains less than half of what it could.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

from coordinator.dispatch.prompts import Prompts
from coordinator.hub import Hub
from coordinator.rollouts.episodes import branch_of
from coordinator.rollouts.generation import Generation
from coordinator.rollouts.probes import draw_prefixes, may_probe, pooled, probe_group
from coordinator.scheduling.base import EXPLAINED
from headrace.metrics.attainable import ENOUGH, attainable, attainable_interval
from headrace.protocol.records.record_types import EvaluationDone, GroupIssued
from headrace.trajectory.trajectories import Trajectory

Label = Literal["before", "during", "after"]
MOST_READ = 256
"""Maximum number of answers of a source in which its answer marker is looked for."""


def can_wait(now: float, step: float, last: float, spacing: float, *, begin: float = 0.0) -> bool:
    """Return whether an evaluation in `step` seconds would be near enough to `last`.

    It may be at most `spacing` of the training time `now` away, or of `begin` before that."""
    return now + step - last <= spacing * max(now, begin)


class Evaluator:
    """Evaluation under way, if any; after a restart it begins again, unless nobody trains."""

    def __init__(
        self,
        hub: Hub,
        prompts: Prompts,
        generation: Generation,
        source_of: Callable[[GroupIssued], str],
    ) -> None:
        """`source_of`: the source of rewards of a prompt."""
        self._hub, self._source_of = hub, source_of
        self._prompts = prompts
        self._generation = generation
        self._asked: list[tuple[int, list[int]]] = []
        """Position and trajectories of each prompt."""
        self._probes: list[tuple[int, list[int]]] | None = None
        """Position of the prompt and trajectories of each probe; None before they are drawn."""
        self._lags = False
        """True after an evaluation that found the value model to explain too little."""
        self._open: list[int] = []
        """Trajectories that may not be scored yet, checked from the end."""
        self._lengths: dict[int, int] = {}
        """Response lengths of the last evaluation by position: estimates for the next one."""
        self._is_issued, self._given_up = False, set[int]()
        self._of = 0, 0  # lineage and update of the weights that answer
        self._label: Label = "before"
        self._began = 0.0

    def start(self, label: Label) -> None:
        """Begin; the first `advance` issues the prompts that are not issued yet."""
        self._label, self._began = label, time.monotonic()
        self._is_issued, self._probes = False, None
        self._of = self._hub.state.lineage, self._hub.state.committed

    async def _issue(self) -> None:
        if (groups := await self._generation.draw_evaluation("eval", self._lengths)) is None:
            return
        every = self._hub.account.groups.values()
        known = [g for g in every if g.group_id not in self._given_up]
        out = [g for g in known if g.purpose == "eval" and branch_of(g) < 0]
        # Since a restart a row may have lost its image, or have got it back.
        asked, place = {g.prompt_id: g.trajectory_ids for g in out}, dict[str, int]()
        for group in groups:
            place[group.prompt_id] = group.position
            if group.prompt_id not in asked:
                self._hub.record_event(group)
                asked[group.prompt_id] = group.trajectory_ids
        self._asked = [(place.get(row, -1), ids) for row, ids in asked.items()]
        self._open = [trajectory_id for ids in asked.values() for trajectory_id in ids]
        self._is_issued = True

    def progress(self) -> tuple[int, int]:
        """Return the numbers of scored and of all responses."""
        trajectories = self._trajectories()
        return sum(t.settled for t in trajectories), len(trajectories)

    async def advance(self) -> EvaluationDone | None:
        """Lease the trajectories without a lease; return the result once all are scored."""
        if not self._is_issued:
            if not self._given_up or self._generation.all_loaded():
                await self._issue()
            if not self._is_issued:
                return None
        await self._generation.lease_evaluation()
        while self._open and self._hub.account.trajectories[self._open[-1]].settled:
            self._open.pop()
        if self._open:
            return None
        trajectories, state = self._trajectories(), self._hub.state
        if self._of != (state.lineage, state.committed):
            # The learner came back with other weights, which answer all once more.
            self._given_up = set(self._hub.account.groups)
            self.start(self._label)
            return None
        if self._probes is None:
            self._probes = self._probe(trajectories)
            self._open = [trajectory_id for _, ids in self._probes for trajectory_id in ids]
            if self._open:
                await self._generation.lease_evaluation()
                return None
        good = [t for t in trajectories if t.reward is not None]
        right = sum(bool(t.correct) for t in good)
        lengths = [t.sampled for t in trajectories]
        known = self._hub.account.trajectories
        self._lengths = {p: max(known[i].sampled for i in ids) for p, ids in self._asked}
        record = EvaluationDone(
            label=self._label,
            update=state.committed,
            version=state.versions.current,
            num_prompts=len(self._asked),
            accuracy=right / max(1, len(trajectories)),
            response_length=statistics.fmean(lengths) if lengths else 0.0,
            max_response_length=max(lengths, default=0),
            truncated=sum(t.status == "truncated" for t in trajectories) / max(1, len(lengths)),
            failed=len(trajectories) - len(good),
            seconds=time.monotonic() - self._began,
            train_time_s=self._hub.clock.now(),
            **self._attainable(self._probes),
        )
        self._compare(record)
        if not state.evaluations:
            self._look_for_markers(trajectories)
        self._hub.record_event(record)
        self._asked, self._given_up = [], set()
        return record

    def _probe(self, answers: Sequence[Trajectory]) -> list[tuple[int, list[int]]]:
        """Issue the probes of these answers that are not issued yet."""
        hub, config, state = self._hub, self._hub.config, self._hub.state
        if self._label == "before" or not may_probe(config):
            return []
        groups, reward = hub.account.groups, config.reward.each()
        alone = [
            t for t in answers
            if t.complete and reward[self._source_of(groups[t.group_id])].unit == "trajectory"
        ]  # fmt: skip
        number = len(state.evaluations)
        chosen = draw_prefixes(alone, config.evaluation.probes, f"{config.seed}/{number}")
        known = [g for g in groups.values() if g.group_id not in self._given_up]
        out = [g.trajectory_ids for g in known if g.purpose == "probe"]
        for i, (answer, prefix) in list(enumerate(chosen))[len(out) :]:
            ids = state.next_group, state.next_trajectory
            place, group = number * config.evaluation.probes + i, groups[answer.group_id]
            record = probe_group(group, answer, prefix, place, config.seed, ids)
            hub.record_event(record)
            out.append(record.trajectory_ids)
        position = {key: place for place, keys in self._asked for key in keys}
        return [(position[a.trajectory_id], ids) for (a, _), ids in zip(chosen, out, strict=True)]

    def _attainable(self, probes: Sequence[tuple[int, Sequence[int]]]) -> dict[str, Any]:
        """Return what the record of an evaluation says of the attainable share."""
        known, new = self._hub.account.trajectories, []
        for place, ids in probes:
            returns = [reward for i in ids if (reward := known[i].reward) is not None]
            new += [(place, returns)] if len(returns) > 1 else []
        every = pooled(new, self._hub.state.evaluations)
        told: dict[str, Any] = {"continuations": new, "prefixes": len(every)}
        if len(every) >= ENOUGH and math.isfinite(share := attainable(every)):
            low, high = attainable_interval(every)
            told |= {"attainable": share, "attainable_low": low, "attainable_high": high}
        return told

    def _compare(self, record: EvaluationDone) -> None:
        """Report a value model that explains less than half of the lowest attainable share."""
        seen, low = self._hub.scheduler.explained, record.attainable_low
        # The critic of mixed groups never sees prompts that are always right, or always wrong.
        sees_all = self._hub.config.algorithm.admit == "all"
        if low is None or len(seen) < EXPLAINED or not sees_all:
            return
        explained = statistics.median(seen)
        lagged, self._lags = self._lags, explained < low / 2
        if self._lags and not lagged:
            text = (
                f"the critic explains {explained:.2f} of the returns' variance in its last "
                f"{EXPLAINED} updates, and {record.attainable:.2f} [{low:.2f}, "
                f"{record.attainable_high:.2f}] can be explained: advantages at cuts rest on a "
                "guess; algorithm.value has what teaches it sooner"
            )
            self._hub.troubles.report("critic_alert", text)

    def _look_for_markers(self, trajectories: Sequence[Trajectory]) -> None:
        groups, decode = self._hub.account.groups, self._prompts.decode
        for name, source in self._hub.config.reward.each().items():
            if (marker := source.answer_marker) is None:
                continue
            own = [t for t in trajectories if self._source_of(groups[t.group_id]) == name]
            read = own[:MOST_READ]
            if read and not any(marker in decode(t.sampled_tokens()) for t in read):
                text = (
                    f"{name}: no answer of {len(read)} had the answer marker {marker!r}, so none "
                    "can be right: have the prompts ask for it, or change answer_marker"
                )
                self._hub.troubles.report("reward_alert", text)

    def _trajectories(self) -> list[Trajectory]:
        known = self._hub.account.trajectories
        return [known[trajectory_id] for _, ids in self._asked for trajectory_id in ids]
