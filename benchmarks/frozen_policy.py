"""A frozen policy on the demonstration's task: states on its own trajectories, what it goes on to
write from them, and what a value model says of that.

In: model folders. Out: `State`s, `Rollouts` and values. Promises: of each trajectory at most one
state, so that states are independent; an answer counts as right only with its end token; the same
seed gives the same tokens on one machine.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
    AutoTokenizer,
    DynamicCache,
)

from tasks.chain_sums import CHAIN_SUMS
from tasks.policy_check import sample
from tasks.procedural import Sizes, is_correct, prompt_row
from tasks.rows import Row

MAX_TOKENS = 240
STRATA = (0, 15, 30, 60, 120, MAX_TOKENS)
"""Borders of the positions in the response from which equally many states are taken."""

LEAST_ENTROPY = 0.2
"""Nats. States where the policy has less of a choice are left out: the gradient of a token that is
all but certain is next to nothing, whatever its advantage."""

TERMS = (4, 8, 16, 32)
"""Terms of the prompts whose answers states are taken from: a quarter each, so that long answers
are not rare (of training prompts one in fourteen has 16 terms or more)."""

PROMPTS_A_ROUND, MAX_ROUNDS = 64, 8
"""Prompts of each number of terms, and how often that many more are answered."""


@dataclass(frozen=True, slots=True)
class State:
    """Position t of a trajectory: its prompt, the t tokens before and the action taken there."""

    row: Row
    prompt: list[int]
    prefix: list[int]
    action: int

    @property
    def position(self) -> int:
        """t, in response tokens."""
        return len(self.prefix)


@dataclass(frozen=True, slots=True)
class Rollouts:
    """Continuations of one state: tokens from s_t on, and the return of each (0 or 1)."""

    tokens: list[list[int]]
    returns: Tensor


class FrozenPolicy:
    """A policy and its tokenizer, sampled at temperature 1."""

    def __init__(self, folder: Path, *, seed: int) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(str(folder))
        model: Any = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32)
        self._model = model.eval()
        self._seed = seed
        self._generator = torch.Generator().manual_seed(seed)

    def states(self, count: int) -> list[State]:
        """`count` states where the policy has a choice, equally many in each stratum.

        Trajectories are answers to training prompts; fewer states where too few have a choice so
        late.
        """
        trajectories: list[tuple[Row, list[int], list[int]]] = []
        choices: list[list[int]] = []
        for number in range(MAX_ROUNDS):
            for terms in TERMS:
                answers = self._answers(number, terms)
                trajectories += answers
                choices += self.choices([(prompt, tokens) for _, prompt, tokens in answers])
            chosen = stratified_positions(choices, count, Random(self._seed))
            if len(chosen) == count:
                break
        return [
            State(row, prompt, tokens[:t], tokens[t])
            for (row, prompt, tokens), t in ((trajectories[i], t) for i, t in chosen)
        ]

    def rollouts(self, state: State, count: int) -> tuple[Rollouts, Rollouts]:
        """`count` continuations that begin with the state's action, and `count` whose first token
        is drawn as well."""
        first = torch.tensor([state.action] * count + [-1] * count)
        tokens = sample(
            self._model,
            torch.tensor([state.prompt + state.prefix]),
            max_tokens=MAX_TOKENS - state.position,
            generator=self._generator,
            copies=2 * count,
            first=first,
        )
        returns = torch.tensor(
            [self._score(state.row, state.prefix + more) for more in tokens], dtype=torch.float64
        )
        held = Rollouts(tokens[:count], returns[:count])
        return held, Rollouts(tokens[count:], returns[count:])

    def _score(self, row: Row, tokens: Sequence[int]) -> float:
        ended = tokens[-1] == self._model.config.eos_token_id
        text = self.tokenizer.decode(tokens, skip_special_tokens=True)
        return float(ended and is_correct(text, row.answer))

    def _answers(self, number: int, terms: int) -> list[tuple[Row, list[int], list[int]]]:
        """A round of trajectories: (row, prompt, response)."""
        places = range(number * PROMPTS_A_ROUND, (number + 1) * PROMPTS_A_ROUND)
        sizes = Sizes(terms, terms, CHAIN_SUMS.tail_exponent)
        rows = [prompt_row(CHAIN_SUMS, i, self._seed, sizes=sizes) for i in places]
        prompts = [self.tokenizer.encode(str(row.prompt)) for row in rows]
        answers = sample(
            self._model, torch.tensor(prompts), max_tokens=MAX_TOKENS, generator=self._generator
        )
        return list(zip(rows, prompts, answers, strict=True))

    @torch.inference_mode()
    def choices(self, trajectories: Sequence[tuple[list[int], list[int]]]) -> list[list[int]]:
        """The positions of each response, prompts being equally long, at which the policy's entropy
        is LEAST_ENTROPY or more."""
        sequences = [torch.tensor(prompt + tokens[:-1]) for prompt, tokens in trajectories]
        # Padding comes after, and is never looked at.
        inputs = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True)
        start = len(trajectories[0][0]) - 1
        log_p = self._model(inputs).logits[:, start:].float().log_softmax(-1)
        entropy = -(log_p.exp() * log_p).sum(-1)
        return [
            (row[: len(tokens)] >= LEAST_ENTROPY).nonzero()[:, 0].tolist()
            for row, (_, tokens) in zip(entropy, trajectories, strict=True)
        ]


def stratified_positions(
    choices: Sequence[Sequence[int]], count: int, rng: Random, strata: Sequence[int] = STRATA
) -> list[tuple[int, int]]:
    """(trajectory, position) of up to `count` states out of each trajectory's `choices`, none of
    the same trajectory.

    Each stratum of positions gets an equal share (the first ones what is left over), the longest
    first because fewest trajectories reach into it.
    """
    borders = list(pairwise(strata))
    share, over = divmod(count, len(borders))
    left = set(range(len(choices)))
    chosen: list[tuple[int, int]] = []
    for number, (low, high) in reversed(list(enumerate(borders))):
        inside = {i: [t for t in choices[i] if low <= t < high] for i in sorted(left)}
        reaching = [i for i, positions in inside.items() if positions]
        taken = rng.sample(reaching, min(len(reaching), share + (number < over)))
        chosen += [(i, rng.choice(inside[i])) for i in taken]
        left -= set(taken)
    return sorted(chosen, key=lambda pair: (pair[1], pair[0]))


SEQUENCES_A_PASS = 16


class Critic:
    """A value model as a checkpoint holds it."""

    def __init__(self, folder: Path) -> None:
        model: Any = AutoModelForTokenClassification.from_pretrained(
            str(folder), dtype=torch.float32
        )
        self._model = model.eval()

    @torch.inference_mode()
    def values(self, known: Sequence[int], tokens: Sequence[Sequence[int]]) -> Tensor:
        """[n, longest] float64: entry [i, k] is V in the state before the k-th token of the i-th
        continuation of `known`; what lies behind a continuation's last token means nothing."""
        longest = max(len(continuation) for continuation in tokens)
        values = torch.zeros(len(tokens), longest, dtype=torch.float64)
        # Those of like length together, because padding costs as much as tokens do.
        order = sorted(range(len(tokens)), key=lambda i: len(tokens[i]))
        for start in range(0, len(order), SEQUENCES_A_PASS):
            rows = order[start : start + SEQUENCES_A_PASS]
            found = self._values(known, [tokens[i] for i in rows])
            values[rows, : found.shape[1]] = found
        return values

    def _values(self, known: Sequence[int], tokens: Sequence[Sequence[int]]) -> Tensor:
        # The state before token k is read where token k - 1 stands; padding comes after and is
        # never looked at.
        inputs = torch.zeros(len(tokens), max(map(len, tokens)), dtype=torch.int64)
        inputs[:, 0] = known[-1]
        for row, continuation in zip(inputs, tokens, strict=True):
            row[1 : len(continuation)] = torch.tensor(continuation[:-1], dtype=torch.int64)
        cache = DynamicCache(config=self._model.config)
        self._model.base_model(torch.tensor([known[:-1]]), past_key_values=cache, use_cache=True)
        cache.batch_repeat_interleave(len(tokens))
        hidden = self._model.base_model(inputs, past_key_values=cache, use_cache=True)
        values: Tensor = self._model.score(hidden.last_hidden_state)[..., 0]
        return values.double()
