"""Scores of a trained reward model.

In: a folder that `headrace reward train` wrote. Out: `ScoreScorer` (one number for an answer),
`PairScorer` (how likely one answer beats another) and `LineScorer` (one number for each line end).
Promises: a model is asked in the form it was trained in; one forward pass a call, two for a pair;
the same scores as transformers gives for the same folder, where it has a class with that head.
Imports no engine of the learner, so that reward workers and judges may load it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel
from transformers.utils import logging as transformers_logging

from headrace.config.sections.model import ModelConfig
from headrace.config.sections.reward_model import PairwiseConfig
from headrace.data.image_processor import sees_images
from headrace.data.media import MediaStore
from headrace.errors import UserError, first_line
from headrace.protocol.token_spans import MediaRun
from rewards.models.card import Card, check_kind, check_tokenizer, read_card
from rewards.models.encoding import Prompt, PromptImages, encode, plain_text
from rewards.models.pairwise_prompt import fill_template, question_ids, yes_no_tokens


class PairScore(NamedTuple):
    """A pairwise model's scores of two answers.

    Attributes:
        r: probability that the first given answer is better, over both orders. p_front: that, where
        it stands first: p(yes). p_back: that, where it stands second: p(no).
    """

    r: float
    p_front: float
    p_back: float


def pair_score(yes_front: float, yes_back: float) -> PairScore:
    """Return the score of an answer by p(yes) where it stands first, and second.

    r = (p_front + 1 - yes_back) / 2 (Pairwise-RL): 1/2 for two equal answers, whatever the bias."""
    return PairScore((yes_front + 1.0 - yes_back) / 2.0, yes_front, 1.0 - yes_back)


class _Scorer:
    """A model, its tokenizer and its card."""

    kind: str
    sees = True
    """True: it reads the images of prompts."""

    def __init__(
        self, folder: str | Path, *, read_image: Callable[[str], bytes] | None = None
    ) -> None:
        """Load the folder that `headrace reward train` wrote.

        `read_image`: an image's file by its digest, for a model that sees; by default those in the
        working directory. UserError: not a reward model, of another kind, or with another
        tokenizer."""
        self.folder = Path(folder).expanduser()
        self.card: Card = read_card(self.folder)
        check_kind(self.folder, self.card, self.kind)
        self._images: PromptImages | None = None
        if self.sees and sees_images(self.folder):
            self._images = PromptImages(str(self.folder), read_image or MediaStore(Path()).read)
        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(
                self.folder, trust_remote_code=False
            )
            check_tokenizer(self.folder, self.card, self.tokenizer, str(self.folder))
            self.model = self._load().eval()
        except (OSError, ValueError) as error:
            line = first_line(error)
            raise UserError(f"cannot load the reward model {self.folder}: {line}") from error
        shape = self.model.config.get_text_config()
        self._positions = getattr(shape, "max_position_embeddings", None)

    def _load(self) -> PreTrainedModel:
        from learner.models.loading import critic_class, policy_class

        folder, is_scalar = str(self.folder), isinstance(self, _ScalarScorer)
        if self._images is None:
            # Of the class that trained it: transformers may have none, or one with another head.
            shape = AutoConfig.from_pretrained(folder, trust_remote_code=False)
            kind = (critic_class if is_scalar else policy_class)(shape)
            return kind.from_pretrained(
                folder, use_safetensors=True, dtype=torch.float32, trust_remote_code=False
            )
        from learner.models.forward import PolicyNetwork, ValueNetwork
        from learner.models.images import ImageInputs, VisionTower
        from learner.models.loading import load_critic, load_policy, load_processor

        models = ModelConfig(path=folder, critic_path=folder)
        load = load_critic if is_scalar else load_policy
        model = load(models, dtype=torch.float32, device=torch.device("cpu"))
        self._inputs = ImageInputs(self._images.read, load_processor(models), model)
        self._network: Any = ValueNetwork(model) if is_scalar else PolicyNetwork(model)
        self._network.vision = VisionTower(model, self._inputs)
        return model

    @torch.inference_mode()
    def _seen(self, ids: list[int], media: tuple[MediaRun, ...], targets: Sequence[int]) -> Any:
        """Return the network's outputs at a sequence's end by target; it keeps image embeddings."""
        from rewards.models.packing import LossUnit, UnitRow, packs_of

        self._row(ids)
        row = UnitRow(ids, [len(ids) - 1] * len(targets), list(targets), media)
        (pack,) = packs_of(
            [LossUnit((row,), ())], budget=len(ids), device=torch.device("cpu"), images=self._inputs
        )
        return self._network(pack.pack)

    def _row(self, ids: Sequence[int]) -> Tensor:
        """[1, T] ids; UserError for none, or for more than the model has positions."""
        if not ids:
            raise UserError(f"nothing to score for the reward model {self.folder}: no tokens")
        if self._positions is not None and len(ids) > self._positions:
            raise UserError(
                f"{len(ids)} tokens are too many for the reward model {self.folder}, which has "
                f"{self._positions} positions"
            )
        return torch.tensor([list(ids)], dtype=torch.int64)


class _ScalarScorer(_Scorer):
    @torch.inference_mode()
    def _at(self, ids: Sequence[int], places: Sequence[int]) -> list[float]:
        """The head's numbers at some places of a sequence."""
        if not places:
            return []
        logits = self.model(input_ids=self._row(ids), use_cache=False).logits
        return logits[0, list(places), 0].float().tolist()


class ScoreScorer(_ScalarScorer):
    """Scores of whole answers, by a model trained with `bradley_terry`."""

    kind = "bradley_terry"

    def score(self, prompt: Prompt, response: str, *, ended: bool = True) -> float:
        """Return a response's score, comparable with others of its prompt alone.

        `ended`: it ended by itself. Messages name their images by digests."""
        mode, images = self.card.chat_template, self._images
        found = encode(self.tokenizer, prompt, response, mode, ended=ended, images=images)
        if images is None:
            return self._at(found.ids, [len(found.ids) - 1])[0]
        return float(self._seen(found.ids, found.media, [0]))


class LineScorer(_ScalarScorer):
    """Scores at line ends, by a model trained with `lines`."""

    kind = "lines"
    sees = False

    def lines(
        self, prompt_ids: Sequence[int], completion_ids: Sequence[int], ends: Sequence[int]
    ) -> list[float]:
        """One score for each line end, near 1 where all is well so far and near -1 where it is not.

        Args:
            prompt_ids: tokens of the prompt. completion_ids: tokens of the response, finished or
            not. ends: for each line the index in `completion_ids` of the token that holds its end.
        """
        if any(not 0 <= end < len(completion_ids) for end in ends):
            raise UserError(
                f"line ends {min(ends)} to {max(ends)} are not inside a response of "
                f"{len(completion_ids)} tokens"
            )
        before = len(prompt_ids)
        last = max(ends, default=-1)
        # The model is causal: what follows the last line end changes nothing.
        ids = [*prompt_ids, *completion_ids[: last + 1]]
        return self._at(ids, [before + end for end in ends])


class PairScorer(_Scorer):
    """Comparison of two answers, by a model trained with `pairwise`."""

    kind = "pairwise"

    def __init__(self, folder: str | Path, **settings: Any) -> None:
        super().__init__(folder, **settings)
        assert isinstance(self.card.objective, PairwiseConfig)
        self._config = self.card.objective
        self._chat = self.card.chat_template == "always"
        self._words = yes_no_tokens(self.tokenizer, self._config, chat=self._chat)

    def pair(self, prompt: Prompt, a: str, b: str, *, rule: str | None = None) -> PairScore:
        """Score `a` against `b` in both orders. `rule`: what is better; None: the recipe's."""
        front, back = self.yes(prompt, a, b, rule=rule), self.yes(prompt, b, a, rule=rule)
        return pair_score(front, back)

    @torch.inference_mode()
    def yes(self, prompt: Prompt, first: str, second: str, *, rule: str | None = None) -> float:
        """p(yes) in one order: the softmax over the two words, sigma(l_yes - l_no)."""
        text = fill_template(
            self._config.template,
            question=plain_text(prompt),
            rule=self._config.rule if rule is None else rule,
            first=first,
            second=second,
        )
        ids, media = question_ids(
            self.tokenizer, prompt, text, chat=self._chat, images=self._images
        )
        if self._images is not None:
            found = self._seen(ids, media, self._words).logprobs
            return float(torch.sigmoid(found[0] - found[1]))
        row = self._row(ids)
        logits = self.model(input_ids=row, use_cache=False, logits_to_keep=1).logits[0, -1].float()
        return float(torch.sigmoid(logits[self._words.yes] - logits[self._words.no]))
