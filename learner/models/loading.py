"""The two models: a policy and a value model of the same backbone.

In: Hugging Face folders or hub names. Out: modules with packed attention. Promises: a new value
head is zero, so that an untrained critic says 0 everywhere; what is saved is loadable by
transformers (`AutoModelForCausalLM`, and `AutoModelForTokenClassification` where it knows the
family) as it is.
"""

from typing import Any

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
    PreTrainedModel,
)
from transformers.core_model_loading import revert_weight_conversion
from transformers.modeling_layers import GenericForTokenClassification
from transformers.utils import is_flash_attn_2_available
from transformers.utils import logging as transformers_logging

from headrace.config.sections.model import ModelConfig
from headrace.errors import UserError
from learner.models.attention import ATTENTION, register

POLICY_CLASS = AutoModelForCausalLM


def critic_class(shape: Any) -> Any:
    """The class of a value model of this shape: transformers' own, or one made of its parts for a
    family that it has no class of."""
    theirs = MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING.get(type(shape), None)
    policy = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(shape), None)
    if policy is None or (theirs and issubclass(theirs, GenericForTokenClassification)):
        return AutoModelForTokenClassification
    parent = next(one for one in policy.__mro__[1:] if issubclass(one, PreTrainedModel))
    name = policy.__name__.replace("ForCausalLM", "ForTokenClassification")
    same = {key: getattr(policy, key) for key in ("__module__", "base_model_prefix")}
    return type(name, (GenericForTokenClassification, parent), same)


def made_from(kind: Any, shape: Any, *, trust_remote_code: bool) -> PreTrainedModel:
    """A model of that shape with random weights, in float32, with our attention."""
    register()
    kept = {"attn_implementation": ATTENTION, "dtype": torch.float32}
    shape.num_labels, shape.classifier_dropout = 1, 0.0
    if hasattr(kind, "from_config"):
        model: PreTrainedModel = kind.from_config(
            shape, trust_remote_code=trust_remote_code, **kept
        )
        return model
    made: PreTrainedModel = kind._from_config(shape, **kept)
    return made


def as_in_files(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """A model's weights under the names that its files have, tied ones once. Some classes hold
    them under others, or several as one (experts)."""
    tied = model.all_tied_weights_keys or {}
    state = {name: weight for name, weight in model.state_dict().items() if name not in tied}
    found: dict[str, torch.Tensor] = revert_weight_conversion(model, state)
    return found


def has_flash(device: torch.device) -> bool:
    """Whether a model on this device uses FlashAttention, unless our own is asked for."""
    return device.type == "cuda" and bool(is_flash_attn_2_available())


def load_policy(
    config: ModelConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
    own_attention: bool = False,
) -> PreTrainedModel:
    """The starting policy. Raises UserError where there is no such model. `own_attention`: ours
    even where a faster one is installed, which knows no frozen, carried or shared keys."""
    return _load(
        AutoModelForCausalLM, config.path, config, dtype, device, {}, flash=not own_attention
    )


def load_critic(
    config: ModelConfig, *, dtype: torch.dtype, device: torch.device, own_attention: bool = False
) -> PreTrainedModel:
    """The value model of `critic_path`, or the policy's backbone with a head of zeros.
    `own_attention` as in `load_policy`.

    Raises UserError where there is no such model or its architecture has no scalar head.
    """
    path = config.critic_path or config.path
    # The default is a dropout of 0.1, which would make V(s) a random number.
    settings = {"num_labels": 1, "classifier_dropout": 0.0}
    critic = _load(
        None,
        path,
        config,
        dtype,
        device,
        settings,
        flash=not own_attention,
    )
    if not hasattr(critic, "score"):
        raise UserError(f"{path}: {type(critic).__name__} has no head named `score`")
    if config.critic_path is None:
        for parameter in critic.score.parameters():
            torch.nn.init.zeros_(parameter)
    return critic


def _load(
    kind: Any,
    path: str,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    settings: dict[str, Any],
    *,
    flash: bool = True,
) -> PreTrainedModel:
    register()
    # A head that the checkpoint lacks is what we ask for, not worth a table in the log.
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    flash = flash and has_flash(device)
    trust = config.trust_remote_code
    try:
        shape = AutoConfig.from_pretrained(path, trust_remote_code=trust)
        for name, value in settings.items():
            setattr(shape, name, value)
        model = (kind or critic_class(shape)).from_pretrained(
            path,
            config=shape,
            dtype=dtype,
            attn_implementation="flash_attention_2" if flash else ATTENTION,
            use_safetensors=True,
            **({"trust_remote_code": True} if trust else {}),
        )
    except (OSError, ValueError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(f"cannot load the model {path}: {lines[0]}") from error
    return model.to(device)
