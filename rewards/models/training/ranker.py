"""Training of a session ranker: contrastive, then pointwise (COCA).

In: a recipe. Out: steps of both stages one after the other, as one training. Promises: the second
stage has an optimizer of its own; a resumed training goes on to the bit on a CPU; figures are those
of the ranking, and of the first stage the share of variants that are recognised.
"""

from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import load_file

from headrace.config.sections.reward_model import (
    RankerConfig,
    RewardModelConfig,
    SearchWorldConfig,
    SessionDataConfig,
)
from headrace.data.sessions import SessionData
from headrace.errors import UserError
from learner.device import choose_device
from learner.ranking.losses import contrastive, pointwise
from learner.ranking.metrics import rank_figures
from learner.ranking.model import SessionRanker
from learner.ranking.sessions import two_views
from rewards.models.card import card_of, write_card
from rewards.models.training.model import HF, STATE, decay_of
from rewards.models.training.train import StepResult, batch_of
from tasks.datasets.session_files import read_sessions
from tasks.procedural.search_world import search_data


class SessionRankerTraining:
    """Both stages; see `rewards.models.training.train.Trainee`."""

    def __init__(
        self, config: RewardModelConfig, objective: RankerConfig, resumed: Path | None
    ) -> None:
        """UserError where sessions or model cannot be had."""
        self._config, self._stage = config, objective.contrastive
        self._reads_history = objective.reads_history
        data = session_data(config)
        self._sessions, self._held_out = data.sessions, data.held_out
        self._candidates = [
            (ranked, place) for ranked in data.training for place in range(len(ranked.candidates))
        ]
        self.examples = {
            "sessions": len(data.sessions), "training": len(data.training),
            "held_out": len(data.held_out), **data.left_out,
        }  # fmt: skip
        self._contrasts = self._stage.epochs * max(1, len(data.sessions) // self._stage.batch)
        per_epoch = len(self._candidates) // config.training.batch
        self._rankings = config.training.steps or config.training.epochs * max(1, per_epoch)
        self.steps = self._contrasts + self._rankings
        torch.manual_seed(config.seed)
        device = choose_device(config.engine.device, key="engine.device")
        if device.type == "cpu":
            torch.set_num_threads(config.engine.threads)
        folder = Path(config.model.path) if resumed is None else resumed / HF
        self._ranker = SessionRanker.load(folder, device, longest=config.data.max_tokens)
        self._decay = decay_of(config.training, self._rankings)
        self._recognised: list[float] = []
        self._optimizer = self._new_optimizer()
        if resumed is not None:
            self._restore(resumed)

    def take(self, step: int) -> StepResult:
        """A step of the stage that `step` is in."""
        stage, training = self._stage, self._config.training
        is_ranking = step >= self._contrasts
        if step == self._contrasts:
            # The released code's head is a new Linear as torch draws it, wider than BERT's own.
            self._ranker.model.classifier.reset_parameters()
            self._optimizer = self._new_optimizer()
        if is_ranking:
            done, warm, rate = step - self._contrasts, training.warmup_steps, training.lr
            rate *= self._decay(done)
        else:
            done, warm, rate = step, stage.warmup_steps, stage.lr
        rate *= min(1.0, (done + 1) / warm) if warm else 1.0
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._ranker.model.train()
        loss, tokens = self._rank(done) if is_ranking else self._contrast(done)
        self._optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self._ranker.model.parameters(), training.grad_clip)
        applied = bool(torch.isfinite(norm))
        if applied:
            self._optimizer.step()
        return StepResult(float(loss.detach()), float(norm) if applied else None, rate, tokens)

    def _contrast(self, step: int) -> tuple[torch.Tensor, int]:
        stage, seed = self._stage, self._config.seed
        sessions = batch_of(self._sessions, step, stage.batch, seed)
        draw = Random(f"views/{seed}/{step}")
        views = [
            two_views(session, draw, ratio=stage.ratio, one_deletes=stage.one_deletes)
            for session in sessions
        ]
        encode = self._ranker.encoder.session
        rows = [encode(view) for side in (0, 1) for view in (pair[side] for pair in views)]
        first, second = self._ranker.represent(rows).chunk(2)
        losses, right = contrastive(first, second, stage.temperature)
        self._recognised.append(float(right.float().mean()))
        return losses.mean(), sum(len(row.ids) for row in rows)

    def _rank(self, step: int) -> tuple[torch.Tensor, int]:
        config = self._config
        chosen = batch_of(self._candidates, step, config.training.batch, config.seed + 1)
        rows = [
            self._ranker.row(ranked, place, reads_history=self._reads_history)
            for ranked, place in chosen
        ]
        labels = torch.tensor([ranked.labels[place] for ranked, place in chosen])
        losses = pointwise(self._ranker.score(rows), labels.to(self._ranker.device))
        return losses.mean(), sum(len(row.ids) for row in rows)

    def evaluate(self) -> dict[str, Any]:
        """MAP, MRR and NDCG of held-out lists; variants recognised in stage one's last 20 steps."""
        scores = self._ranker.scores_of(self._held_out, reads_history=self._reads_history)
        figures = rank_figures(scores, [ranked.labels for ranked in self._held_out])
        last = self._recognised[-20:]
        recognised = sum(last) / len(last) if last else None
        return {**figures, "recognised": recognised}

    # -- files ------------------------------------------------------------------------------------

    def save(self, folder: Path, run_id: str) -> None:
        """Write the Hugging Face folder and its card."""
        self._ranker.save(folder)
        write_card(folder, card_of(self._config, self._ranker.tokenizer, run_id, "never"))

    def state(self) -> dict[str, torch.Tensor]:
        """State that a resumed run needs beside the model."""
        moments = self._optimizer.state_dict()["state"].items()
        state = {f"{name}/{i}": value for i, of in moments for name, value in of.items()}
        return {**state, "recognised": torch.tensor(self._recognised)}

    def _restore(self, checkpoint: Path) -> None:
        state = load_file(checkpoint / STATE / "engine.safetensors")
        torch.set_rng_state(state.pop("rng"))
        self._recognised = state.pop("recognised").tolist()
        moments: dict[int, dict[str, torch.Tensor]] = {}
        for key, value in state.items():
            name, _, number = key.partition("/")
            moments.setdefault(int(number), {})[name] = value
        known = self._optimizer.state_dict()
        self._optimizer.load_state_dict({**known, "state": moments})

    def _new_optimizer(self) -> torch.optim.AdamW:
        training = self._config.training
        return torch.optim.AdamW(
            self._ranker.model.parameters(), lr=training.lr, betas=training.betas,
            weight_decay=training.weight_decay,
        )  # fmt: skip


def session_data(config: RewardModelConfig) -> SessionData:
    """The sessions and lists of a recipe; UserError where they cannot be had."""
    match config.data:
        case SearchWorldConfig(sessions=sessions, lists=lists, eval_limit=held_out):
            return search_data(sessions=sessions, lists=lists, held_out=held_out, seed=config.seed)
        case SessionDataConfig(path=path, lists=lists, eval_path=held_out, eval_limit=limit):
            return read_sessions(path, lists, held_out, held_out_limit=limit)
    raise UserError(
        'objective.kind = "ranker" learns from sessions: data.kind = "sessions" or "search_world"'
    )
