"""A run as storage keeps it, made without any role: the coordinator's own state and scheduler are
played by a script, so that windows, staleness and ledger are what they would be.

In: a folder. Out: the same folder with journal, diagnostics, SQL and a tokenizer in it; the task is
the demo's, and a policy that learns to write steps is imitated. Everything but the times is fixed
by the seed.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Literal

import msgspec
import numpy as np
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

from coordinator.dispatch.leases import LeaseTable
from coordinator.incidents.reward_monitors import RewardMonitors
from coordinator.persistence.state import State
from coordinator.scheduling.streaming import StreamingScheduler
from coordinator.scheduling.window_lifecycle import WindowLifecycle
from coordinator.training.batches import PreparedBatch, prepare
from headrace.config.sections.run import RunConfig
from headrace.config.validation.batch_rules import batch_rules
from headrace.protocol.messages.batches import PolicyWindow
from headrace.protocol.messages.diagnostics import TokenDiagnostics
from headrace.protocol.records import record_types as r
from headrace.protocol.token_spans import Span
from headrace.trajectory.trajectories import Trajectory
from storage.run_store import RunStore
from tasks.procedural.chain_sums import write_direct, write_fine, write_prompt

CHARACTERS = tuple(map(chr, range(32, 127)))
END = 0
VOCABULARY = ("<eos>", *CHARACTERS)
MARKUP = "<img src=x onerror=alert(1)><b>bold</b>"
"""What one response says, so that pages can be shown to escape it."""
MARKUP_ID = 7
TICK_S = 0.5
SLOTS = 24
TOKENS_A_TICK = 9
QUIET = ("gap_rise", "length_correlation", "edit_distance", "entropy")
EVALUATIONS = {"before": 0.28125, "after": 0.90625}


def make_config(root: Path, **sections: Any) -> RunConfig:
    """The configuration; sections override."""
    base: dict[str, Any] = {
        "name": "scripted",
        "root": str(root),
        "model": {"path": str(root / "model")},
        "task": {"kind": "chain_sums", "max_prompt_length": 80, "max_response_length": 120},
        "algorithm": {
            "name": "tppo",
            "advantages": {"kind": "egae"},
            "value": {"warmup_updates": 1},
        },
        "schedule": {
            "mode": "streaming",
            "window": 30,
            "batch_windows": 16,
            "num_generations": 2,
            "max_staleness": 2,
        },
        "stop": {"updates": 24},
        "reward": {"alerts": dict.fromkeys(QUIET)},
    }
    for name, values in sections.items():
        base[name] = base.get(name, {}) | values
    return RunConfig.model_validate(base)


def write_tokenizer(folder: Path) -> None:
    """A tokenizer of one printable character a token."""
    tokenizer = Tokenizer(WordLevel({token: i for i, token in enumerate(VOCABULARY)}, "<eos>"))
    tokenizer.pre_tokenizer = Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = Fuse()
    tokenizer.add_special_tokens(["<eos>"])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))


def encode(text: str) -> list[int]:
    """Ids of printable ASCII."""
    return [VOCABULARY.index(character) for character in text]


@dataclass
class Script:
    """Plays a run tick by tick. `now` is the clock of all records."""

    run_dir: Path
    config: RunConfig
    now: float
    updates: int
    roll_back_after: int | None
    random: Random = field(default_factory=lambda: Random(5))
    responses: dict[int, list[int]] = field(default_factory=dict)
    correct: dict[int, bool] = field(default_factory=dict)
    waiting: list[r.Record] = field(default_factory=list)
    learner_until: float = 0.0
    loaded: int = 0
    prepared: PreparedBatch | None = None
    trained_tokens: int = 0
    last: tuple[float, int, int] = (0.0, 0, 0)
    scored: list[Trajectory] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = RunStore.create(self.run_dir, self.run_dir.name, self.config)
        self.state = State(self.config)
        self.account = self.state.account
        self.leases = LeaseTable(self.account)
        self.settlement = WindowLifecycle(self.config, self.account)
        self.scheduler = StreamingScheduler(self.config, self.state, self.leases)
        self.started = self.now
        self.monitors = RewardMonitors(self.config.reward, self.alert)

    # -- writing -----------------------------------------------------------------------------------

    def apply(self, record: r.Record) -> None:
        """Change what is known of the run."""
        self.state.apply(record)
        self.leases.apply(record)

    def note(self, record: r.Record) -> None:
        """Apply a record, and keep it for the tick's append."""
        self.apply(record)
        self.waiting.append(record)

    def follow(self, records: Iterable[r.Record]) -> None:
        """Note what follows, by this clock."""
        for record in records:
            self.note(msgspec.structs.replace(record, at=self.now + 0.4))

    def tick(self, seconds: float = TICK_S) -> None:
        """Make what was noted durable; the clock moves on."""
        self.store.append(self.waiting)
        self.waiting = []
        self.now += seconds

    def phase(self, phase: str, detail: str = "") -> None:
        self.note(r.RunPhase(at=self.now, phase=phase, detail=detail))

    def process(
        self,
        name: str,
        role: str,
        pid: int,
        state: Literal["up", "gone", "lost"] = "up",
        detail: str = "",
    ) -> None:
        record = r.ProcessChanged(
            at=self.now, name=name, role=role, pid=pid, host="node-a", state=state, detail=detail
        )
        self.note(record)

    def publish(self) -> None:
        """The learner's weights get a version, a generator loads it."""
        version = self.state.versions.issued + 1
        at, update, lineage = self.now, self.state.update, self.state.lineage
        self.note(r.VersionIssued(at=at, version=version))
        self.note(
            r.VersionPublished(
                at=at, version=version, lineage=lineage, update=update, num_bytes=2_600_000
            )
        )
        self.load()

    def load(self) -> None:
        version = self.state.versions.current
        self.loaded = version
        self.note(
            r.VersionLoaded(
                at=self.now + 0.08,
                generator="generator-0",
                version=version,
                gap_s=0.04,
                load_s=0.06,
            )
        )

    def evaluate(self, label: str, accuracy: float, length: float) -> None:
        """A held-out evaluation of three seconds."""
        self.phase("evaluating", label)
        self.tick(3.0)
        self.note(
            r.EvaluationDone(
                at=self.now,
                label=label,  # type: ignore[arg-type]
                update=self.state.update,
                version=self.state.versions.current,
                num_prompts=1024,
                accuracy=accuracy,
                response_length=length,
                max_response_length=117,
                truncated=0.004,
                failed=0,
                seconds=3.0,
                train_time_s=self.train_time,
            )
        )

    @property
    def train_time(self) -> float:
        """Seconds since the start of training, evaluations apart."""
        return max(0.0, self.now - self.started - 4.0)

    @property
    def cpu_s(self) -> float:
        """CPU seconds so far: nearly two cores are busy."""
        return 1.75 * (self.now - self.started)

    @property
    def skill(self) -> float:
        """How far the imitated policy has come, 0 to 1."""
        return 1 / (
            1 + math.exp(-(self.state.update - self.updates * 0.45) / (self.updates * 0.12))
        )

    def alert(self, kind: str, text: str) -> None:
        self.note(r.Incident(at=self.now, level="warning", kind=kind, text=text))

    # -- playing -----------------------------------------------------------------------------------

    def issue(self) -> list[Trajectory]:
        """One prompt leaves the source."""
        state, random = self.state, self.random
        digits = [random.randint(1, 9) for _ in range(min(14, int(2 + random.paretovariate(1.2))))]
        prompt, answer = write_prompt(digits), str(sum(digits) % 10)
        first = state.next_trajectory
        ids = list(range(first, first + self.config.schedule.num_generations))
        for trajectory_id in ids:
            long = random.random() < 0.15 + 0.8 * self.skill
            text = write_fine(digits) if long else write_direct(digits)
            right = random.random() < (0.95 if long else 0.12)
            if not right:
                text = f"{text[:-1]}{(int(text[-1]) + random.randint(1, 9)) % 10}"
            if trajectory_id == MARKUP_ID:
                text = MARKUP
            self.responses[trajectory_id] = [*encode(text), END]
            self.correct[trajectory_id] = right and trajectory_id != MARKUP_ID
        self.note(
            r.GroupIssued(
                at=self.now,
                group_id=state.next_group,
                prompt_id=f"chain-{state.next_group:05d}",
                position=state.position,
                purpose="train",
                prompt=prompt,
                answer=answer,
                info=json.dumps({"terms": len(digits)}),
                prompt_ids=np.array(encode(prompt), np.int32),
                trajectory_ids=ids,
                seeds=[1000 + i for i in ids],
            )
        )
        trajectories = [self.account.trajectories[i] for i in ids]
        self.scheduler.issued(trajectories)
        return trajectories

    def generate(self) -> None:
        """Fill the slots, then each live trajectory gets its next tokens."""
        free = SLOTS - self.leases.live()
        chosen, groups = self.scheduler.next_leases(free)
        for _ in range(groups):
            chosen.extend(self.issue())
        for trajectory in chosen[:free]:
            self.note(
                r.LeaseIssued(
                    at=self.now,
                    lease_id=self.state.next_lease,
                    trajectory_id=trajectory.trajectory_id,
                    generator="generator-0",
                    start=trajectory.length,
                    version=self.loaded,
                )
            )
        for key in [key for key, _ in self.leases.training()]:
            self.write_chunk(self.account.trajectories[key])

    def write_chunk(self, trajectory: Trajectory) -> None:
        """The next tokens of one response, up to its window's border."""
        start, window = trajectory.length, self.config.window
        lease = self.leases.of(trajectory.trajectory_id)
        at_border = start > 0 and start == trajectory.open_start
        held = at_border and not self.scheduler.goes_on(trajectory)
        whole = self.responses[trajectory.trajectory_id]
        tokens = 0 if held else min(TOKENS_A_TICK, window - start % window, len(whole) - start)
        has_ended = start + tokens == len(whole)
        ids = whole[start : start + tokens]
        surprise = [-self.random.expovariate(1 / (0.9 - 0.6 * self.skill)) for _ in ids]
        version = self.loaded
        self.note(
            r.ChunkArrived(
                at=self.now + 0.4 * self.random.random(),
                trajectory_id=trajectory.trajectory_id,
                lease_id=lease.lease_id if lease else 0,
                chunk_index=trajectory.next_chunk,
                generator="generator-0",
                start=start,
                token_ids=np.array(ids, np.int32),
                logprobs=np.array(surprise, np.float32),
                spans=[Span(version, start, start + tokens)] if tokens else [],
                finish="stop" if has_ended else "held" if held else None,
            )
        )
        if has_ended:
            key = trajectory.trajectory_id
            length = trajectory.length
            self.note(
                r.TrajectoryEnded(
                    at=self.now + 0.4, trajectory_id=key, status="finished", length=length
                )
            )
        self.follow(self.settlement.next_records([trajectory]))

    def score(self) -> None:
        """Rewards of what has ended; one scoring times out."""
        for trajectory in list(self.account.active.values()):
            if not trajectory.ended or trajectory.reward_status is not None:
                continue
            key = trajectory.trajectory_id
            is_lost = key == 40
            reward = None if is_lost else float(self.correct[key])
            source = self.source_of(key)
            if source == "judge" and reward is not None:
                reward += 0.5 * self.skill  # what is paid for beside being right, ever more
            arrived = r.RewardArrived(
                at=self.now,
                trajectory_id=key,
                status="timeout" if is_lost else "ok",
                reward=reward,
                correct=None if reward is None else self.correct[key],
                parts={} if reward is None else {"correct": float(self.correct[key])},
                seconds=0.002,
                error="no result within 10 s" if is_lost else None,
                source=source,
            )
            self.note(arrived)
            self.monitors.scored(trajectory, arrived)
            if source == "judge":
                self.audit(trajectory)
            self.follow(self.settlement.next_records([trajectory]))
            if reward is not None:
                self.scored.append(trajectory)

    def source_of(self, key: int) -> str:
        """Who scores a trajectory: where there are sources, every third one is the judge's."""
        if not self.config.reward.sources:
            return "default"
        return "sums" if key % 3 else "judge"

    def audit(self, trajectory: Trajectory) -> None:
        """What the verifier says of an answer that the judge scored; one audit fails."""
        key = trajectory.trajectory_id
        status: Literal["ok", "crashed"] = "crashed" if key == 9 else "ok"
        arrived = r.AuditArrived(
            at=self.now,
            trajectory_id=key,
            source="sums",
            status=status,
            reward=float(self.correct[key]) if status == "ok" else None,
            error=None if status == "ok" else "<b>no \u202everdict\x1b[2J",
        )
        self.note(arrived)
        self.monitors.audited("judge", trajectory.reward, arrived)

    def learn(self) -> None:
        """Take a batch when there is one; commit what has been with the learner long enough."""
        if self.prepared is not None:
            if self.now >= self.learner_until:
                self.commit(self.prepared)
            return
        if stale := [window.window_id for window in self.scheduler.selector.too_stale()]:
            self.note(r.WindowsDropped(at=self.now, window_ids=stale, reason="stale"))
        selection = self.scheduler.next_batch()
        if selection is None:
            return
        rules = batch_rules(self.config)
        self.prepared = prepare(selection, self.state, rules, ranks=1, max_bytes=1 << 24)
        self.note(msgspec.structs.replace(self.prepared.taken, at=self.now))
        self.learner_until = self.now + 1.5

    def commit(self, prepared: PreparedBatch) -> None:
        """The update is in the weights."""
        taken = prepared.taken
        windows = [w for shards in prepared.parts for shard in shards for w in shard.windows]
        self.trained_tokens += self.tokens_of(taken)
        record = r.UpdateCommitted(
            at=self.now,
            update=taken.update,
            lineage=self.state.lineage,
            version=self.state.versions.current,
            train_time_s=self.train_time,
            trained_tokens=self.trained_tokens,
            window_ids=[window.window_id for window in taken.windows],
            value_trajectories=taken.value_trajectories,
            metrics={},
            diagnostics=[self.diagnose(window) for window in windows],
        )
        self.apply(record)
        metrics = self.learner_metrics(taken) | prepared.metrics | self.own_metrics()
        self.waiting.append(msgspec.structs.replace(record, metrics=metrics))
        if not taken.windows:
            self.follow(self.settlement.drop_for_warmup(taken.value_trajectories))
        self.prepared = None
        self.scheduler.committed(metrics["critic/vf_explained_var"])
        self.scored = []
        if windows:
            self.publish()

    def tokens_of(self, taken: r.BatchTaken) -> int:
        """Tokens that a batch trains."""
        return sum(
            self.account.window(w.window_id).tokens - sum(run.tokens for run in w.masked)
            for w in taken.windows
        )

    def diagnose(self, window: PolicyWindow) -> TokenDiagnostics:
        """What a critic might have believed."""
        size = window.end - window.start
        drift = np.array([self.random.gauss(0, 0.12) for _ in range(size)])
        goal = float(self.correct[window.trajectory_id])
        values = 0.5 + (goal - 0.5) * np.linspace(0.2, 1.0, size) + drift
        return TokenDiagnostics(
            window_id=window.window_id,
            trajectory_id=window.trajectory_id,
            start=window.start,
            lam=0.95,
            columns={
                "learner_logprobs": (window.logprobs + 0.01).astype(np.float32),
                "values": values.astype(np.float32),
                "advantages": ((goal - values) * 2).astype(np.float32),
                "returns": np.full(size, goal if window.finished else np.nan, np.float32),
            },
        )

    def learner_metrics(self, taken: r.BatchTaken) -> dict[str, Any]:
        """Numbers that a learner would report, falling and rising as they should."""
        skill, noise = self.skill, self.random.gauss
        loss_tokens = float(self.tokens_of(taken))
        return {
            "actor/entropy": 1.15 - 0.75 * skill + noise(0, 0.02),
            "actor/grad_norm": abs(0.6 + noise(0, 0.08)),
            "actor/lr": 1e-4,
            "actor/pg_clipfrac": abs(0.06 + noise(0, 0.012)),
            "actor/pg_clipfrac_dual": abs(noise(0, 0.002)),
            "actor/pg_clipfrac_lower": abs(0.02 + noise(0, 0.006)),
            "actor/pg_loss": noise(0, 0.02),
            "actor/ppo_kl": abs(0.012 + noise(0, 0.004)),
            "actor/steps": 1.0,
            "critic/grad_norm": abs(1.1 + noise(0, 0.2)),
            "critic/values/mean": 0.25 + 0.6 * skill + noise(0, 0.02),
            "critic/vf_explained_var": 0.1 + 0.55 * skill + noise(0, 0.04),
            "critic/vf_loss": 0.12 - 0.07 * skill + abs(noise(0, 0.008)),
            "perf/loss_tokens": loss_tokens,
            "perf/tokens_per_s": loss_tokens / 0.5,
            "perf/useful_share": 0.97,
            "rollout/ess": 0.93 + noise(0, 0.01),
            "rollout/logprob_diff": 0.0004,
            "schedule/batch_windows": float(len(taken.windows)),
            "schedule/bound": float(self.scheduler.bound),
            "schedule/in_play": float(self.scheduler.in_play()),
            "schedule/ready_windows": float(len(self.account.ready)),
            "value/bias": [0.3 * (1 - skill) * (1 - tenth / 9) for tenth in range(10)],
            "value/rmse": [0.5 - 0.03 * tenth for tenth in range(10)],
            "egae/lambda_by_length": [0.95, 0.97, None, None, None, None],
            "timing_s/update": 1.4 + abs(noise(0, 0.05)),
            "timing_s/forward": 0.3,
            "timing_s/policy": 0.6,
            "timing_s/value": 0.4,
            "timing_s/publish": 0.05,
            "timing_s/wait_for_batch": abs(0.4 + noise(0, 0.1)),
        }

    def own_metrics(self) -> dict[str, float]:
        """The coordinator's numbers of an update."""
        generated = self.account.ledger.generated
        at, before, trained = self.last
        seconds = max(self.now - (at or self.started), TICK_S)
        self.last = self.now, generated, self.trained_tokens
        own = self.account.ledger.as_metrics() | {
            "perf/generated_tokens_per_s": (generated - before) / seconds,
            "perf/trained_tokens_per_s": (self.trained_tokens - trained) / seconds,
            "idle/learner": 0.18,
            "idle/generator": 0.03,
            "perf/cpu_s": self.cpu_s,
        }
        own |= self.monitors.at_commit()
        if self.scored:
            lengths = [t.length for t in self.scored]
            rewards = [t.reward or 0.0 for t in self.scored]
            own |= {
                "response_length/mean": float(np.mean(lengths)),
                "response_length/max": float(max(lengths)),
                "response_length/min": float(min(lengths)),
                "response_length/clip_ratio": 0.0,
                "reward/mean": float(np.mean(rewards)),
                "reward/std": float(np.std(rewards)),
            }
        return own

    def sample(self) -> None:
        """Gauges between updates."""
        live = self.leases.live()
        gauges = self.account.ledger.as_metrics() | {
            "idle/learner": 0.18 + 0.05 * math.sin(self.now),
            "idle/generator": 0.03,
            "perf/cpu_s": self.cpu_s,
            "schedule/live": float(live),
            "schedule/ready_windows": float(len(self.account.ready)),
            "schedule/in_play": float(self.scheduler.in_play()),
            "schedule/value_waiting": float(len(self.account.values)),
            "schedule/scoring": 1.0,
            "schedule/learner_busy": float(self.account.taken is not None),
            "schedule/held": 0.0,
            "weights/slowest_loaded": float(self.loaded),
        }
        self.note(r.MetricsSampled(at=self.now, update=self.state.update, metrics=gauges))

    def roll_back(self) -> None:
        """The learner dies and comes back from the checkpoint two updates ago."""
        target = self.state.update - 2
        if (taken := self.account.taken) is not None:
            self.note(
                r.BatchReturned(
                    at=self.now,
                    update=taken.update,
                    lineage=taken.lineage,
                    reason="learner lost",
                    window_ids=[window.window_id for window in taken.windows],
                    value_trajectories=taken.value_trajectories,
                )
            )
            self.prepared = None
        self.process("learner-0", "learner", 4103, "lost", "no heartbeat")
        self.tick(1.0)
        self.process("learner-0", "learner", 4177)
        undone = [batch for update, batch in self.account.committed.items() if update > target]
        self.note(
            r.LineageBegan(
                at=self.now,
                lineage=self.state.lineage + 1,
                update=target,
                version=self.state.versions.issued + 1,
                reason=f"the learner was restored from step_{target}",
                window_ids=[w.window_id for batch in undone for w in batch.windows],
                value_trajectories=[key for batch in undone for key in batch.value_trajectories],
            )
        )
        self.trained_tokens = sum(map(self.tokens_of, self.account.committed.values()))
        self.scheduler.restart()
        self.publish()
        self.tick()

    def discard(self) -> None:
        """What the end of the run leaves untrained."""
        for trajectory in list(self.account.trajectories.values()):
            self.follow(self.settlement.discard(trajectory, "discarded_at_end"))


def write_run(
    root: Path,
    name: str = "scripted-20260101-120000-beef",
    *,
    started: float = 1_767_268_800.0,
    updates: int = 24,
    roll_back_after: int | None = 9,
    end: bool = True,
    **sections: Any,
) -> Path:
    """A run of so many updates in ROOT/NAME; `end` False: it is still training."""
    root.mkdir(parents=True, exist_ok=True)
    write_tokenizer(root / "model")
    config = make_config(root, **sections)
    run_dir = root / name
    script = Script(run_dir, config, started, updates, roll_back_after)
    script.phase("starting")
    for number, (process, role) in enumerate(
        [("generator-0", "generator"), ("reward-0", "reward"), ("learner-0", "learner")]
    ):
        script.process(process, role, 4101 + number)
    script.publish()
    script.tick(1.0)
    script.evaluate("before", EVALUATIONS["before"], 18.5)
    script.phase("training")
    ticks = 0
    rolled_back = roll_back_after is None
    while script.state.update < updates or script.account.taken is not None:
        script.generate()
        script.score()
        script.learn()
        if ticks % 2 == 0:
            script.sample()
        if ticks == 12:
            text = "a message of 3 MiB from 10.0.0.7 was rejected"
            script.note(
                r.Incident(at=script.now, level="warning", kind="message_rejected", text=text)
            )
        script.tick()
        ticks += 1
        if not rolled_back and script.state.update == roll_back_after:
            rolled_back = True
            script.roll_back()
        if ticks > 200 * updates:
            raise RuntimeError("the script does not come to an end")
    if end:
        script.evaluate("after", EVALUATIONS["after"], 61.25)
        script.phase("closing")
        script.discard()
        script.sample()
        script.note(
            r.CheckpointWritten(
                at=script.now,
                update=script.state.update,
                lineage=script.state.lineage,
                path=f"checkpoints/step_{script.state.update}",
                accuracy=EVALUATIONS["after"],
            )
        )
        for process, role in [("generator-0", "generator"), ("learner-0", "learner")]:
            script.process(process, role, 0, "gone")
        script.phase("finished", "updates")
    script.tick(0.0)
    script.store.close()
    (root / "latest").write_text(run_dir.name + "\n")
    return run_dir


def write_run_without_critic(root: Path) -> Path:
    """A run of one update whose advantages are of groups."""
    algorithm = {"name": "grpo", "advantages": {"kind": "group"}, "value": None}
    schedule = {"unit": "group", "window": None}
    return write_run(root, updates=1, roll_back_after=None, algorithm=algorithm, schedule=schedule)
