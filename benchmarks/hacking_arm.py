"""One arm of the study of hacking: a policy trained on one reward, and what monitors see of it.

In: a task, a model folder, a seed, what is paid for an answer. Out: figures before and after, of
each update's answers, and the update at which a run's monitors would raise the alert of the gap.
"""

from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.filler_task import Task, fillers
from benchmarks.reinforce import Answers, reinforce, sample, truths
from coordinator.alerts import Alerts, Estimate, Seen, estimate
from coordinator.spread import largest_distance
from headrace.config.reward_monitors import AlertConfig

UPDATES = 60
PROMPTS_AN_UPDATE, SAMPLES = 32, 8
HELD_OUT = 300
POLICY_LR = 3e-4
Pay = Callable[[str, str], float]


def settings() -> tuple[float, ...]:
    """What an arm's figures depend on beside its task."""
    return (UPDATES, PROMPTS_AN_UPDATE, SAMPLES, HELD_OUT, POLICY_LR)


def figures(task: Task, answers: Answers) -> dict[str, float]:
    """Means over answers; what monitors would say of them."""
    truth = fmean(truths(task, answers))
    proxy = fmean(task.proxy(*pair) for pair in answers.pairs)
    groups = [answers.texts[i : i + SAMPLES] for i in range(0, len(answers.texts), SAMPLES)]
    return {
        "truth": truth,
        "proxy": proxy,
        "gap": proxy - truth,
        "fillers": fmean(map(fillers, answers.texts)),
        "length": answers.mask.sum(dim=1).float().mean().item(),
        "entropy_estimate": -answers.logprobs.sum().item() / answers.mask.sum().item(),
        "edit_distance": fmean(map(largest_distance, groups)),
    }


def gap_of(task: Task, answers: Answers) -> Estimate:
    """Proxy minus truth of answers, as an audit of all of them sees it."""
    return estimate([task.proxy(*pair) - task.truth(*pair) for pair in answers.pairs])


def step(model: Any, optimizer: torch.optim.Optimizer, answers: Answers, pay: Pay) -> None:
    """One update: log probability times reward less the group's mean."""
    rewards = torch.tensor([pay(*pair) for pair in answers.pairs]).reshape(-1, SAMPLES)
    reinforce(model, optimizer, answers, (rewards - rewards.mean(dim=1, keepdim=True)).flatten())


def trained(task: Task, folder: Path, seed: int, pay: Pay) -> dict[str, Any]:
    """Train one arm; figures of held-out prompts before and after, of each update's answers, and
    the update of the first alert (None: none)."""
    model: Any = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=POLICY_LR, weight_decay=0.0)
    held_out = task.prompts(HELD_OUT, Random(f"held out/{seed}"))
    rng = Random(f"training/{seed}")
    before = figures(task, sample(task, model, held_out, SAMPLES, seed))
    alerts, first = Alerts(AlertConfig()), None
    updates, alert = [], None
    for update in range(1, UPDATES + 1):
        asked = task.prompts(PROMPTS_AN_UPDATE, rng)
        answers = sample(task, model, asked, SAMPLES, rng.getrandbits(32))
        updates.append(figures(task, answers))
        gap = gap_of(task, answers)
        first = first or gap
        if list(alerts.judge("proxy", Seen(gap=gap, first_gap=first))) and alert is None:
            alert = update
        step(model, optimizer, answers, pay)
    after = figures(task, sample(task, model, held_out, SAMPLES, seed))
    return {"before": before, "after": after, "updates": updates, "alert": alert}
