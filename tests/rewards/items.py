"""Things to score, and what runs them."""

import json
from typing import Any

import numpy as np

from headrace.config.sections.reward import RewardConfig
from headrace.protocol.messages.control import ScoreItem

BEHAVE = "tests.rewards.misbehaviour:behave"


def item(
    text: str,
    *,
    answer: str = "7",
    trajectory_id: int = 0,
    finished: bool = True,
    info: str = "{}",
    chat: bool = False,
    ids: bool = False,
    source: str = "default",
) -> ScoreItem:
    return ScoreItem(
        trajectory_id=trajectory_id,
        prompt="3+4",
        text=text,
        answer=answer,
        finished=finished,
        num_tokens=len(text),
        info=info,
        messages=json.dumps([{"role": "user", "content": "3+4"}]) if chat else "",
        prompt_ids=np.array([3, 4], np.int32) if ids else None,
        completion_ids=np.arange(len(text), dtype=np.int32) if ids else None,
        source=source,
    )


def row(text: str, *, answer: str = "7", **columns: Any) -> ScoreItem:
    """A response to a prompt whose row has these columns."""
    return item(text, answer=answer, info=json.dumps(columns))


def user_function(**settings: object) -> RewardConfig:
    return RewardConfig.model_validate(
        {"kind": "function", "function": BEHAVE, "timeout_s": 1.0, **settings}
    )


def foreign_function(name: str, **settings: object) -> RewardConfig:
    """A function of `tests.rewards.foreign`."""
    return user_function(function=f"tests.rewards.foreign:{name}", **settings)


def foreign_functions(*names: str, **settings: object) -> RewardConfig:
    """Several, each with weight 1 or, written as `name*weight`, with another."""
    split = [name.partition("*") for name in names]
    entries = [
        {"name": f"tests.rewards.foreign:{name}", "weight": float(weight or 1)}
        for name, _, weight in split
    ]
    return user_function(function=None, functions=entries, **settings)
