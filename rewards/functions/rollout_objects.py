"""A response as the object that a system hands to its reward functions.

In: the prompt, the response, the right answer and the row. Out: slime's sample, rLLM's task and
episode, verifiers' state, each with what a rollout of one turn has. What a function looks for and
is not there raises, so that the scoring fails with its name.
"""

import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any


def sample_of(
    prompt: Any, response: str, truth: Any, columns: Mapping[str, Any], *, num_tokens: int
) -> Any:
    """slime's sample, of its own class where the function's module has imported that. Its metadata
    are the row's column of that name, else the row."""
    given = columns.get("metadata")
    made = getattr(sys.modules.get("slime.utils.types"), "Sample", SimpleNamespace)
    return made(
        prompt=prompt,
        response=response,
        label=truth,
        metadata=given if isinstance(given, dict) else dict(columns),
        response_length=num_tokens,
        reward=None,
    )


def task_of(prompt: Any, truth: Any, columns: Mapping[str, Any]) -> SimpleNamespace:
    """rLLM's task: the row, with its `ground_truth`."""
    metadata = {"ground_truth": truth, **columns}
    return SimpleNamespace(id=str(columns.get("id", "")), instruction=prompt, metadata=metadata)


def episode_of(prompt: Any, response: str) -> SimpleNamespace:
    """rLLM's episode with one trajectory of one step."""
    step = SimpleNamespace(
        input=prompt, output=response, model_response=response, action=response, metadata={}
    )
    trajectory = SimpleNamespace(name="default", steps=[step], output=response, metadata={})
    return SimpleNamespace(trajectories=[trajectory], artifacts={"answer": response}, metadata={})


def state_of(
    prompt: Any,
    completion: Any,
    truth: Any,
    columns: Mapping[str, Any],
    info: Mapping[str, Any],
    *,
    finished: bool,
) -> dict[str, Any]:
    """verifiers' state after its end."""
    turn = {"prompt": prompt, "completion": completion, "is_truncated": not finished}
    return {
        "prompt": prompt,
        "completion": completion,
        "answer": columns.get("answer", truth),
        "task": columns.get("task", "default"),
        "info": info,
        "turn": 1,
        "trajectory": [turn],
        "is_completed": True,
        "is_truncated": not finished,
        "error": None,
    }
