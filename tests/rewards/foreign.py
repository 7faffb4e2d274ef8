"""Reward functions as other systems have them, and others that cannot be called as ours."""

from typing import Any


def verl(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    return float(solution_str == ground_truth)


def verl_required(data_source: str, solution_str: str, ground_truth: str, extra_info: Any) -> float:
    return float(solution_str == ground_truth)


def verl_batch(
    data_sources: list[str],
    solution_strs: list[str],
    ground_truths: list[str],
    extra_infos: list[Any],
    **kwargs: Any,
) -> list[float]:
    return [float(s == g) for s, g in zip(solution_strs, ground_truths, strict=True)]


def openrlhf(queries: list[str], prompts: list[str], labels: list[str]) -> list[float]:
    return [float(q.endswith(label)) for q, label in zip(queries, labels, strict=True)]


def openrlhf_open(
    queries: list[str], prompts: list[str], labels: list[str], **kwargs: Any
) -> dict[str, Any]:
    return {"rewards": openrlhf(queries, prompts, labels)}


def trl(completions: list[str], **kwargs: Any) -> list[float]:
    return [float(len(set(completion))) for completion in completions]


def trl_accuracy(
    completions: list[list[dict[str, str]]], solution: list[str], **kwargs: Any
) -> list[float | None]:
    return [float(c[0]["content"] == s) for c, s in zip(completions, solution, strict=True)]


def by_position(prompt: str, completion: str, answer: str, /) -> float:
    return float(completion == answer)


def without_answer(prompt: str, completion: str) -> float:
    return float(len(completion) < len(prompt))


def other_names(question: str, response: str, target: str) -> float:
    return float(response == target)


def anything(*args: Any, **kwargs: Any) -> float:
    return 0.0


async def later(prompt: str, completion: str, answer: str) -> float:
    return float(completion == answer)


def open_and_short(completion: str, **info: Any) -> float:
    return float(completion == info["answer"])


def in_another_order(answer: str, completion: str, prompt: str) -> float:
    return float(completion == answer)
