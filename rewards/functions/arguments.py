"""The arguments that a reward function can receive about one response.

In: a ScoreItem. Out: facts by name, computed on demand, in the form in which a function's system
has them: texts, chat messages, or objects like those of a rollout of one turn. An object's missing
attribute raises, so that the scoring fails with its name.
"""

import json
import sys
from collections.abc import Callable, Mapping
from functools import cached_property
from operator import attrgetter
from types import MappingProxyType, SimpleNamespace
from typing import Any, Literal

from headrace.protocol.messages.control import ScoreItem
from headrace.protocol.token_spans import Int32

Chat = Literal["never", "row", "always"]
"""Use of chat messages for prompt and completion: as the row's prompt, or always."""


class ScoringError(Exception):
    """A response has no score; `parts` are numbers to look at, such as a judge's tokens."""

    parts: Mapping[str, float] = MappingProxyType({})


class InvalidRewardError(ScoringError):
    """A response cannot be scored as the function asks, or what it returned is no reward."""


class ResponseFacts:
    """One response and its row."""

    def __init__(self, item: ScoreItem, chat: Chat) -> None:
        self.item = item
        self._chat = chat

    @cached_property
    def columns(self) -> dict[str, Any]:
        """The row's columns, the prompt's own apart."""
        return dict(json.loads(self.item.info))

    @cached_property
    def _messages(self) -> list[dict[str, Any]] | None:
        if self._chat == "never":
            return None
        if self.item.messages.startswith("["):
            return list(json.loads(self.item.messages))
        if self._chat == "always":
            return [{"role": "user", "content": self.item.prompt}]
        return None

    @property
    def prompt(self) -> str | list[dict[str, Any]]:
        """The prompt: the row's messages, or the text as the policy sees it."""
        return self.item.prompt if self._messages is None else self._messages

    @property
    def completion(self) -> str | list[dict[str, Any]]:
        """The response without special tokens except tags."""
        if self._messages is None:
            return self.item.text
        return [{"role": "assistant", "content": self.item.text}]

    @property
    def query(self) -> str:
        """Prompt and response as one text."""
        return self.item.prompt + self.item.text

    @property
    def truth(self) -> Any:
        """The ground truth of verl or SkyRL as the row has it, else the answer as text."""
        for column in ("reward_model", "reward_spec"):
            nested = self.columns.get(column)
            if isinstance(nested, Mapping) and "ground_truth" in nested:
                return nested["ground_truth"]
        return self.item.answer

    @property
    def info(self) -> dict[str, Any]:
        """The row's column `info`, where it has one that is an object, else all its columns."""
        given = self.columns.get("info")
        if isinstance(given, str):
            # verifiers lets a dataset hold it as text.
            try:
                given = json.loads(given)
            except ValueError:
                given = None
        return given if isinstance(given, dict) else self.columns

    @property
    def task_info(self) -> dict[str, Any]:
        """The row as one object."""
        named = {"question": self.item.prompt, "ground_truth": self.truth}
        return {**named, **self.columns}

    @cached_property
    def state(self) -> dict[str, Any]:
        """verifiers' state after its end, one for all functions of a rubric, which may write it."""
        both = {"prompt": self.prompt, "completion": self.completion}
        is_truncated = not self.item.finished
        return {
            **both,
            "answer": self.columns.get("answer", self.truth),
            "task": self.columns.get("task", "default"),
            "info": self.info,
            "turn": 1,
            "trajectory": [{**both, "is_truncated": is_truncated}],
            "is_completed": True,
            "is_truncated": is_truncated,
            "error": None,
        }

    @property
    def sample(self) -> Any:
        """slime's sample, of its own class if imported; `metadata` is that column or the row."""
        given = self.columns.get("metadata")
        made = getattr(sys.modules.get("slime.utils.types"), "Sample", SimpleNamespace)
        return made(
            prompt=self.prompt,
            response=self.item.text,
            label=self.truth,
            metadata=given if isinstance(given, dict) else dict(self.columns),
            response_length=self.item.num_tokens,
            reward=None,
        )

    @property
    def rllm_task(self) -> SimpleNamespace:
        """rLLM's task: the row, with its `ground_truth`."""
        metadata = {"ground_truth": self.truth, **self.columns}
        name = str(self.columns.get("id", ""))
        return SimpleNamespace(id=name, instruction=self.prompt, metadata=metadata)

    @property
    def episode(self) -> SimpleNamespace:
        """rLLM's episode with one trajectory of one step."""
        text = self.item.text
        step = SimpleNamespace(
            input=self.prompt, output=text, model_response=text, action=text, metadata={}
        )
        trajectory = SimpleNamespace(name="default", steps=[step], output=text, metadata={})
        return SimpleNamespace(trajectories=[trajectory], artifacts={"answer": text}, metadata={})

    @property
    def prompt_ids(self) -> list[int]:
        """Token ids of the prompt."""
        return _ids(self.item.prompt_ids)

    @property
    def completion_ids(self) -> list[int]:
        """The token ids that were sampled, end token included."""
        return _ids(self.item.completion_ids)


def _ids(array: Int32 | None) -> list[int]:
    if array is None:
        raise InvalidRewardError("no token ids came along: set reward.token_ids = true")
    return [int(token) for token in array.tolist()]


RESPONSES = (
    "completion",
    "response",
    "solution_str",
    "predict_str",
    "model_output",
    "llm_solution",
    "action",
)
"""Names under which functions take the response, the most specific first."""

IDS = ("prompt_ids", "completion_ids")
TRUTHS = ("answer", "ground_truth", "label", "solution")
"""Names of the right answer, beside that of its column."""

Fact = Callable[[ResponseFacts], Any]
_COMPUTED = (
    "prompt", "query", "prompt_ids", "completion_ids", "info", "state", "task_info", "sample",
    "rllm_task", "episode",
)  # fmt: skip
FACTS: dict[str, Fact] = {
    **{name: attrgetter(name) for name in _COMPUTED},
    "extra_info": lambda facts: {},
    "task": lambda facts: "default",
    "args": lambda facts: SimpleNamespace(),
    **dict.fromkeys(TRUTHS, attrgetter("truth")),
}
"""Values of arguments, by name, that have no column, or belong to their system anyway."""

PLURALS = {
    **{f"{name}s": name for name in RESPONSES},
    **{f"{name}s": name for name in ("prompt", "answer", "ground_truth", "label", "solution")},
    "queries": "query",
    "data_sources": "data_source",
    "extra_infos": "extra_info",
    "states": "state",
    "infos": "info",
}
"""Names of lists with one entry per response."""
