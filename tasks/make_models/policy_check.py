"""Check of a policy on a procedural task's held-out prompts at T = 1.

In: a model and its tokenizer. Out: a `PolicyCheck`: accuracy, length, styles. The sampler is a
plain loop over prompts of one length at a time, so nothing is padded; it serves the cold-start
script and the tests, not training.
"""

from collections import defaultdict
from dataclasses import dataclass

import torch
from transformers import DynamicCache, LlamaForCausalLM, PreTrainedTokenizerFast

from tasks.procedural.base import ProceduralTask, PromptSizes, evaluation_rows
from tasks.rows import TaskRow

TERMS = (
    *((2, 2), (3, 3), (4, 4), (5, 6), (7, 10), (11, 16), (17, 19), (20, 32), (33, 45), (46, 52)),
    *((53, 100), (101, 999)),
)


@dataclass(frozen=True, slots=True)
class SampledAnswer:
    """A sampled answer. `tokens` includes the end token; without one it is not `correct`."""

    row: TaskRow
    text: str
    style: str
    tokens: int
    correct: bool


@dataclass(frozen=True, slots=True)
class PolicyCheck:
    """All answers of one check; the figures are derived from them."""

    answers: list[SampledAnswer]

    def accuracy(self, style: str | None = None, terms: range = range(1, 1000)) -> float:
        """Share of correct answers, among those of a style and a number of terms."""
        picked = [a for a in self.answers if self._picked(a, style, terms)]
        return sum(a.correct for a in picked) / len(picked) if picked else float("nan")

    def share(self, style: str) -> float:
        """Share of the answers written in `style`."""
        return sum(a.style == style for a in self.answers) / len(self.answers)

    def mean_tokens(self, terms: range = range(1, 1000)) -> float:
        """Mean answer length in tokens."""
        picked = [a.tokens for a in self.answers if self._picked(a, None, terms)]
        return sum(picked) / len(picked) if picked else float("nan")

    @staticmethod
    def _picked(answer: SampledAnswer, style: str | None, terms: range) -> bool:
        return style in (None, answer.style) and answer.row.info["terms"] in terms


@torch.inference_mode()
def sample(
    model: LlamaForCausalLM,
    prompts: torch.Tensor,
    *,
    max_tokens: int,
    generator: torch.Generator,
    greedy: bool = False,
) -> list[list[int]]:
    """Sample at T = 1 after `prompts` (int64 [n, length]). Each answer ends with the end token, or
    has `max_tokens` tokens without one."""
    answers: list[list[int]] = [[] for _ in prompts]
    live = torch.arange(len(answers))
    cache = DynamicCache(config=model.config)
    step = prompts
    for _ in range(max_tokens):
        logits = model(input_ids=step, past_key_values=cache, use_cache=True).logits[:, -1].float()
        if greedy:
            tokens = logits.argmax(-1)
        else:
            tokens = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
        for row, token in zip(live.tolist(), tokens.tolist(), strict=True):
            answers[row].append(token)
        unfinished = (tokens != model.config.eos_token_id).nonzero()[:, 0]
        if len(unfinished) == 0:
            break
        if len(unfinished) < len(live):
            cache.batch_select_indices(unfinished)
            live = live[unfinished]
        step = tokens[unfinished, None]
    return answers


def check_policy(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    task: ProceduralTask,
    *,
    prompts: int,
    seed: int,
    max_tokens: int = 240,
    sizes: PromptSizes | None = None,
    greedy: bool = False,
) -> PolicyCheck:
    """Answer `prompts` held-out prompts once each."""
    by_length: dict[int, list[TaskRow]] = defaultdict(list)
    for row in evaluation_rows(task, prompts, sizes=sizes):
        by_length[len(row.prompt)].append(row)
    generator = torch.Generator().manual_seed(seed)
    answers: list[SampledAnswer] = []
    for rows in by_length.values():
        ids = torch.tensor([tokenizer.encode(str(row.prompt)) for row in rows])
        sampled = sample(model, ids, max_tokens=max_tokens, generator=generator, greedy=greedy)
        for row, tokens in zip(rows, sampled, strict=True):
            text = tokenizer.decode(tokens, skip_special_tokens=True)
            ended = tokens[-1] == model.config.eos_token_id
            correct = ended and task.is_right(row, text)
            answers.append(SampledAnswer(row, text, task.style_of(text), len(tokens), correct))
    return PolicyCheck(answers)


def print_check(check: PolicyCheck, task: ProceduralTask) -> None:
    """The figures as a small table."""
    longest = max(answer.tokens for answer in check.answers)
    careful = task.styles[-1]
    print(f"held-out prompts {len(check.answers)}, T = 1")
    print(f"accuracy {check.accuracy():.3f}, mean length {check.mean_tokens():.1f}, max {longest}")
    for style in (*task.styles, "other"):
        if check.share(style):
            print(f"  {style:<7} share {check.share(style):.3f} right {check.accuracy(style):.3f}")
    for low, high in TERMS:
        terms = range(low, high + 1)
        if not any(answer.row.info["terms"] in terms for answer in check.answers):
            continue
        print(
            f"  {low:>2}-{high:<2} terms: right {check.accuracy(terms=terms):.3f}, "
            f"{careful} {check.accuracy(careful, terms):.3f}, "
            f"length {check.mean_tokens(terms):.0f}"
        )
