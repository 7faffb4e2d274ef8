"""One trajectory, as long as a run allows, through a learner of its own: `python -m
tests.learner.memory_worker RUN_DIR PORT`.

Writes to standard output how many bytes became resident at most in its policy update and in its
value update, beyond what a learner has that did one update of short answers.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from msgspec.structs import replace

from headrace.config.sections.run import RunConfig
from headrace.protocol.messages.batches import BatchSequence, PolicyWindow, Shard, ValueTrajectory
from headrace.protocol.token_spans import Reward, Span
from learner.models.deepspeed_engine import join_ranks
from learner.process.trainer import Trainer
from tests.learner.recorded import VOCABULARY, batch_of, record

CPU = torch.device("cpu")


def longest(config: RunConfig) -> Shard:
    """The last window of a finished answer of the greatest length, and the whole answer."""
    length = config.task.max_response_length
    ids = np.random.default_rng(0).integers(3, VOCABULARY, config.longest)
    rewards, start = [Reward(1.0, length - 1)], length - config.window
    sequence = BatchSequence(
        trajectory_id=0,
        group_id=0,
        token_ids=ids.astype(np.int32),
        opening=config.task.max_prompt_length,
        sampled=[(0, length)],
    )
    window = PolicyWindow(
        window_id=0,
        trajectory_id=0,
        sequence=0,
        start=start,
        end=length,
        length=length,
        logprobs=np.full(config.window, -3.4, np.float32),
        loss_weights=np.ones(config.window, np.float32),
        spans=[Span(1, start, length)],
        rewards=rewards,
        finished=True,
        correct=True,
    )
    value = ValueTrajectory(
        trajectory_id=0,
        sequence=0,
        length=length,
        rewards=rewards,
        logprobs=np.zeros(0, np.float32),
    )
    return Shard(sequences=[sequence], windows=[window], values=[value])


def resident(line: str) -> int:
    """Bytes of a line of this process's status."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(row.split()[1]) for row in status if row.startswith(line)) * 1024


def peak(action: Callable[[], object]) -> int:
    """The most bytes that were resident during an action."""
    Path("/proc/self/clear_refs").write_text("5")
    action()
    return resident("VmHWM:")


def main() -> None:
    """Measure and write."""
    run_dir, port = Path(sys.argv[1]), int(sys.argv[2])
    config = RunConfig.model_validate_json((run_dir / "resolved.json").read_text())
    torch.set_num_threads(1)
    join_ranks(rank=0, world_size=1, port=port, device=CPU)
    trainer = Trainer(config, run_dir, rank=0, device=CPU)

    def train(shard: Shard, update: int) -> None:
        sent = batch_of(shard, update=update)
        assert trainer.train(sent.batch, sent.shards[0], None).skipped is None

    train(record(seed=0), 1)
    before, whole = resident("VmRSS:"), longest(config)
    policy = peak(lambda: train(replace(whole, values=[]), 2)) - before
    value = peak(lambda: train(replace(whole, windows=[]), 3)) - before
    print(json.dumps({"policy": policy, "value": value}))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
