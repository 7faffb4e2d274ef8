"""Reward functions in the style of other systems, and others that cannot be called at all."""

import asyncio
import re
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

Messages = list[dict[str, str]]

# -- TRL -------------------------------------------------------------------------------------------


def trl_length(completions: list[Any], **kwargs: Any) -> list[float]:
    """Longer is better."""
    return [float(len(completion)) for completion in completions]


def trl_ids(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
    """The number of tokens."""
    return [float(len(ids)) for ids in completion_ids]


def trl_truth(completions: list[str], ground_truth: list[str], **kwargs: Any) -> list[float]:
    """1 where the box holds the answer."""
    boxes = [re.search(r"\\boxed\{(.*?)\}", completion) for completion in completions]
    return [float(b is not None and b[1] == g) for b, g in zip(boxes, ground_truth, strict=True)]


def trl_format(completions: list[Messages], **kwargs: Any) -> list[float]:
    """1 for thoughts and an answer in their tags; chats only."""
    pattern = r"<think>.*?</think><answer>.*?</answer>"
    return [float(bool(re.fullmatch(pattern, c[0]["content"], re.DOTALL))) for c in completions]


def trl_math(
    prompts: list[Any], completions: list[str], task: list[str], **kwargs: Any
) -> list[float | None]:
    """One task of several; None for the others."""
    pairs = zip(completions, task, strict=True)
    return [float("7" in completion) if name == "math" else None for completion, name in pairs]


def trl_code(
    prompts: list[Any], completions: list[str], task: list[str], **kwargs: Any
) -> list[float | None]:
    """The other task."""
    pairs = zip(completions, task, strict=True)
    return [float("def" in completion) if name == "code" else None for completion, name in pairs]


async def trl_async(prompts: list[Any], completions: list[str], **kwargs: Any) -> list[float]:
    """Asks something slow."""
    await asyncio.sleep(0)
    return [0.25 for _ in completions]


def trl_open(completions: list[str], **kwargs: Any) -> list[float]:
    """Reads its column out of `kwargs`."""
    return [float(c == s) for c, s in zip(completions, kwargs["solution"], strict=True)]


# -- verl ------------------------------------------------------------------------------------------


def verl(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    assert data_source == "gsm8k"
    return float(solution_str == ground_truth)


def verl_gsm8k(
    solution_str: str,
    ground_truth: str,
    method: str = "strict",
    format_score: float = 0.0,
    score: float = 1.0,
) -> float:
    """A scorer whose options have the names that columns may have."""
    assert method == "strict"
    found = re.findall(r"#### (-?[0-9.,]+)", solution_str)
    if not found:
        return 0.0
    return score if found[-1] == ground_truth else format_score


def verl_dapo(
    solution_str: str, ground_truth: str, strict_box_verify: bool = False
) -> dict[str, Any]:
    """A dict with a text in it."""
    pred = solution_str.rpartition("Answer: ")[2].strip()
    right = pred == ground_truth
    return {"score": 1.0 if right else -1.0, "acc": right, "pred": pred}


def verl_geo3k(predict_str: str, ground_truth: str, use_boxed: bool = True) -> float:
    return 0.9 * float(ground_truth in predict_str) + 0.1 * float("<think>" in predict_str)


def verl_verify(model_output: str, ground_truth: str, timeout_score: float = 0) -> bool:
    return model_output.endswith(ground_truth)


def verl_targets(solution_str: str, ground_truth: dict[str, Any]) -> float:
    """Any of several answers."""
    return float(solution_str in ground_truth["target"])


def verl_extra(solution_str: str, ground_truth: str, extra_info: dict[str, Any]) -> float:
    return float(extra_info.get("index", -1))


def verl_tuple(model_output: str, ground_truth: str) -> tuple[bool, bool, str]:
    """Right, well formed, and what was found."""
    found = model_output.rpartition(" ")[2]
    return found == ground_truth, "=" in model_output, found


def verl_batch(
    data_sources: list[str],
    solution_strs: list[str],
    ground_truths: list[str],
    extra_infos: list[Any],
    **kwargs: Any,
) -> list[float]:
    return [float(s == g) for s, g in zip(solution_strs, ground_truths, strict=True)]


# -- OpenRLHF --------------------------------------------------------------------------------------


def openrlhf(queries: list[str], prompts: list[str], labels: list[str]) -> torch.Tensor:
    ends = [
        q.removeprefix(p) == label for q, p, label in zip(queries, prompts, labels, strict=True)
    ]
    return torch.tensor(ends, dtype=torch.float)


def openrlhf_logs(
    queries: list[str], prompts: list[str], labels: list[str], **kwargs: Any
) -> dict[str, Any]:
    rewards = openrlhf(queries, prompts, labels)
    lengths = torch.tensor([len(query) for query in queries])
    return {"rewards": rewards, "scores": rewards.clamp(0, 1), "extra_logs": {"length": lengths}}


# -- AReaL -----------------------------------------------------------------------------------------


def areal_gsm8k(
    prompt: str,
    completions: str,
    prompt_ids: list[int],
    completion_ids: list[int],
    answer: str,
    **kwargs: Any,
) -> int:
    return int(completions.endswith(answer) and len(completion_ids) > 0)


async def areal_async(
    prompt: str, completions: str, prompt_ids: list[int], completion_ids: list[int], **data: Any
) -> float:
    await asyncio.sleep(0)
    return float(data["level"]) * float(completions == data["answer"])


def areal_doc(completions: str, answer: str) -> float:
    """By its annotation the plural is one text."""
    return float(completions.upper().endswith(answer))


def areal_solutions(
    prompts: str,
    completions: str,
    prompt_ids: list[int],
    completion_ids: list[int],
    solutions: list[str],
    **kwargs: Any,
) -> float:
    """Any of several solutions; the plurals are what AReaL hands over by position."""
    return float(any(completions.endswith(s) for s in solutions) and prompts == "3+4")


def areal_agent(
    prompt_str: str,
    completion_str: str,
    input_tokens: list[int],
    output_tokens: list[int],
    **data: Any,
) -> float:
    """The names that its workflow has for the same."""
    return float(len(output_tokens)) * float(completion_str == data["answer"])


def areal_bare(completions, answer):  # type: ignore[no-untyped-def]
    """Nothing says that it takes one text."""
    return 1.0 if answer in completions else 0.0


# -- rLLM and slime --------------------------------------------------------------------------------


@dataclass
class RewardOutput:
    reward: float
    metadata: dict[str, Any]
    is_correct: bool


def rllm_math(
    data_source: str, llm_solution: str, ground_truth: str, extra_info: Any = None, **kwargs: Any
) -> bool:
    return llm_solution == ground_truth


def rllm_task(task_info: dict[str, Any], action: str) -> RewardOutput:
    right = action == task_info["ground_truth"]
    return RewardOutput(0.3 if right else 0.0, {"why": "because"}, right)


def slime_rule(response: str, label: str) -> int:
    return 1 if response.split("</think>")[-1].strip() == label else 0


async def slime_own(args: Any, sample: Any, **kwargs: Any) -> float:
    return float(sample.response == sample.label)


async def slime_level(args: Any, sample: Any) -> dict[str, float]:
    level = sample.metadata["level"] if getattr(args, "rm_type", None) is None else 0
    return {"score": level * float(sample.response.endswith(sample.label))}


def slime_arguments(args: Any, sample: Any) -> float:
    return float(args.eps_clip)


def rllm_evaluate(task: Any, episode: Any) -> RewardOutput:
    output = episode.trajectories[-1].output or ""
    right = output.strip() == str(task.metadata["ground_truth"])
    return RewardOutput(float(right), {}, right)


def rllm_artifacts(task: Any, episode: Any) -> RewardOutput:
    """Reads another place of the same, and a column."""
    steps = episode.trajectories[0].steps
    right = task.metadata["of"] in episode.artifacts["answer"]
    return RewardOutput(0.5 * len(steps), {}, right)


# -- verifiers -------------------------------------------------------------------------------------


async def verifiers_answer(completion: Messages, answer: str) -> float:
    return 1.0 if answer in completion[-1]["content"] else 0.0


def verifiers_state(prompt: Messages, completion: Messages, state: dict[str, Any]) -> float:
    assert state["prompt"] == prompt
    return float(state["answer"] == completion[-1]["content"])


def verifiers_parsed(parser: Any, completion: Messages, answer: str, info: dict[str, Any]) -> float:
    return float(parser.parse_answer(completion) == answer) * float(info.get("level", 1))


def verifiers_turns(state: dict[str, Any], **kwargs: Any) -> float:
    return float(state["turn"])


def verifiers_notes(completion: Messages, state: dict[str, Any]) -> float:
    """Leaves a note to those after it."""
    state["length"] = len(completion[-1]["content"])
    return 0.0


def verifiers_reads(state: dict[str, Any]) -> float:
    return float(state["length"] > 3 and len(state["trajectory"]) == 1)


class Parser:
    def parse_answer(self, completion: Messages) -> str:
        return completion[-1]["content"].rpartition(" ")[2]


def _rubric(functions: list[Any], weights: list[float]) -> SimpleNamespace:
    """What reward code sees of a rubric."""
    return SimpleNamespace(funcs=functions, weights=weights, class_objects={"parser": Parser()})


rubric = _rubric([verifiers_parsed, verifiers_turns], [1.0, 0.0])
group = SimpleNamespace(rubrics=[rubric, _rubric([verifiers_answer], [0.5])])
environment = SimpleNamespace(rubric=group)
noting = _rubric([verifiers_notes, verifiers_reads], [0.0, 1.0])


def load_environment(difficulty: str = "easy") -> SimpleNamespace:
    """What an environment of verifiers is made by."""
    return environment


# -- ours, and what is nobody's --------------------------------------------------------------------


def by_position(prompt: str, completion: str, answer: str, /) -> float:
    return float(completion == answer)


def without_answer(prompt: str, completion: str) -> float:
    return float(len(completion) < len(prompt))


def other_names(question: str, output: str, target: str) -> float:
    return float(output == target)


def anything(*args: Any, **kwargs: Any) -> float:
    return 0.0


async def later(prompt: str, completion: str, answer: str) -> np.float32:
    await asyncio.sleep(0)
    return np.float32(completion == answer)


def open_and_short(completion: str, **info: Any) -> float:
    return float(completion == info["answer"])


def in_another_order(answer: str, completion: str, prompt: str) -> float:
    return float(completion == answer)


def with_a_reference(completion: str, response: str) -> float:
    """`response` is a column: the response is `completion`."""
    return float(completion == response)


def plurals(completion: str, labels: list[str]) -> float:
    return float([completion] == labels)
