"""Explained variance of a checkpoint's value model, and its attainable maximum.

In: a run. Its policy samples new answers to held-out prompts, and continues prefixes of them,
drawn at random among all their tokens, several times. Out: explained variance of the value model
on the answers, and the attainable share of the return's variance, which the prefix determines, by
the continuations of each prefix. Both by tokens, as the learner's metric, overall and by quarter of
the answer (within the quarter); also by answers. Intervals: 95 %, by resampling prompts. Besides,
of the answers that the run trained until then: the correlation of a window's mean advantage,
trained before its answer ended, with the later return.

With --again, the learner alone trains the run's own batches again with other settings instead, and
each update's explained variance and the value model's seconds are printed: the same answers for
every value model. Weights begin where the run began, and none are published or kept.
"""

import asyncio
import json
import math
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace
from safetensors.torch import load_file

from benchmarks.kit.command_line import command_line
from benchmarks.performance.learner import batch_of
from coordinator.persistence.state import State
from coordinator.training.replayed_batch import sent_batch
from dashboard.reads.critic import worth
from headrace.config.device_defaults import resolve
from headrace.config.loading.recipe import merge_overrides
from headrace.config.sections.run import RunConfig
from headrace.config.validation.batch_rules import batch_rules
from headrace.data.media import MediaStore
from headrace.data.tokenizer import decoded
from headrace.errors import UserError
from headrace.host.hardware import detect, free_port
from headrace.host.progress_reporter import ProgressReporter
from headrace.metrics.attainable import Floats, attainable, attainable_interval, interval
from headrace.protocol.messages.batches import BatchSequence, Shard, ValueTrajectory
from headrace.protocol.records.record_types import BatchTaken
from headrace.protocol.token_spans import Reward
from headrace.run_files.run_folder import MEDIA, find_run, read_config
from headrace_cli.commands.checks.reward_check import policy_tokenizer
from headrace_cli.commands.reward.answers import items_of
from headrace_cli.commands.reward.judges import serve_judges
from headrace_cli.commands.reward.sampling import draw_seed, side_by_side
from headrace_cli.launch.sampler import open_sampler
from learner.algorithms.registry import build_algorithm
from learner.algorithms.segment_advantages import halves_of
from learner.batching.batch import loss_counts
from learner.batching.shards import merge_shards
from learner.models.deepspeed_engine import join_ranks
from learner.models.feature_network import FeatureEngine
from learner.process.checkpoint import CRITIC, POLICY, STATE
from learner.process.model_set import ModelSet
from learner.process.trainer import Trainer
from learner.updates.critic_update import critic_update_class
from rewards.labeling.offline_scoring import open_scorer
from storage.journal.store import read_journal
from storage.queries import critic_sample
from tasks.datasets.source import build_source


def critic_record(run_dir: Path, config: RunConfig) -> dict[str, list[float]]:
    """Train a run's batches again; needs a joined process group of one rank.

    Return two lists by update: `explained`, variance of untrained answers, and `seconds`."""
    learner = config.learner.model_copy(update={"ranks": 1})
    config = config.model_copy(update={"learner": learner})
    state, rules = State(config), batch_rules(config)
    found: dict[str, list[float]] = {"explained": [], "seconds": []}
    wanted = {"explained": ("critic/vf_explained_var", 3), "seconds": ("timing_s/value", 2)}
    with tempfile.TemporaryDirectory(prefix="headrace-critic-") as folder:
        trainer = Trainer(config, Path(folder), rank=0, device=torch.device("cpu"))
        for _, record in chain.from_iterable(read_journal(run_dir / "journal")):
            if isinstance(record, BatchTaken):
                sent = sent_batch(record, state, rules, config, {})
                metrics = trainer.train(sent.header(), merge_shards(sent.parts), None).metrics
                for name, (metric, digits) in wanted.items():
                    value = metrics.get(metric, math.nan)
                    assert isinstance(value, float)
                    found[name].append(round(value, digits))
            state.apply(record)
    return found


@dataclass(frozen=True)
class HeldOutAnswer:
    """A held-out prompt, what the policy wrote, and its return."""

    prompt: int
    prompt_ids: list[int]
    ids: list[int]
    logprobs: list[float]
    score: float


@dataclass(frozen=True)
class ContinuedPrefix:
    """The first `tokens` of an answer, and the returns of their continuations."""

    answer: HeldOutAnswer
    tokens: int
    returns: list[float]


async def answers_of(
    config: RunConfig, prompts: int, prefixes: int, continuations: int, seed: int
) -> tuple[list[HeldOutAnswer], list[ContinuedPrefix]]:
    """Sample answers, and continuations of prefixes of them."""
    from rewards.models.encoding import prompt_ids
    from tasks.datasets.answers import FinishedAnswer

    tokenizer, limit = policy_tokenizer(config), config.task.max_response_length
    rows = build_source(config.task, config.seed).eval_rows(prompts)
    items = items_of(config, [FinishedAnswer(r.prompt, "", r.answer, r.info) for r in rows])
    async with (
        serve_judges(config),
        open_sampler(config) as sampler,
        open_scorer(config.reward) as desk,
    ):

        async def write(place: int, before: Sequence[int], number: int) -> HeldOutAnswer:
            ids = prompt_ids(tokenizer, rows[place].prompt, config.model.chat_template)
            written = await sampler.sample(
                ids, before, max_tokens=limit - len(before),
                seed=draw_seed(seed, ids, before, number),
            )  # fmt: skip
            whole = [*before, *written.ids]
            item = replace(
                items[place],
                text=decoded(tokenizer, whole),
                finished=written.finished,
                num_tokens=len(whole),
                prompt_ids=np.array(ids, np.int32) if config.reward.token_ids else None,
                completion_ids=np.array(whole, np.int32) if config.reward.token_ids else None,
            )
            score = await desk.score(item)
            if score.status != "ok":
                raise UserError(f"an answer could not be scored: {score.error}")
            return HeldOutAnswer(place, ids, whole, written.logprobs, score.reward)

        held: list[HeldOutAnswer] = []

        async def fresh(place: int) -> str:
            held.append(await write(place, (), 0))
            return f"{sampler.tokens} tokens"

        at_once = config.generator.seats
        await side_by_side(
            range(len(rows)), fresh, at_once=at_once, total=len(rows), title="answers"
        )
        held.sort(key=lambda one: one.prompt)
        draw = random.Random(seed)
        places = [(h, t) for h in held for t in range(len(h.ids))]
        chosen = draw.sample(places, min(prefixes, len(places)))
        cuts = [ContinuedPrefix(one, tokens, []) for one, tokens in chosen]

        async def go_on(number: int) -> str:
            cut = cuts[number // continuations]
            before = cut.answer.ids[: cut.tokens]
            again = await write(cut.answer.prompt, before, number % continuations + 1)
            cut.returns.append(again.score)
            return f"{sampler.tokens} tokens"

        every = range(len(cuts) * continuations)
        await side_by_side(every, go_on, at_once=at_once, total=len(every), title="continuations")
    return held, cuts


def values_of(
    config: RunConfig, run_dir: Path, checkpoint: Path, held: Sequence[HeldOutAnswer]
) -> tuple[Floats, Floats]:
    """[T] values of answers' tokens by a checkpoint's value model, and [T] returns."""
    device, work = torch.device("cpu"), ProgressReporter()
    _join(config)
    algorithm = build_algorithm(
        config.algorithm, window=config.window, max_length=config.task.max_response_length
    )
    models = ModelSet(
        config, checkpoint, rank=0, device=device, work=work,
        read_image=MediaStore(run_dir / MEDIA).read,
    )  # fmt: skip
    engine, slots = models.engines[CRITIC], algorithm.value
    if isinstance(engine, FeatureEngine):  # Other trained weights come from the model's folder.
        engine.load_state(load_file(checkpoint / STATE / f"{CRITIC}-0.safetensors"))
    shard = Shard(
        sequences=[
            BatchSequence(
                trajectory_id=h.prompt, group_id=h.prompt, opening=len(h.prompt_ids),
                token_ids=np.array([*h.prompt_ids, *h.ids], np.int32),
                sampled=[(0, len(h.ids))],
            )
            for h in held
        ],
        windows=[],
        values=[
            ValueTrajectory(
                trajectory_id=h.prompt, sequence=i, length=len(h.ids),
                rewards=[Reward(h.score, len(h.ids) - 1)],
                logprobs=np.array(h.logprobs, np.float32),
            )
            for i, h in enumerate(held)
        ],
    )  # fmt: skip
    windows, finished = halves_of(algorithm, shard, version=0, device=device)
    assert slots is not None
    critic = critic_update_class(engine)(
        slots, engine, models.place, batch_of(1), finished,
        loss_counts(windows, finished, models.place), parts=1, window=config.window,
    )  # fmt: skip
    critic.prepare(None, at_cuts=False)
    critic.first_pass(sound=False)
    returns = slots.returns(finished.rewards, finished.segments).targets
    return critic.start.numbers.double().numpy(), returns.double().numpy()


def explained(values: Floats, returns: Floats, weights: Floats) -> float:
    """Return 1 - Var(R - V) / Var(R), each token counted by its weight [T]."""
    left, whole = (np.cov(x, aweights=weights, ddof=0) for x in (returns - values, returns))
    return float(1.0 - left / whole) if whole else float("nan")


def main(argv: list[str]) -> int:
    parser = command_line("critic", __doc__)
    parser.add_argument("run", help="the run's name or folder")
    parser.add_argument("--root", type=Path, default=Path("runs"), help="where runs are")
    parser.add_argument("--step", type=int, help="the checkpoint's update; the newest by default")
    parser.add_argument("--prompts", type=int, default=256, help="held-out prompts")
    parser.add_argument("--prefixes", type=int, default=128, help="of their answers")
    parser.add_argument("--continuations", type=int, default=4, help="of each prefix, at least 2")
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn")
    parser.add_argument(
        "--again", nargs="+", metavar="KEY=VALUE[,KEY=VALUE...]",
        help="settings of a learner that trains the run's batches again; `-`: the run's own",
    )  # fmt: skip
    options = parser.parse_args(argv)
    if options.continuations < 2:
        raise UserError("--continuations: at least 2, of which the variance is taken")
    run_dir = find_run(options.root, options.run)
    config = resolve(read_config(run_dir), detect()).config
    if config.algorithm.value is None:
        raise UserError(f"{run_dir.name} has no value model")
    if options.again:
        return _again(run_dir, config, options.again, as_json=options.json)
    if config.environment is not None:
        raise UserError(f"{run_dir.name} has an environment, without which answers are others")
    steps = sorted((run_dir / "checkpoints").glob("step_*"), key=lambda p: int(p.name[5:]))
    chosen = [p for p in steps if options.step in (None, int(p.name[5:]))]
    if not chosen:
        there = ", ".join(p.name for p in steps) or "none"
        raise UserError(f"{run_dir.name} has no checkpoint of update {options.step}: {there}")
    checkpoint = chosen[-1]
    model = config.model.model_copy(update={"path": str(checkpoint / POLICY)})
    sampling = config.model_copy(update={"model": model})
    held, prefixes = asyncio.run(
        answers_of(sampling, options.prompts, options.prefixes, options.continuations, options.seed)
    )
    values, returns = values_of(config, run_dir, checkpoint, held)
    result = figures(held, prefixes, values, returns)
    result = {"run": run_dir.name, "checkpoint": checkpoint.name, **result}
    sample = critic_sample(run_dir, 1, int(checkpoint.name[5:]))
    trained = worth(sample.tokens, sample.cuts)
    result["advantage against return"] = trained._asdict()
    lines = [f"{name:<28} {value}" for name, value in result.items()]
    print(json.dumps({"name": "critic", **result}) if options.json else "\n".join(lines))
    return 0


def _again(run_dir: Path, config: RunConfig, wanted: Sequence[str], *, as_json: bool) -> int:
    """Compare value models on the batches of the run."""
    _join(config)
    found = {}
    for text in wanted:
        table = config.model_dump(mode="json")
        merge_overrides(table, [] if text == "-" else text.split(","))
        record = found[text] = critic_record(run_dir, RunConfig.model_validate(table))
        if not as_json:
            print(f"{text}\n  explained  {record['explained']}\n  seconds    {record['seconds']}")
    if as_json:
        print(json.dumps({"name": "critic", "run": run_dir.name, "again": found}))
    return 0


def _join(config: RunConfig) -> None:
    """Join a process group of one rank."""
    torch.set_num_threads(config.learner.threads)
    join_ranks(rank=0, world_size=1, port=free_port(), device=torch.device("cpu"))


def figures(
    held: Sequence[HeldOutAnswer],
    prefixes: Sequence[ContinuedPrefix],
    values: Floats,
    returns: Floats,
) -> dict[str, Any]:
    """Return the printed figures."""
    lengths = np.array([len(h.ids) for h in held])
    owner = np.repeat([h.prompt for h in held], lengths)
    count = max(h.prompt for h in held) + 1
    quarter = np.concatenate([4 * np.arange(n) // n for n in lengths])
    by_answer = np.repeat(1.0 / lengths, lengths)
    cut_quarter = np.array([4 * c.tokens // len(c.answer.ids) for c in prefixes])
    cut_by_answer = np.array([1.0 / len(c.answer.ids) for c in prefixes])

    def share(weights: Floats) -> list[float]:
        whole = explained(values, returns, weights)
        low, high = interval(lambda n: explained(values, returns, weights * n[owner]), count)
        return [round(x, 3) for x in (whole, low, high)]

    def most(weights: Floats) -> list[float]:
        chosen = np.flatnonzero(weights)
        some = [(prefixes[i].answer.prompt, prefixes[i].returns) for i in chosen]
        if not some:
            return []
        whole, own = attainable(some, weights[chosen]), attainable_interval(some, weights[chosen])
        return [round(x, 3) for x in (whole, *own)]

    found: dict[str, Any] = {
        "answers": len(held), "tokens": int(lengths.sum()), "mean return": round(
            float(np.mean([h.score for h in held])), 3
        ),
        "explained variance": share(np.ones(owner.size)),
        "attainable share": most(np.ones(len(prefixes))),
        "by answers": share(by_answer),
        "attainable, by answers": most(cut_by_answer),
    }  # fmt: skip
    for q in range(4):
        found[f"quarter {q + 1}"] = share((quarter == q).astype(float))
        found[f"attainable, quarter {q + 1}"] = most((cut_quarter == q).astype(float))
    model, reach = found["explained variance"][0], found["attainable share"][0]
    found["of the attainable"] = round(model / reach, 3) if reach else None
    return found
