"""Loading of the two models: a policy and a value model of the same backbone.

In: Hugging Face folders or hub names. Out: modules with packed attention. Promises: a new value
head is zero, so that an untrained critic predicts 0 everywhere; saved models are loadable by
transformers (`AutoModelForCausalLM` or `AutoModelForImageTextToText`, and
`AutoModelForTokenClassification` where it has the family) as they are; a frozen vision tower has no
gradient.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    AttentionInterface,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForTokenClassification,
    AutoProcessor,
    PreTrainedModel,
)
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.core_model_loading import revert_weight_conversion
from transformers.modeling_layers import GenericForTokenClassification, GradientCheckpointingLayer
from transformers.utils import logging as transformers_logging

from headrace.config.sections.model import ModelConfig
from headrace.errors import UserError, first_line
from learner.models.attention import ATTENTION, packed_attention, register
from learner.models.images import tower_of
from learner.models.lora import merged_state


def has_tower(shape: Any) -> bool:
    """Return whether a model of this shape has a vision tower, seen with here or not."""
    return hasattr(shape, "vision_config") and type(shape) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING


def sees_images(shape: Any) -> bool:
    """Return whether a model of this shape is of a vision-language family."""
    is_text = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(shape), None) is not None
    return has_tower(shape) and not is_text


def policy_class(shape: Any) -> Any:
    """Return the class that loads a policy of this shape."""
    return AutoModelForImageTextToText if sees_images(shape) else AutoModelForCausalLM


def attention_of(shape: Any, implementation: str = ATTENTION) -> str | dict[str, str]:
    """Return transformers' options that compute text with that attention.

    A vision tower, where all patches of an image see each other, uses SDPA."""
    if not sees_images(shape):
        return implementation
    return {"text_config": implementation, "vision_config": "sdpa"}


def critic_class(shape: Any) -> Any:
    """Return the class of a value model of this shape.

    It is transformers' own, or one built of its parts for a family without such a class."""
    theirs = MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING.get(type(shape), None)
    known = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING if sees_images(shape) else None
    policy = (known or MODEL_FOR_CAUSAL_LM_MAPPING).get(type(shape), None)
    if policy is None or (theirs and issubclass(theirs, GenericForTokenClassification)):
        return AutoModelForTokenClassification
    parent = next(one for one in policy.__mro__[1:] if issubclass(one, PreTrainedModel))
    name = policy.__name__.rpartition("For")[0] + "ForTokenClassification"
    if (renaming := get_checkpoint_conversion_mapping(policy.__name__)) is not None:
        # The policy's files may have other names than its class; transformers knows that by name.
        register_checkpoint_conversion_mapping(name, renaming, overwrite=True)
    same = {key: getattr(policy, key) for key in ("__module__", "base_model_prefix")}
    return type(name, (GenericForTokenClassification, parent), same)


def random_model(kind: Any, shape: Any, *, trust_remote_code: bool) -> PreTrainedModel:
    """Build a model of that shape with random weights, in float32, with our attention."""
    register()
    kept = {"attn_implementation": attention_of(shape), "dtype": torch.float32}
    shape.num_labels, shape.classifier_dropout = 1, 0.0
    _without_noise(shape)
    if hasattr(kind, "from_config"):
        model = kind.from_config(shape, trust_remote_code=trust_remote_code, **kept)
    else:
        model = kind._from_config(shape, **kept)
    return cast(PreTrainedModel, model)


def file_weights(model: PreTrainedModel, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a model's weights under the names of its files: tied ones once, adapters merged.

    Some classes hold them under others, or several as one (experts). `state`: by its own names."""
    tied, whole = model.all_tied_weights_keys or {}, merged_state(model, state)
    return revert_weight_conversion(model, {n: x for n, x in whole.items() if n not in tied})


def load_policy(
    config: ModelConfig, *, dtype: torch.dtype, device: torch.device
) -> PreTrainedModel:
    """Load the starting policy. Raises UserError where there is no such model."""
    return _load(policy_class, config.path, config, dtype, device, {})


def load_processor(config: ModelConfig) -> Any:
    """Load the processor of a model with a vision tower, or UserError; None without a tower."""
    path, trust = config.path, config.trust_remote_code
    try:
        if not has_tower(AutoConfig.from_pretrained(path, trust_remote_code=trust)):
            return None
        return AutoProcessor.from_pretrained(path, trust_remote_code=trust)
    except (ImportError, OSError, ValueError, RuntimeError) as error:
        raise UserError(f"cannot load the processor of {path}: {first_line(error)}") from error


def load_critic(
    config: ModelConfig, *, dtype: torch.dtype, device: torch.device, layers: int | None = None
) -> PreTrainedModel:
    """Load the value model of `critic_path`, or the policy's backbone with zero head.

    Of the backbone the first `layers` (None: all). Raises UserError where there is no such model or
    its architecture has no scalar head."""
    path = config.critic_path or config.path
    # The default is a dropout of 0.1, which would make V(s) a random number.
    settings = {"num_labels": 1, "classifier_dropout": 0.0}
    critic = _load(critic_class, path, config, dtype, device, settings, layers=layers)
    if not hasattr(critic, "score"):
        raise UserError(f"{path}: {type(critic).__name__} has no head named `score`")
    if config.critic_path is None:
        for parameter in critic.score.parameters():
            torch.nn.init.zeros_(parameter)
    return critic


def _load(
    class_of: Callable[[Any], Any],
    path: str,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    settings: dict[str, Any],
    *,
    layers: int | None = None,
) -> PreTrainedModel:
    register()
    # A head that the checkpoint lacks is what we ask for, not worth a table in the log.
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    trust = config.trust_remote_code
    try:
        shape = AutoConfig.from_pretrained(path, trust_remote_code=trust)
        for name, value in settings.items():
            setattr(shape, name, value)
        _without_noise(shape)
        if layers is not None:
            text = shape.get_text_config()
            if layers > (known := text.num_hidden_layers):
                raise UserError(f"algorithm.value.layers = {layers}: {path} has {known}")
            text.num_hidden_layers = layers
            if getattr(text, "layer_types", None):
                text.layer_types = text.layer_types[:layers]
        model = class_of(shape).from_pretrained(
            path,
            config=shape,
            dtype=dtype,
            attn_implementation=attention_of(shape),
            use_safetensors=True,
            **({"trust_remote_code": True} if trust else {}),
        )
    except (OSError, ValueError) as error:
        raise UserError(f"cannot load the model {path}: {first_line(error)}") from error
    if model.can_generate():
        try:
            model.generation_config.validate(strict=True)
        except ValueError:  # transformers saves no temperature of a policy that does not sample
            model.generation_config.do_sample = True
    if config.freeze_vision:
        for part in tower_of(model):
            part.requires_grad_(False)
    for tensor in (parameter for parameter in model.parameters() if parameter.data_ptr() % 64):
        tensor.data = tensor.data.clone()  # its place in a file would change sums' last bits
    return model.to(device)


def _without_noise(shape: Any) -> None:
    """Set dropout and router jitter to 0: a pass has to be repeatable, in train mode too."""
    for part in (shape, shape.get_text_config(), getattr(shape, "vision_config", None)):
        for name, value in vars(part).items() if part is not None else ():
            if isinstance(value, float) and ("drop" in name or "jitter" in name):
                setattr(part, name, 0.0)


def compile_layers(model: Any, *, backend: str | Callable[..., Any] = "inductor") -> None:
    """Compile each layer of a model's decoder for packs of any size, except attention.

    A layer is compiled with its first pack; where that fails (no C compiler, say) a warning names
    the reason and it is computed as written."""
    torch._dynamo.config.suppress_errors = True
    # A fitted critic's layers have hooks: they must not run as a policy's, compiled before, do.
    torch._dynamo.config.skip_nnmodule_hook_guards = False
    # Only who compiles pays for the import of the compiler.
    AttentionInterface.register(ATTENTION, torch.compiler.disable(packed_attention))
    for module in model.base_model.get_decoder().modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.compile(dynamic=True, backend=backend)
