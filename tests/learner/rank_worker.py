"""One learner rank of a test, in a process of its own: `run_rank`.

For ZeRO 0 to 3: three updates on recorded batches that rank 0 hands out in parts. On one rank and
two, for ZeRO 0 and 2, further ones up to ten, and, with fresh engines, three of which the second
has a NaN in the last rank's shard. At ZeRO 3 as on GPUs: with activation checkpointing, logits in
parts, and weights that leave after each update. Writes the weights and what happened into OUT.
"""

import json
import weakref
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from msgspec.structs import replace
from safetensors.torch import save_file

from headrace.config.sections.algorithm import AlgorithmConfig
from headrace.config.sections.learner import LearnerConfig, OptimizerConfig
from headrace.config.sections.model import ModelConfig
from headrace.protocol.messages.batches import Shard
from headrace.protocol.messages.control import Batch, BatchPart, Message, Shutdown
from learner.algorithms.registry import build_algorithm
from learner.batching.shards import merge_shards
from learner.device import RankContext
from learner.models.deepspeed_engine import DeepSpeedEngine, join_ranks
from learner.models.forward import PolicyNetwork, ValueNetwork
from learner.models.loading import load_critic, load_policy
from learner.process.rank_broadcast import RankRelay
from learner.updates.update import Updater
from tests.learner.recorded import Sent, batch_of, record

CPU = torch.device("cpu")
Stage = Literal[0, 1, 2, 3]
ALL_STAGES: tuple[Stage, ...] = (0, 1, 2, 3)
STAGES: tuple[Stage, ...] = (0, 2)
EARLY, UPDATES = 3, 10
ALGORITHM = AlgorithmConfig.model_validate(
    {
        "advantages": {"kind": "egae", "length_adaptive_alpha": 0.05},
        "value": {"value_clip_low": 0.5, "value_clip_high": 0.6},
        "ratio": {"kind": "decoupled"},
        "penalties": {"positive_nll_coef": 0.1},
    }
)


def updater(
    folder: Path, stage: Stage, rank: int, world: int
) -> tuple[Updater, list[DeepSpeedEngine]]:
    """A fresh policy and critic."""
    settings = OptimizerConfig(lr=1e-3, warmup_steps=2, minibatches=2, epochs=2, grad_clip=0.5)
    config = LearnerConfig(
        ranks=world, zero_stage=stage, precision="float32", policy=settings, value=settings
    )
    models = ModelConfig(path=str(folder))
    loaded = (
        load_policy(models, dtype=torch.float32, device=CPU),
        load_critic(models, dtype=torch.float32, device=CPU),
    )
    for model in loaded if stage == 3 else ():
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    place = RankContext(device=CPU, rank=rank, world=world, budget=100, forward_together=stage == 3)
    policy = PolicyNetwork(loaded[0], logits_chunk=16 if stage == 3 else 4096)
    policy.most = place.most
    critic = ValueNetwork(loaded[1])
    engines = [DeepSpeedEngine(network, settings, config) for network in (policy, critic)]
    algorithm = build_algorithm(ALGORITHM, window=16)
    return Updater(algorithm, engines[0], engines[1], config, place), engines


def recorded(update: int, world: int, parts: int = 1) -> Sent:
    """The second rank has nothing in one of the updates; in some the policy and tools take
    turns."""
    shard = record(seed=update, trajectories=1 if update == 4 else 12, turns=update % 2 == 0)
    return batch_of(shard, update=update, version=update, ranks=world, parts=parts, value_epochs=2)


def poisoned(sent: Sent) -> Sent:
    """A NaN in a trained token of the last rank's first window."""
    windows = list(sent.shards[-1].windows)
    logprobs, weights = windows[0].logprobs.copy(), windows[0].loss_weights.copy()
    first = int(np.flatnonzero(logprobs)[0])
    logprobs[first], weights[first] = np.nan, 1
    windows[0] = replace(windows[0], logprobs=logprobs, loss_weights=weights)
    return sent._replace(shards=[*sent.shards[:-1], replace(sent.shards[-1], windows=windows)])


class Wire:
    """The coordinator's side of rank 0: the header, then all parts, foreign ones among them."""

    def __init__(self, sent: Sent) -> None:
        stray = BatchPart(batch_id=sent.batch.batch_id - 1, rank=0, index=0, shard=sent.shards[0])
        twice = sent.parts()
        unknown = replace(twice[0], rank=99)
        self._messages = [stray, unknown, *(part for p in twice for part in (p, p))]
        self._passed_on: list[weakref.ref[Any]] = []

    def hear(self) -> Message:
        """The next part; those handed to other ranks before it are gone."""
        assert not any(ref() is not None for ref in self._passed_on)
        message = self._messages.pop(0)
        assert isinstance(message, BatchPart)
        if message.rank == 1:
            copied = [replace(s, token_ids=s.token_ids.copy()) for s in message.shard.sequences]
            message = replace(message, shard=replace(message.shard, sequences=copied))
            self._passed_on += [weakref.ref(s.token_ids) for s in copied]
        return message


def over_the_relay(relay: RankRelay, sent: Sent, rank: int) -> tuple[Batch, Shard]:
    """The header and this rank's share of what rank 0 hears."""
    header = relay.share(sent.batch if rank == 0 else None)
    assert isinstance(header, Batch)
    parts = relay.deliver(header, Wire(sent).hear if rank == 0 else None)
    assert isinstance(parts, list)
    assert len(parts) == header.parts[rank]
    return header, merge_shards(parts)


def given_up(relay: RankRelay, sent: Sent, rank: int) -> bool:
    """Whether all ranks hear of what came instead of the rest of a batch."""
    header = relay.share(sent.batch if rank == 0 else None)
    assert isinstance(header, Batch)
    messages = [*sent.parts()[:-1], Shutdown(reason="enough")]
    heard = relay.deliver(header, (lambda: messages.pop(0)) if rank == 0 else None)
    return heard == Shutdown(reason="enough")


def weights_of(engines: list[DeepSpeedEngine]) -> dict[str, torch.Tensor]:
    """All parameters, whole, as they are now."""
    weights = {}
    for i, engine in enumerate(engines):
        for name, x in engine.whole_state(engine.network, keep=True).items():
            weights[f"{i}.{name}"] = x.clone()
    return weights


def run_rank(model: Path, out: Path, rank: int, world: int, port: int) -> None:
    """Run and write into `out`."""
    torch.set_num_threads(1)
    join_ranks(rank=rank, world_size=world, port=port, device=CPU)
    relay = RankRelay(rank=rank, world=world)
    for stage in ALL_STAGES:
        is_long = stage in STAGES and world <= 2
        whole, engines = updater(model, stage, rank, world)
        metrics = []
        for update in range(1, (UPDATES if is_long else EARLY) + 1):
            sent = recorded(update, world, parts=1 + update % 3)
            metrics.append(whole.run(*over_the_relay(relay, sent, rank)).metrics)
            if update == EARLY or stage == 3:
                save_file(weights_of(engines), out / f"early-{stage}-{rank}.safetensors")
        if not is_long:
            continue
        save_file(weights_of(engines), out / f"weights-{stage}-{rank}.safetensors")

        skipping, engines = updater(model, stage, rank, world)
        log = []
        for update in (1, 2, 3):
            sent = recorded(update, world)
            if update == 2:
                sent = poisoned(sent)
            before = [p.detach().clone() for p in engines[0].network.parameters()]
            outcome = skipping.run(sent.batch, sent.shards[rank])
            moved = any(
                not torch.equal(a, b)
                for a, b in zip(before, engines[0].network.parameters(), strict=True)
            )
            finite = all(bool(p.isfinite().all()) for p in engines[0].network.parameters())
            log.append([outcome.skipped, outcome.policy_moved, moved, finite, engines[0].steps])
        (out / f"log-{stage}-{rank}.json").write_text(json.dumps([metrics, log]))
    (out / f"given-up-{rank}.json").write_text(
        json.dumps(given_up(relay, recorded(1, world, parts=3), rank))
    )
    torch.distributed.destroy_process_group()
