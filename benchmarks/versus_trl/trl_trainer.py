"""TRL's GRPO trainer on one job of `headrace bench trl`, in TRL's own environment.

In: the file of a `TrlJob`. Out, on standard output, one JSON object per line: `evaluation` with an
evaluation's figures, named as those of our runs are, and at the end `result`. Output of libraries
goes to standard error. With several processes the first one prints.

The clock is ours: loading, evaluations and what comes after the last step are not on it.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list, gather_object
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.versus_trl.trl_job import TrlJob, is_correct

Say = Callable[[dict[str, Any]], None]
Rows = list[dict[str, str]]

EVALUATED_AT_ONCE = 256
EVALUATION_SEED = 0
VERSIONS = ("trl", "transformers", "torch")


class TrlReward:
    """Reward function of training, which also counts the sampled tokens."""

    __name__ = "correct"

    def __init__(self, job: TrlJob) -> None:
        self._job = job
        self.ends: set[int] = set()
        self.tokens = 0

    def __call__(
        self, completions: list[str], completion_ids: list[list[int]], answer: list[str], **_: Any
    ) -> list[float]:
        """Return one reward per completion."""
        job = self._job
        self.tokens += sum(map(len, completion_ids))
        return [
            job.correct_reward if self.right(text, ids, wanted) else job.wrong_reward
            for text, ids, wanted in zip(completions, completion_ids, answer, strict=True)
        ]

    def right(self, text: str, ids: list[int], answer: str) -> bool:
        """Return whether a completion ended by itself with the right answer."""
        finished = bool(ids) and ids[-1] in self.ends
        return is_correct(text, answer, finished=finished, marker=self._job.marker)


class TrlRunCallback(TrainerCallback):
    """Callback for the clock, the evaluations and the end of a run."""

    def __init__(self, job: TrlJob, scorer: TrlReward, held_out: Rows, say: Say) -> None:
        self._job, self._scorer, self._held_out, self._say = job, scorer, held_out, say
        self.trainer: Any = None
        self.updates = 0
        self.train_s = 0.0
        self._since = 0.0
        self._accuracies: list[float] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._job.evaluate_before:
            self._evaluate("before")
        self._start()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.updates, rest = divmod(state.global_step, self._job.steps_an_update)
        if rest or self.updates == self._job.updates:
            return
        every = self._job.every_updates
        if every is not None and self.updates % every == 0:
            self._stop()
            self._evaluate("during")
            self._start()
        # All processes stop at the same step.
        over = self._job.limit_s <= self.train_s + time.perf_counter() - self._since
        if self._arrived() or broadcast_object_list([over])[0]:
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._stop()
        if self._job.evaluate_after:
            self._evaluate("after")

    def _arrived(self) -> bool:
        last, wanted = self._accuracies[-2:], self._job.accuracy
        return wanted is not None and len(last) == 2 and min(last) >= wanted

    def _start(self) -> None:
        self.trainer.accelerator.wait_for_everyone()
        self._since = time.perf_counter()

    def _stop(self) -> None:
        self.train_s += time.perf_counter() - self._since

    def _evaluate(self, label: str) -> None:
        began = time.perf_counter()
        verdicts = self._answers()
        accuracy = sum(right for right, _ in verdicts) / len(verdicts)
        if label == "during":
            self._accuracies.append(accuracy)
        lengths = [length for _, length in verdicts]
        figures = {
            "label": label,
            "update": self.updates,
            "version": self.updates,
            "train_time_s": self.train_s,
            "num_prompts": len(verdicts),
            "accuracy": accuracy,
            "response_length": sum(lengths) / len(lengths),
            "max_response_length": max(lengths),
            "at": time.time(),
            "seconds": time.perf_counter() - began,
        }
        self._say({"evaluation": figures})

    def _answers(self) -> list[tuple[bool, int]]:
        """Sample an answer to each held-out prompt; return verdicts and numbers of tokens."""
        accelerator, tokenizer = self.trainer.accelerator, self.trainer.processing_class
        mine = self._held_out[accelerator.process_index :: accelerator.num_processes]
        model = accelerator.unwrap_model(self.trainer.model)
        model.eval()
        verdicts: list[tuple[bool, int]] = []
        # Training draws the same numbers as without evaluations.
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(EVALUATION_SEED + accelerator.process_index)
            for first in range(0, len(mine), EVALUATED_AT_ONCE):
                rows = mine[first : first + EVALUATED_AT_ONCE]
                prompts = tokenizer(
                    [row["prompt"] for row in rows],
                    return_tensors="pt", padding=True, padding_side="left",
                )  # fmt: skip
                whole = model.generate(
                    input_ids=prompts["input_ids"],
                    attention_mask=prompts["attention_mask"],
                    generation_config=self.trainer.generation_config,
                )
                sampled = whole[:, prompts["input_ids"].shape[1] :].tolist()
                verdicts += [
                    self._verdict(ids, row["answer"], tokenizer)
                    for ids, row in zip(sampled, rows, strict=True)
                ]
        model.train()
        return list(gather_object(verdicts))

    def _verdict(self, ids: list[int], answer: str, tokenizer: Any) -> tuple[bool, int]:
        ends = (place + 1 for place, token in enumerate(ids) if token in self._scorer.ends)
        ids = ids[: next(ends, len(ids))]
        text = tokenizer.decode(ids, skip_special_tokens=True)
        return self._scorer.right(text, ids, answer), len(ids)


def read_rows(path: str) -> Rows:
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def train(job: TrlJob, say: Say) -> None:
    scorer = TrlReward(job)
    course = TrlRunCallback(job, scorer, read_rows(job.held_out_rows), say)
    trainer = GRPOTrainer(
        model=job.model,
        reward_funcs=scorer,
        args=GRPOConfig(**job.arguments),
        train_dataset=Dataset.from_list(read_rows(job.train_rows)),
        callbacks=[course],
    )
    course.trainer = trainer
    scorer.ends.update(trainer.eos_token_ids)
    trainer.train()
    result = {
        "updates": course.updates,
        "train_time_s": course.train_s,
        "tokens": sum(gather_object([scorer.tokens])),
        "versions": {name: version(name) for name in VERSIONS},
    }
    say({"result": result})


def answer(path: Path) -> None:
    """Read the job, train, print the results."""
    lines = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    speaks = os.environ.get("RANK", "0") == "0"

    def say(message: dict[str, Any]) -> None:
        if speaks:
            lines.write(json.dumps(message) + "\n")

    train(TrlJob(**json.loads(path.read_text(encoding="utf-8"))), say)


if __name__ == "__main__":
    answer(Path(sys.argv[1]))
