"""Rows to judge, and what judges them."""

import json
from typing import Any

from headrace.protocol.messages.control import ScoreItem
from rewards.functions.results import Verdict
from rewards.kinds import load
from rewards.verifier import Verifier


def verifier(kind: str, **options: Any) -> Verifier:
    """A verifier of a kind, with options as a configuration file has them."""
    module = load(kind)
    built: Verifier = module.build(module.Options.model_validate(options))
    return built


def judged(
    verify: Verifier, text: str, answer: str, *, finished: bool = True, **columns: Any
) -> Verdict:
    """The verdict on a response; `finished`: it has an end."""
    item = ScoreItem(
        trajectory_id=0,
        prompt="",
        text=text,
        answer=answer,
        finished=finished,
        num_tokens=1,
        info=json.dumps(columns),
    )
    return verify(item)
