"""Prompts from the task to token ids: the source of new groups.

Comes in: the task's rows by position, the policy's tokenizer. Goes out: GroupIssued records. A
prompt over the length limit is skipped and counted. Positions are consumed in order, so one
integer (the next position) is all that a resume needs.
"""

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from coordinator.line_rewards.line_ends import LineTokens
from headrace.config.sections.run import RunConfig
from headrace.data.anchors import Anchor, read_anchors
from headrace.data.tokenizer import load_tokenizer, vocabulary_size
from headrace.errors import UserError
from headrace.protocol.messages.control import Purpose
from headrace.protocol.records.record_types import GroupIssued
from headrace.protocol.token_spans import Int32
from tasks.datasets.source import PROCEDURAL_TASKS, PromptSource, build_source
from tasks.rows import Row, other_than_text

MAX_SKIPS = 10_000


def trajectory_seed(seed: int, purpose: Purpose, position: int, member: int) -> int:
    """Seed of one trajectory's sampling: a hash, so that runs agree and members differ."""
    text = f"{seed}/{purpose}/{position}/{member}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "big") >> 1


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt as text and as token ids."""

    text: str
    ids: Int32


class Prompts:
    """Rows to groups, text to ids and back."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._tokenizer: Any = load_tokenizer(
            config.model.path, trust_remote_code=config.model.trust_remote_code
        )
        self.vocabulary = _vocabulary(config, len(self._tokenizer))
        """Token ids are below it."""
        self._asides = CriticPrompts(config, self._tokenizer)
        self._source: PromptSource = build_source(config.task, config.seed)
        self.skipped = 0
        if config.task.kind != "dataset":
            task = PROCEDURAL_TASKS[config.task.kind]
            self._check_labels(task.draw(Random(0), config.task.max_terms), config.task.max_terms)

    def encode(self, row: Row) -> EncodedPrompt:
        """The prompt as the policy sees it: through the chat template if there is to be one."""
        if part := other_than_text(row.prompt):
            raise UserError(
                f"row {row.id}: its prompt has a part of type {part!r}, and the policy reads text "
                "alone; take such rows out of the dataset"
            )
        mode = self._config.model.chat_template
        if isinstance(row.prompt, str) and mode != "always":
            return EncodedPrompt(row.prompt, _ids(self._tokenizer(row.prompt)["input_ids"]))
        if mode == "never":
            raise UserError(
                f"row {row.id} has chat messages but model.chat_template is 'never'; use 'auto'"
            )
        messages = (
            row.prompt
            if not isinstance(row.prompt, str)
            else [{"role": "user", "content": row.prompt}]
        )
        text = self._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        return EncodedPrompt(
            text, _ids(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        )

    def decode(self, token_ids: Int32) -> str:
        """Response text without special tokens."""
        return str(self._tokenizer.decode(token_ids.tolist(), skip_special_tokens=True))

    def line_tokens(self) -> LineTokens:
        """The tokens that end lines; each id of the vocabulary is decoded once."""
        ids = [[token] for token in range(len(self._tokenizer))]
        texts = self._tokenizer.batch_decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return LineTokens.of(texts, self.vocabulary)

    def _check_labels(self, longest: str, terms: int) -> None:
        """A small vocabulary may lack the labels of the longest prompts."""
        unknown = self._tokenizer.unk_token_id
        if unknown is not None and unknown in self._tokenizer(longest)["input_ids"]:
            raise UserError(
                f"the tokenizer of {self._config.model.path} lacks labels of problems with "
                f"{terms} terms: lower task.max_terms or take a model made for them"
            )

    def next_group(self, position: int, group_id: int, trajectory_id: int) -> GroupIssued:
        """The group of the first usable row at or after `position`."""
        for skip in range(MAX_SKIPS):
            row = self._source.row_at(position + skip)
            encoded = self.encode(row)
            if encoded.ids.size <= self._config.task.max_prompt_length:
                return self._group(row, encoded, position + skip, group_id, trajectory_id, "train")
            self.skipped += 1
        raise UserError(
            f"{MAX_SKIPS} prompts in a row are longer than task.max_prompt_length="
            f"{self._config.task.max_prompt_length} tokens; raise it or filter the dataset"
        )

    def eval_groups(
        self, group_id: int, trajectory_id: int, lengths: Mapping[int, int] | None = None
    ) -> list[GroupIssued]:
        """One trajectory for every held-out prompt, the same prompts and seeds every time. Those
        whose last response was longest, by `lengths` of positions, come first: begun last, they
        would keep everybody waiting."""
        found = []
        for position, row in enumerate(self._source.eval_rows(self._config.evaluation.num_prompts)):
            encoded = self.encode(row)
            if encoded.ids.size > self._config.task.max_prompt_length:
                self.skipped += 1
            else:
                found.append((position, row, encoded))
        if lengths:
            found.sort(key=lambda one: lengths.get(one[0], 0), reverse=True)
        return [
            self._group(row, encoded, position, group_id + i, trajectory_id + i, "eval")
            for i, (position, row, encoded) in enumerate(found)
        ]

    def _group(
        self,
        row: Row,
        encoded: EncodedPrompt,
        position: int,
        group_id: int,
        trajectory_id: int,
        purpose: Purpose,
    ) -> GroupIssued:
        size = self._config.schedule.num_generations if purpose == "train" else 1
        return GroupIssued(
            at=time.time(),
            group_id=group_id,
            prompt_id=row.id,
            position=position,
            purpose=purpose,
            prompt=encoded.text,
            answer=row.answer,
            info=json.dumps(row.info, default=str),
            messages="" if isinstance(row.prompt, str) else json.dumps(row.prompt),
            prompt_ids=encoded.ids,
            aside=self._asides.of(row, encoded.text),
            trajectory_ids=list(range(trajectory_id, trajectory_id + size)),
            seeds=[trajectory_seed(self._config.seed, purpose, position, i) for i in range(size)],
        )


def _vocabulary(config: RunConfig, known: int) -> int:
    """How many token ids the model knows: often more than its tokenizer names."""
    trust = config.model.trust_remote_code
    return max(known, vocabulary_size(config.model.path, trust_remote_code=trust))


def _ids(tokens: list[int]) -> Int32:
    return np.array(tokens, np.int32)


class CriticPrompts:
    """What the value model is told between a prompt and its answers: the anchor that they have to
    beat, of the row's source of rewards; cut where it is longer than an answer may be."""

    def __init__(self, config: RunConfig, tokenizer: Any) -> None:
        """UserError where a file of anchors cannot be read."""
        self._config, self._tokenizer = config, tokenizer
        self._files: dict[str, dict[str, Anchor]] = {}
        self._columns: dict[str, str] = {}
        if not config.algorithm.reads_anchors:
            return
        for name, source in config.reward.each().items():
            if source.kind == "pairwise" and (file := source.options.get("anchors")):
                self._files[name] = read_anchors(Path(file).expanduser())
            elif source.kind == "pairwise" and (column := source.options.get("column")):
                self._columns[name] = column

    def of(self, row: Row, prompt: str) -> Int32 | None:
        """Token ids, the end token last, of a row whose prompt the policy sees as `prompt`; None
        where there is nothing to tell."""
        if not self._files and not self._columns:
            return None
        text = self._anchor(row, prompt)
        if not text:
            return None
        ids = list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        if self._tokenizer.eos_token_id is not None:
            ids.append(int(self._tokenizer.eos_token_id))
        return np.array(ids[: self._config.task.max_response_length], np.int32)

    def _anchor(self, row: Row, prompt: str) -> str | None:
        reward = self._config.reward
        source = reward.route_of(self._config.task.kind, lambda: row.info)
        if source in self._files:
            found = self._files[source].get(prompt)
            return None if found is None else found.text
        text = row.info.get(self._columns.get(source or "", ""))
        return text if isinstance(text, str) else None
