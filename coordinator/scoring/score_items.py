"""Items for reward workers: answers, groups of them, lines of unfinished answers.

In: trajectories. Out: score items. Promise: token ids are those that were sampled, and come along
where a function needs them, and with lines always.
"""

from collections.abc import Sequence
from itertools import islice

import msgspec

from coordinator.dispatch.prompts import Prompts
from coordinator.line_rewards.line_ends import pieces_up_to, sampled_index
from headrace.config.sections.reward import RewardConfig
from headrace.protocol.messages.control import ModelVersion, ScoreItem
from headrace.protocol.token_spans import Int32
from headrace.trajectory.account import Account
from headrace.trajectory.trajectories import Trajectory

READS_CHATS = ("function", "judge", "pairwise", "bradley_terry")
"""Kinds of rewards that read the messages of a prompt that the policy reads as a chat."""


class ScoreItems:
    """Factory of score items, which decodes their texts."""

    def __init__(self, config: RewardConfig, account: Account, prompts: Prompts) -> None:
        self._account, self._prompts = account, prompts
        self._sources, self._with_ids = config.each(), config.token_ids

    def whole(
        self, trajectory: Trajectory, source: str, model: ModelVersion | None = None
    ) -> ScoreItem:
        """Return the item of an ended answer, of an episode's last turn, for `model`."""
        own = trajectory.turn(-1) if trajectory.steps else trajectory.answer_tokens()
        return self._item(trajectory, source, own, with_ids=self._with_ids, model=model)

    def group(
        self, siblings: Sequence[Trajectory], source: str, model: ModelVersion | None = None
    ) -> ScoreItem:
        """Return the item of all ended answers to a prompt."""
        first, ids = siblings[0], self._with_ids
        shared = self._item(first, source, first.tokens[:0], with_ids=ids, model=model)
        return msgspec.structs.replace(
            shared,
            trajectory_id=self._account.groups[first.group_id].trajectory_ids[0],
            unit="group",
            siblings=[self.whole(sibling, source) for sibling in siblings],
        )

    def lines(self, trajectory: Trajectory, source: str, positions: Sequence[int]) -> ScoreItem:
        """Return the item of the lines that end at these positions, with all before."""
        *ends, begin = sampled_index(trajectory, [*positions, trajectory.lines_through])
        sampled = trajectory.sampled_tokens()[: ends[-1] + 1]
        item = self._item(trajectory, source, sampled, with_ids=True)
        counts = [self._prompts.decode(p).count("\n") for p in pieces_up_to(sampled, ends, begin)]
        # A token may hold the next line's blanks, and a decoder drop those that a text begins with.
        *closed, rest = item.text.split("\n")
        new = iter(closed[len(closed) - sum(counts) :])
        texts = ["".join(f"{line}\n" for line in islice(new, count)) or rest for count in counts]
        return msgspec.structs.replace(item, unit="line", line_ends=ends, lines=texts)

    def _item(
        self, trajectory: Trajectory, source: str, sampled: Int32, *, with_ids: bool,
        model: ModelVersion | None = None,
    ) -> ScoreItem:  # fmt: skip
        group = self._account.groups[trajectory.group_id]
        messages = group.messages if self._sources[source].kind in READS_CHATS else ""
        return ScoreItem(
            trajectory_id=trajectory.trajectory_id,
            prompt=group.prompt,
            text=self._prompts.decode(sampled),
            answer=group.answer,
            finished=trajectory.status == "finished",
            num_tokens=sampled.size,
            info=group.info,
            messages=messages,
            media=self._prompts.media_folder if messages and group.media else "",
            prompt_ids=trajectory.prompt_tokens() if with_ids else None,
            completion_ids=sampled if with_ids else None,
            source=source,
            model=model,
        )
