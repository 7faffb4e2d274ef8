"""Inputs, losses and figures of each objective.

In: examples. Out: units, their summed loss, and figures on held-out ones. Promise: an objective
knows nothing of optimizers, files or folders. Held-out pairs are always shown in both orders.
"""

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import softplus

from generators.engines.model_files import end_token_ids, read_config
from headrace.config.sections.model import ModelConfig
from headrace.config.sections.reward_model import (
    BradleyTerryConfig,
    LinesConfig,
    PairwiseConfig,
    RewardModelConfig,
    SftConfig,
)
from headrace.data.tokenizer import chat_text
from headrace.errors import UserError
from learner.models.forward import TokenScores
from rewards.models.card import ChatMode
from rewards.models.encoding import PromptImages, encode, line_ends, plain_text, prompt_ids
from rewards.models.packing import LossUnit, UnitPack, UnitRow
from rewards.models.pairwise_prompt import fill_template, question_ids, yes_no_tokens
from rewards.models.training import metrics
from rewards.models.training.examples import Demonstration, LabelledAnswer, PreferencePair
from rewards.models.training.metrics import UnitOutputs

Output = Tensor | TokenScores


class Objective(Protocol):
    """One of the ways to train a model on packed examples."""

    is_scalar: bool
    """A scalar head in the place of the language model's."""

    def unit(self, example: Any, *, training: bool) -> LossUnit:
        """The sequences of an example. `training` False: as held-out examples are looked at."""

    def loss(self, output: Output, pack: UnitPack) -> Tensor:
        """The sum of the losses of a pack's units, each counted by its weight."""

    def judge(self, output: Output, pack: UnitPack) -> UnitOutputs:
        """Each unit's numbers for its figures."""

    def figures(self, judged: UnitOutputs, units: Sequence[LossUnit]) -> dict[str, Any]:
        """Figures of held-out units, see `rewards.models.training.metrics`."""


def build_objective(
    config: RewardModelConfig, tokenizer: Any, images: PromptImages | None = None
) -> Objective:
    """Build a recipe's objective; UserError where the tokenizer cannot serve it.

    `images`: those of prompts, for a model that sees."""
    mode = config.model.chat_template
    match config.objective:
        case SftConfig():
            # Random weights are saved with the end tokens of their shape alone.
            end = None if config.training.from_scratch else end_of_turn(tokenizer, config.model)
            return SftObjective(tokenizer, mode, images, end)
        case BradleyTerryConfig():
            return BradleyTerryObjective(tokenizer, mode, images)
        case PairwiseConfig() as told:
            return PairwiseObjective(told, tokenizer, mode, images, seed=config.seed)
        case LinesConfig():
            return LinesObjective(tokenizer, mode)
        case other:
            raise UserError(f"objective.kind = {other.kind!r} is not made of packed examples")


def end_of_turn(tokenizer: Any, model: ModelConfig) -> int | None:
    """Return the template's token behind an answer, where generators stop at it; else None."""
    mark = "c8b07e"
    said = [{"role": "user", "content": "?"}, {"role": "assistant", "content": mark}]
    try:
        behind = chat_text(tokenizer, said, begins_answer=False).rpartition(mark)[2]
    except UserError:  # Without a template, or with one that refuses it, for texts alone.
        return None
    shape = read_config(model.path, trust_remote_code=model.trust_remote_code)
    first = tokenizer(behind, add_special_tokens=False)["input_ids"][:1]
    return next((token for token in first if token in end_token_ids(model.path, shape)), None)


class SftObjective:
    """The tokens of each answer."""

    is_scalar = False

    def __init__(
        self, tokenizer: Any, mode: ChatMode, images: PromptImages | None = None,
        turn_end: int | None = None,
    ) -> None:  # fmt: skip
        self._encode = partial(encode, tokenizer, mode=mode, images=images, turn_end=turn_end)

    def unit(self, example: Demonstration, *, training: bool) -> LossUnit:
        """The answer with its end token, behind its prompt."""
        found = self._encode(example.prompt, example.answer, tools=example.tools)
        places = list(range(len(found.prompt) - 1, len(found.ids) - 1))
        row = UnitRow(found.ids, places, found.response, found.media)
        return LossUnit((row,), (), float(len(places)))

    def loss(self, output: Output, pack: UnitPack) -> Tensor:
        """Summed cross-entropy of the answers' tokens."""
        return -_logprobs(output).sum()

    def judge(self, output: Output, pack: UnitPack) -> UnitOutputs:
        """(summed cross-entropy of an answer, its tokens)."""
        parts = pack.of_units(_logprobs(output))
        return [(-float(part.sum()), unit.weight) for unit, part in parts]

    def figures(self, judged: UnitOutputs, units: Sequence[LossUnit]) -> dict[str, Any]:
        """Loss and perplexity."""
        return metrics.of_answers(judged)


class BradleyTerryObjective:
    """A score at the last token of each answer."""

    is_scalar = True

    def __init__(self, tokenizer: Any, mode: ChatMode, images: PromptImages | None = None) -> None:
        self._encode = partial(encode, tokenizer, mode=mode, images=images)

    def unit(self, example: PreferencePair, *, training: bool) -> LossUnit:
        """The chosen answer, then the rejected one."""
        rows = list[UnitRow]()
        for text, cut in zip((example.chosen, example.rejected), example.cut, strict=True):
            found = self._encode(example.prompt, text, ended=not cut)
            rows.append(UnitRow(found.ids, [len(found.ids) - 1], [0], found.media))
        return LossUnit(tuple(rows), (example.margin,))

    def loss(self, output: Output, pack: UnitPack) -> Tensor:
        """Summed -log sigma(chosen - rejected - margin)."""
        chosen, rejected = _scores(output).view(-1, 2).unbind(dim=1)
        margins = chosen.new_tensor([unit.facts[0] for unit in pack.units])
        return bradley_terry(chosen, rejected, margins).sum()

    def judge(self, output: Output, pack: UnitPack) -> UnitOutputs:
        """(score of the chosen answer, of the rejected one)."""
        return [(c, r) for c, r in _scores(output).view(-1, 2).tolist()]

    def figures(self, judged: UnitOutputs, units: Sequence[LossUnit]) -> dict[str, Any]:
        """Accuracy and calibration."""
        return metrics.of_scores(judged, [unit.facts[0] for unit in units])


class PairwiseObjective:
    """The word behind a question about two answers."""

    is_scalar = False

    def __init__(
        self, config: PairwiseConfig, tokenizer: Any, mode: ChatMode,
        images: PromptImages | None = None, *, seed: int,
    ) -> None:  # fmt: skip
        self._config, self._tokenizer, self._images = config, tokenizer, images
        self._chat = mode == "always"
        self._words = yes_no_tokens(tokenizer, config, chat=self._chat)
        self._rng = Random(f"orders/{seed}")

    def unit(self, example: PreferencePair, *, training: bool) -> LossUnit:
        """Both orders, the better answer first; without `swap` while training one, drawn."""
        texts = [(example.chosen, example.rejected), (example.rejected, example.chosen)]
        answers: tuple[float, ...] = (1.0, 0.0)
        if training and not self._config.swap:
            place = 0 if self._rng.random() < self._config.first_share else 1
            texts, answers = [texts[place]], answers[place : place + 1]
        return LossUnit(tuple(self._row(example, *pair) for pair in texts), answers)

    def _row(self, example: PreferencePair, first: str, second: str) -> UnitRow:
        rule = self._config.rule if example.rule is None else example.rule
        question = plain_text(example.prompt)
        text = fill_template(
            self._config.template, question=question, rule=rule, first=first, second=second
        )
        ids, media = question_ids(
            self._tokenizer, example.prompt, text, chat=self._chat, images=self._images
        )
        # One place, read for both words: the network scores given tokens.
        return UnitRow(ids, [len(ids) - 1] * 2, list(self._words), media)

    def loss(self, output: Output, pack: UnitPack) -> Tensor:
        """Summed cross-entropy of the words and, with both orders, `consistency`."""
        orders = len(pack.units[0].rows)
        log_yes, log_no = _logprobs(output).view(-1, orders, 2).unbind(dim=2)
        is_yes = torch.tensor([unit.facts for unit in pack.units], device=log_yes.device) > 0.5
        weight = self._config.consistency
        return pairwise(log_yes, log_no, is_yes, weight=weight).sum()

    def judge(self, output: Output, pack: UnitPack) -> UnitOutputs:
        """(p(yes) with the better answer first, p(yes) with it second, cross-entropy)."""
        log_yes, log_no = _logprobs(output).view(-1, 2, 2).unbind(dim=2)
        front, back = probability_of_yes(log_yes, log_no).unbind(dim=1)
        entropy = -(log_yes[:, 0] + log_no[:, 1]) / 2
        columns = torch.stack([front, back, entropy], dim=1)
        return [(f, b, e) for f, b, e in columns.tolist()]

    def figures(self, judged: UnitOutputs, units: Sequence[LossUnit]) -> dict[str, Any]:
        """Accuracy, calibration and position bias."""
        return metrics.of_orders(judged, weight=self._config.consistency)


class LinesObjective:
    """A score at each labelled line end."""

    is_scalar = True

    def __init__(self, tokenizer: Any, mode: ChatMode) -> None:
        self._tokenizer, self._mode = tokenizer, mode

    def unit(self, example: LabelledAnswer, *, training: bool) -> LossUnit:
        """The answer up to its last labelled line; of lines in one token the first counts."""
        opening = prompt_ids(self._tokenizer, example.prompt, self._mode)
        ids, ends = line_ends(self._tokenizer, example.lines)
        labels: dict[int, float] = {}
        for end, label in zip(ends, example.labels, strict=True):
            if label is not None:
                labels.setdefault(end, label)
        places = [len(opening) + end for end in labels]
        row = UnitRow([*opening, *ids][: max(places, default=0) + 1], places, [0] * len(places))
        return LossUnit((row,), tuple(labels.values()), float(len(labels)))

    def loss(self, output: Output, pack: UnitPack) -> Tensor:
        """Summed squared errors."""
        scores = _scores(output)
        labels = scores.new_tensor([label for unit in pack.units for label in unit.facts])
        return line_error(scores, labels).sum()

    def judge(self, output: Output, pack: UnitPack) -> UnitOutputs:
        """The score at each labelled line end."""
        return [tuple(part.tolist()) for _, part in pack.of_units(_scores(output))]

    def figures(self, judged: UnitOutputs, units: Sequence[LossUnit]) -> dict[str, Any]:
        """Mean squared error, area under the curve, accuracy and calibration."""
        return metrics.of_lines(judged, [unit.facts for unit in units])


def _scores(output: Output) -> Tensor:
    assert isinstance(output, Tensor)
    return output


def _logprobs(output: Output) -> Tensor:
    assert not isinstance(output, Tensor)
    return output.logprobs


# The losses, one number an example or line end: whoever trains divides their sum by how many there
# are in the whole batch. Letters: N examples, M labelled line ends.


def bradley_terry(chosen: Tensor, rejected: Tensor, margin: Tensor) -> Tensor:
    """[N] -log sigma(chosen - rejected - margin)."""
    return softplus(margin + rejected - chosen)


def probability_of_yes(log_yes: Tensor, log_no: Tensor) -> Tensor:
    """The softmax over the two words alone: sigma(log_yes - log_no)."""
    return torch.sigmoid(log_yes - log_no)


def consistency(front: Tensor, back: Tensor) -> Tensor:
    """[N] (p(a, b) + p(b, a) - 1)^2, L_pos of Pairwise-RL (its exact form is not known)."""
    return (front + back - 1.0).square()


def pairwise(log_yes: Tensor, log_no: Tensor, is_yes: Tensor, *, weight: float) -> Tensor:
    """[N] mean cross-entropy of the right word plus, for both orders, `weight` * `consistency`.

    Args:
        log_yes, log_no: [N, orders] log-probabilities of the words over the whole vocabulary.
        is_yes: [N, orders] whether yes is right, i.e. the better answer stands first.
        weight: zeta.
    """
    entropy = -torch.where(is_yes, log_yes, log_no).mean(dim=1)
    if log_yes.shape[1] < 2 or not weight:
        return entropy
    front, back = probability_of_yes(log_yes, log_no).unbind(dim=1)
    return entropy + weight * consistency(front, back)


def line_error(scores: Tensor, labels: Tensor) -> Tensor:
    """[M] squared errors at labelled line ends."""
    return (scores - labels).square()
