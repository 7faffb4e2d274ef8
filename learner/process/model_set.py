"""The models of a learner rank: engines of those that train, and the reference.

In: a run's configuration, and the checkpoint to go on from. Out: engines, their `RankContext`, and
whole weights. Promise: weights that leave are of whole models, whatever the ZeRO stage.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel

from headrace.config.sections.algorithm import ValueTargetConfig
from headrace.config.sections.learner import RankerTraining
from headrace.config.sections.run import RunConfig
from headrace.errors import UserError
from headrace.host.hardware import has_bfloat16
from headrace.host.progress_reporter import ProgressReporter
from learner.device import RankContext
from learner.models.deepspeed_engine import DeepSpeedEngine
from learner.models.family_check import may_share_rows, random_twin
from learner.models.feature_network import FeatureEngine, FeatureNetwork
from learner.models.forward import PackNetwork, PolicyNetwork, ValueNetwork
from learner.models.images import ImageInputs, VisionTower
from learner.models.loading import (
    compile_layers,
    file_weights,
    load_critic,
    load_policy,
    load_processor,
    sees_images,
)
from learner.models.lora import (
    FOLDER,
    adapter_weights,
    add_adapters,
    merged_state,
    save_adapter,
    share_base,
)
from learner.process.checkpoint import CRITIC, POLICY, RANKER
from learner.process.weight_publishing import weights_of
from learner.ranking.model import SessionRanker

VALUE_HEAD = "value_head.safetensors"
"""The file of a least-squares critic's head, in its Hugging Face folder."""


class WholeModel(NamedTuple):
    """A copy of a model on the CPU: the weights of its files, and what trains beside them (a fitted
    head, an adapter), none if nothing does."""

    weights: dict[str, Tensor]
    trained: dict[str, Tensor]


class ModelSet:
    """The models of one rank.

    Attributes:
        networks: the models that train, by their folder's name in a checkpoint. engines: theirs.
        reference: the forward pass of the policy that never changes, None without a divergence.
        ranker: the session ranker that is trained along, or None. place: their rank's context.
        tokenizer: the policy's. policy_bytes: approximate size of a published version.
    """

    def __init__(
        self,
        config: RunConfig,
        checkpoint: Path | None,
        *,
        rank: int,
        device: torch.device,
        work: ProgressReporter,
        read_image: Callable[[str], bytes],
    ) -> None:
        """Load and build, or UserError; `read_image` returns an image's file by digest."""
        learner = config.learner
        self._config, self._device = config, device
        # At ZeRO 3 whole weights are copies already.
        on_its_own = (config.publishes_copies or device.type == "cuda") and learner.zero_stage != 3
        self._buffers: dict[str, Tensor] | None = {} if on_its_own else None
        models, self._lora = config.model, learner.lora
        if checkpoint and not self._lora:
            paths = {"path": str(checkpoint / POLICY), "critic_path": str(checkpoint / CRITIC)}
            models = models.model_copy(update=paths)
        model = load_policy(models, dtype=self._dtype, device=device)
        if self._lora:
            add_adapters(model, self._lora, checkpoint and checkpoint / POLICY)
        policy = self._scoring(model)
        self._shares_rows = self._may_share_rows(model)
        if not self._shares_rows and learner.context != "full":
            raise UserError(
                f"learner.context = {learner.context!r} knows keys and values alone, and "
                f"{model.config.model_type} has layers with a state: take 'full'"
            )
        self._processor = load_processor(config.model)
        self._images: ImageInputs | None = None
        if sees_images(model.config):
            self._images = ImageInputs(read_image, self._processor, model)
        self._let_see(policy)
        self.tokenizer = AutoTokenizer.from_pretrained(
            config.model.path, trust_remote_code=config.model.trust_remote_code
        )
        self.networks: dict[str, PreTrainedModel] = {POLICY: model}
        self.engines: dict[str, DeepSpeedEngine | FeatureEngine] = {
            POLICY: DeepSpeedEngine(policy, learner.policy, learner)
        }
        if (value := config.algorithm.value) is not None:
            at = self._first_device(config.model.critic_path)
            critic = load_critic(models, dtype=self._dtype, device=at, layers=value.layers)
            self._check_rows(critic, config.model.critic_path)
            if self._lora and not config.algorithm.fits_value:
                add_adapters(critic, self._lora, checkpoint and checkpoint / CRITIC)
            self.networks[CRITIC] = critic
            self.engines[CRITIC] = self._value_engine(critic, value)
        self.ranker = None
        if learner.ranker is not None:
            self.ranker = self._load_ranker(checkpoint, learner.ranker)
            self.networks[RANKER] = self.ranker.model
            self.engines[RANKER] = DeepSpeedEngine(self.ranker.model, learner.ranker, learner)
        if learner.gradient_checkpointing:
            for network in self.networks.values():
                network.gradient_checkpointing_enable({"use_reentrant": False})
                network.train()
        self.place = self._place(rank, work)
        policy.most = self.place.most
        kl = config.algorithm.kl
        self.reference = None if kl is None else self._load_reference(kl.reference_path)
        # Behind all loading, which registers attention as it is without a compiler.
        if learner.compile:
            for name in self.networks.keys() - {RANKER}:
                compile_layers(self.networks[name])
        # Of a parameter that ZeRO 3 has partitioned, nothing but its size is here.
        self.policy_bytes = sum(
            getattr(p, "ds_numel", p.numel()) * p.element_size()
            for p in policy.parameters()
            if p.requires_grad or learner.published_adapter is None
        )

    def _load_reference(self, teacher: str | None) -> PolicyNetwork:
        """Load a teacher or the run's own model, not the checkpoint's: it never changes."""
        models = self._config.model.model_copy(update={"path": teacher} if teacher else {})
        reference = load_policy(models, dtype=self._dtype, device=self._first_device(teacher))
        self._check_rows(reference, teacher)
        reference.requires_grad_(False)
        if self._lora and teacher is None:
            share_base(reference, self.networks[POLICY])
        scoring = self._scoring(reference)
        self._let_see(scoring)
        return scoring

    def _value_engine(
        self, model: PreTrainedModel, value: ValueTargetConfig
    ) -> DeepSpeedEngine | FeatureEngine:
        fits = self._config.algorithm.fits_value
        if fits:
            model.requires_grad_(False)  # what trains is not shared
        if self._lora and self._config.model.critic_path is None:
            share_base(model, self.networks[POLICY])
        if fits:
            frozen = FeatureNetwork(model, most=value.features, autocast=self._autocast)
            self._let_see(frozen)
            return FeatureEngine(frozen, memory=value.memory_answers)
        critic = ValueNetwork(model, autocast=self._autocast)
        self._let_see(critic)
        return DeepSpeedEngine(critic, self._config.learner.value, self._config.learner)

    def _first_device(self, own: str | None) -> torch.device:
        """Return where to load: the host if it takes the base, which a GPU may not hold twice."""
        return torch.device("cpu") if self._lora and own is None else self._device

    def whole(self) -> dict[str, WholeModel]:
        """Copy each model, adapters merged, on rank 0; {} on the others, since host memory holds
        one copy and not one per rank. A collective."""
        whole: dict[str, WholeModel] = {}
        for name, engine in self.engines.items():
            model = self.networks[name]
            state = engine.whole_state(model, keep=not self.place.rank)
            if self.place.rank:
                continue
            trained: Mapping[str, Tensor] = {}
            if isinstance(engine, FeatureEngine):
                trained = {"weights": engine.head.weights, "offset": engine.head.offset}
            elif hasattr(model, "peft_config"):
                trained = adapter_weights(model)
            # Beside what trains, weights are merged, which copies them, or never change.
            copy = not trained and self._config.learner.zero_stage != 3
            weights = weights_of(merged_state(model, state), dtype=None, copy=copy)
            whole[name] = WholeModel(weights, weights_of(trained, dtype=None, copy=True))
        return whole

    def ranker_weights(self) -> dict[str, Tensor]:
        """Return the ranker's weights, on rank 0. A collective."""
        state = self.engines[RANKER].whole_state(self.networks[RANKER], keep=not self.place.rank)
        return weights_of(state, dtype=torch.float32)

    def save(self, name: str, folder: Path, model: WholeModel) -> None:
        """Write a model's Hugging Face folder. May be called while this learner trains on."""
        if name == RANKER and self.ranker is not None:
            self.ranker.save(folder, model.weights)
            return
        self.networks[name].save_pretrained(folder, state_dict=model.weights)
        if isinstance(self.engines[name], FeatureEngine):
            save_file(model.trained, folder / VALUE_HEAD)
        elif model.trained:
            save_adapter(self.networks[name], folder / FOLDER, model.trained)
        (self._processor or self.tokenizer).save_pretrained(folder)

    def _load_ranker(self, checkpoint: Path | None, training: RankerTraining) -> SessionRanker:
        source = self._config.reward.ranker()
        assert source is not None, "a rule of the configuration"
        folder = Path(str(source.options["model"])).expanduser()
        own = checkpoint / RANKER if checkpoint else folder
        return SessionRanker.load(own, self._device, longest=training.max_tokens)

    def published_weights(self, update: int) -> dict[str, Tensor]:
        """Return the policy's weights after `update` by its files' names, on rank 0. A collective.

        Those of its adapter alone if generators load it; in their dtype. RunFailedError where one
        is not finite. The next call writes the same memory where versions are written behind
        updates."""
        narrow = self._config.generator.dtype == "bfloat16"
        # A CPU without such products samples in float32.
        narrow = narrow and (self._device.type != "cpu" or has_bfloat16())
        wanted = torch.bfloat16 if narrow else None
        policy = self.networks[POLICY]
        state = self.engines[POLICY].whole_state(policy, keep=not self.place.rank, pin=True)
        if self.place.rank:
            return {}
        alone = self._config.learner.published_adapter is not None
        named: Mapping[str, Tensor] = (
            adapter_weights(policy) if alone else file_weights(policy, state)
        )
        return weights_of(named, dtype=wanted, buffers=self._buffers, update=update)

    def _place(self, rank: int, work: ProgressReporter) -> RankContext:
        config, learner = self._config, self._config.learner
        grouped = config.schedule.num_generations > 1 and learner.share_prompts
        return RankContext(
            device=self._device,
            rank=rank,
            world=learner.ranks,
            budget=learner.micro_batch_tokens if self._shares_rows else 1,
            seed=config.seed,
            forward_together=learner.zero_stage == 3,
            shares_openings=grouped and self._shares_rows,
            work=work,
            images=self._images,
        )

    def _let_see(self, network: PackNetwork) -> None:
        """Set a network's vision tower, where prompts may have images."""
        if self._images is None:
            return
        model: Any = network.model
        if not sees_images(model.config):
            raise UserError(f"{model.config.model_type} sees no images, and the policy does")
        in_step = self._config.learner.zero_stage == 3
        network.vision = VisionTower(model, self._images, in_step=in_step)

    @property
    def _dtype(self) -> torch.dtype:
        return torch.bfloat16 if self._config.learner.precision == "bfloat16" else torch.float32

    @property
    def _autocast(self) -> torch.dtype | None:
        return torch.bfloat16 if self._config.learner.precision == "bf16_autocast" else None

    def _check_rows(self, model: PreTrainedModel, own: str | None) -> None:
        if own and not self._may_share_rows(model) and self._shares_rows:
            raise UserError(f"{own}: its layers have a state, and the policy's have none")

    def _may_share_rows(self, model: PreTrainedModel) -> bool:
        twin = random_twin(model, trust_remote_code=self._config.model.trust_remote_code)
        return may_share_rows(self._scoring(twin))

    def _scoring(self, model: PreTrainedModel) -> PolicyNetwork:
        return PolicyNetwork(
            model,
            logits_chunk=self._config.learner.logits_chunk_tokens,
            temperature=self._config.generator.temperature,
            autocast=self._autocast,
            wide_head=self._config.model.head_precision == "float32",
        )
