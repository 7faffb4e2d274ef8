"""How a policy answers chains of sums: accuracy, length and styles on held-out prompts at T = 1.

In: a model and its tokenizer. Out: a `PolicyCheck`. The sampler is a plain loop over prompts of one
length at a time, so nothing is padded; it serves the cold-start script and the tests, not training.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch
from transformers import DynamicCache, LlamaForCausalLM, PreTrainedTokenizerFast

from tasks.chain_sums import evaluation_rows, is_correct, style_of
from tasks.rows import Row


@dataclass(frozen=True, slots=True)
class Answer:
    """One sampled answer. `tokens` counts the end token; `correct` is False without one."""

    row: Row
    style: str
    tokens: int
    correct: bool


@dataclass(frozen=True, slots=True)
class PolicyCheck:
    """All answers of one check; the figures are derived from them."""

    answers: list[Answer]

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
    def _picked(answer: Answer, style: str | None, terms: range) -> bool:
        return style in (None, answer.style) and answer.row.info["terms"] in terms


@torch.inference_mode()
def sample(
    model: LlamaForCausalLM,
    prompts: torch.Tensor,
    *,
    max_tokens: int,
    generator: torch.Generator,
    greedy: bool = False,
    copies: int = 1,
) -> list[list[int]]:
    """Sample at T = 1 after `prompts` (int64 [n, length], all of one length), `copies` answers to
    each, those of one prompt beside one another; the prompt is read once for all of them.

    Each answer ends with the end token, or has `max_tokens` tokens without one.
    """
    answers: list[list[int]] = [[] for _ in range(len(prompts) * copies)]
    live = torch.arange(len(answers))
    cache = DynamicCache(config=model.config)
    step = prompts
    for number in range(max_tokens):
        logits = model(input_ids=step, past_key_values=cache, use_cache=True).logits[:, -1].float()
        if number == 0 and copies > 1:
            logits = logits.repeat_interleave(copies, dim=0)
            cache.batch_repeat_interleave(copies)
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
    *,
    prompts: int,
    seed: int,
    max_tokens: int = 240,
    max_terms: int = 32,
    greedy: bool = False,
) -> PolicyCheck:
    """Answer `prompts` held-out prompts once each."""
    by_length: dict[int, list[Row]] = defaultdict(list)
    for row in evaluation_rows(prompts, max_terms=max_terms):
        by_length[len(row.prompt)].append(row)
    generator = torch.Generator().manual_seed(seed)
    answers: list[Answer] = []
    for rows in by_length.values():
        ids = torch.tensor([tokenizer.encode(str(row.prompt)) for row in rows])
        sampled = sample(model, ids, max_tokens=max_tokens, generator=generator, greedy=greedy)
        for row, tokens in zip(rows, sampled, strict=True):
            text = tokenizer.decode(tokens, skip_special_tokens=True)
            ended = tokens[-1] == model.config.eos_token_id
            correct = ended and is_correct(text, row.answer)
            answers.append(Answer(row, style_of(text), len(tokens), correct))
    return PolicyCheck(answers)


def print_check(check: PolicyCheck) -> None:
    """The figures as a small table."""
    longest = max(answer.tokens for answer in check.answers)
    print(f"held-out prompts {len(check.answers)}, T = 1")
    print(f"accuracy {check.accuracy():.3f}, mean length {check.mean_tokens():.1f}, max {longest}")
    for style in ("direct", "jumps", "fine", "other"):
        if check.share(style):
            print(f"  {style:<7} share {check.share(style):.3f} right {check.accuracy(style):.3f}")
    for low, high in ((3, 3), (4, 4), (5, 6), (7, 10), (11, 16), (17, 19), (20, 32)):
        terms = range(low, high + 1)
        print(
            f"  {low:>2}-{high:<2} terms: right {check.accuracy(terms=terms):.3f}, "
            f"fine {check.accuracy('fine', terms):.3f}, length {check.mean_tokens(terms):.0f}"
        )
