"""The trained model in its engine, and its files.

In: a recipe and, for a resumed run, a checkpoint. Out: `RewardModel`. Promises: a restored one goes
on to the bit in float32; what is saved is loadable by transformers as it is
(`AutoModelForTokenClassification` with one label for scores, `AutoModelForCausalLM` for words).
"""

import atexit
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, PreTrainedModel

from generators.engines.model_files import read_config
from headrace.config.sections.learner import LearnerConfig, OptimizerConfig
from headrace.config.sections.reward_model import RewardModelConfig, TrainingConfig
from headrace.errors import UserError
from headrace.host.hardware import free_port, has_bfloat16
from learner.device import choose_device
from learner.models.deepspeed_engine import DeepSpeedEngine, join_ranks
from learner.models.family_check import may_share_rows, random_twin
from learner.models.forward import PolicyNetwork, ValueNetwork
from learner.models.images import ImageInputs, VisionTower
from learner.models.loading import (
    critic_class,
    load_critic,
    load_policy,
    load_processor,
    policy_class,
    random_model,
)
from learner.process.weight_publishing import weights_of
from rewards.models.card import card_of, fingerprint, write_card

HF, STATE = "model", "state"
_OPTIMIZER = {"lr", "betas", "weight_decay", "warmup_steps", "grad_clip"}


class RewardModel:
    """A network in its engine, with the tokenizer it belongs to."""

    def __init__(
        self,
        config: RewardModelConfig,
        tokenizer: Any,
        *,
        is_scalar: bool,
        steps: int,
        resumed: Path | None = None,
        read_image: Callable[[str], bytes] | None = None,
    ) -> None:
        """Load the model of the recipe or of a checkpoint; UserError where there is none.

        `read_image`: an image's file by its digest, for a model that sees."""
        _check_start(config, tokenizer)
        self._config, self.tokenizer = config, tokenizer
        self.device = choose_device(config.engine.device, key="engine.device")
        if self.device.type == "cpu":
            torch.set_num_threads(config.engine.threads)
        torch.manual_seed(config.seed)
        models = config.model
        if config.training.from_scratch:  # a random tower has to learn, before a resume and after
            models = models.model_copy(update={"freeze_vision": False})
        if resumed is not None:
            folder = str(resumed / HF)
            models = models.model_copy(update={"path": folder, "critic_path": folder})
        dtype = torch.bfloat16 if config.engine.precision == "bfloat16" else torch.float32
        is_fast = self.device.type == "cuda" or has_bfloat16()
        mixes = config.engine.precision == "bf16_autocast" and is_fast
        autocast = torch.bfloat16 if mixes else None
        self.pretrained: PreTrainedModel
        if config.training.from_scratch and resumed is None:
            trust = models.trust_remote_code
            shape = read_config(models.path, trust_remote_code=trust)
            kind = (critic_class if is_scalar else policy_class)(shape)
            made = random_model(kind, shape, trust_remote_code=trust)
            self.pretrained = made.to(self.device)  # its engine casts weights, not frequencies
        else:
            load = load_critic if is_scalar else load_policy
            self.pretrained = load(models, dtype=dtype, device=self.device)
        twin = random_twin(self.pretrained, trust_remote_code=models.trust_remote_code)
        self.shares_rows = may_share_rows(PolicyNetwork(twin, autocast=autocast))
        network: ValueNetwork | PolicyNetwork = (
            ValueNetwork(self.pretrained, autocast=autocast)
            if is_scalar
            else PolicyNetwork(self.pretrained, autocast=autocast)
        )
        self._processor = load_processor(config.model)
        self.images = None
        if read_image is not None:
            self.images = ImageInputs(read_image, self._processor, self.pretrained)
            in_step = config.engine.zero_stage == 3
            network.vision = VisionTower(self.pretrained, self.images, in_step=in_step)
        if config.engine.gradient_checkpointing:
            self.pretrained.gradient_checkpointing_enable({"use_reentrant": False})
            self.pretrained.train()
        if not torch.distributed.is_initialized():
            join_ranks(rank=0, world_size=1, port=free_port(), device=self.device)
            # DeepSpeed remembers its groups: the next model of this process needs them as well.
            atexit.register(torch.distributed.destroy_process_group)
        self.engine = DeepSpeedEngine(
            network,
            OptimizerConfig(**config.training.model_dump(include=_OPTIMIZER)),
            LearnerConfig(**config.engine.model_dump()),
            decay=decay_of(config.training, steps),
        )
        if resumed is not None:
            state = load_file(resumed / STATE / "engine.safetensors")
            torch.set_rng_state(state.pop("rng"))
            self.engine.load_state(state)

    def save(self, folder: Path, run_id: str) -> None:
        """Write the Hugging Face folder and its card."""
        weights = weights_of(self.engine.whole_state(self.pretrained, keep=True), dtype=None)
        folder.mkdir(parents=True, exist_ok=True)
        self.pretrained.save_pretrained(folder, state_dict=weights)
        (self._processor or self.tokenizer).save_pretrained(folder)
        chat = self._config.model.chat_template
        write_card(folder, card_of(self._config, self.tokenizer, run_id, chat))


def positions_of(config: RewardModelConfig) -> int | None:
    """Maximum number of tokens per sequence of the model; None: unspecified."""
    model = config.model
    shape = read_config(model.path, trust_remote_code=model.trust_remote_code)
    found = getattr(shape.get_text_config(), "max_position_embeddings", None)
    return None if found is None else int(found)


def _check_start(config: RewardModelConfig, tokenizer: Any) -> None:
    """Raise UserError where the initial value model has another tokenizer."""
    start = config.model.critic_path
    if start is None:
        return
    try:
        other = AutoTokenizer.from_pretrained(start)
    except (OSError, ValueError):
        return
    if fingerprint(other) != fingerprint(tokenizer):
        raise UserError(
            f"model.critic_path = {start!r} has another tokenizer than model.path; start from "
            "models with the same one"
        )


def decay_of(training: TrainingConfig, steps: int) -> Callable[[int], float]:
    """Return the learning rate's factor: 1 after warm-up, 0 after `steps`, unless constant."""
    span = max(1, steps - training.warmup_steps)

    def factor(done: int) -> float:
        share = min(1.0, max(0, done - training.warmup_steps) / span)
        match training.schedule:
            case "constant":
                return 1.0
            case "linear":
                return 1.0 - share
            case "cosine":
                return (1.0 + math.cos(math.pi * share)) / 2

    return factor
