"""Check by computing that a family of models is computed right here.

In: a network around a model, or a model folder of which nothing but its shape and names is
read. Out: whether its sequences may share a row. Promise: a family whose logprobs or values would
differ from those of its own code, or whose weights would be published under other names than its
files have, ends in a UserError that names it; nothing is silently wrong.
"""

import copy
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel

from headrace.config.sections.model import ModelConfig
from headrace.data.image_processor import placeholder_ids
from headrace.errors import UserError, first_line
from learner.batching.layout import layout_of
from learner.models.forward import Pack, PolicyNetwork, ValueNetwork, without_tokens
from learner.models.loading import (
    attention_of,
    critic_class,
    file_weights,
    policy_class,
    random_model,
    sees_images,
)

TEST_LENGTHS = (37, 22)
"""Tokens of the two test sequences."""
EXACT_TOLERANCE, ROUNDED_TOLERANCE = 1e-4, 0.05
"""Largest mean difference in nats or values, exact or where bfloat16 rounds."""
Network = PolicyNetwork | ValueNetwork
_FAILURES = (TypeError, ValueError, RuntimeError, AttributeError, LookupError)


@torch.no_grad()
def may_share_rows(network: Network) -> bool:
    """Return whether sequences may be packed into one row.

    Not where a layer keeps a state that runs on from one sequence into the next (linear attention,
    convolutions, state space models). Two short random sequences go through the network, packed and
    one by one, and one by one through the model's own forward pass with its own attention.
    UserError where these differ."""
    model: Any = network.model
    family, device = model.config.model_type, model.device
    size = model.config.get_text_config().vocab_size
    draws = torch.Generator().manual_seed(0)
    odds = torch.ones(size)
    odds[placeholder_ids(model.config)] = 0
    ids = [odds.multinomial(n, True, generator=draws).to(device) for n in TEST_LENGTHS]
    try:
        own = _by_its_own_code(network, ids)
        alone = torch.cat([_scores(network, [one]) for one in ids])
        packed = _scores(network, ids)
    except _FAILURES as error:
        raise _refusal(family, error) from error
    exact = network.autocast is None and model.dtype in (torch.float32, torch.float64)
    bound = EXACT_TOLERANCE if exact else ROUNDED_TOLERANCE
    differs = float((alone - own).abs().mean())
    if not differs <= bound:
        raise _refusal(
            family, f"the learner's numbers differ from the model's own by {differs:.2g} on average"
        )
    return float((packed - own).abs().mean()) <= bound


def random_twin(model: Any, *, trust_remote_code: bool) -> PreTrainedModel:
    """Return a random model of a loaded one's family and few layers, on its device, in its dtype.

    It stands for the loaded one where bfloat16 rounds: the logprobs of trained weights differ by
    more between two kernels (0.065 nats on average, SmolLM2-135M) than those of some families that
    are computed wrong; its own do not."""
    shape, device = _few_layers(model.config), model.device
    with torch.random.fork_rng([device] if device.type == "cuda" else []), device:
        torch.manual_seed(0)
        twin = random_model(policy_class(shape), shape, trust_remote_code=trust_remote_code)
    return twin.to(model.dtype).eval()


def check_folder(config: ModelConfig, *, with_critic: bool) -> None:
    """Raise UserError where a folder's family cannot be trained here.

    That is where the policy or its value model is not computed right, or where its published names
    are not those of its files. No weight is read: a random model of the folder's shape with few
    layers and experts is checked."""
    trust = config.trust_remote_code
    try:
        shape = AutoConfig.from_pretrained(config.path, trust_remote_code=trust)
    except (OSError, *_FAILURES) as error:
        raise _refusal(config.path, error) from error
    _check_names(shape, config)
    small = _few_layers(shape)
    classes = [policy_class, critic_class] if with_critic else [policy_class]
    for class_of in classes:
        try:
            torch.manual_seed(0)
            model = random_model(class_of(small), small, trust_remote_code=trust).eval()
            network = PolicyNetwork(model) if class_of is policy_class else ValueNetwork(model)
        except _FAILURES as error:
            raise _refusal(shape.model_type, error) from error
        may_share_rows(network)


def _refusal(family: str, reason: object) -> UserError:
    return UserError(f"{family} models cannot be trained here: {first_line(reason)}")


def _check_names(shape: Any, config: ModelConfig) -> None:
    with torch.device("meta"):
        model = random_model(policy_class(shape), shape, trust_remote_code=config.trust_remote_code)
    theirs: set[str] = set()
    for file in Path(config.path).glob("*.safetensors"):
        with safe_open(file, framework="pt") as weights:
            theirs.update(weights.keys())
    if odd := sorted(set(file_weights(model, model.state_dict())) - theirs):
        raise _refusal(
            shape.model_type,
            f"{odd[0]} would be published, and no file in {config.path} has a weight of that name",
        )


def _few_layers(shape: Any) -> Any:
    """Return the shape with few experts and layers: at least two, and each kind.

    Weights are of a size at which a layer preserves the scale of its input."""
    small = copy.deepcopy(shape)
    text = small.get_text_config()
    layers: int = text.num_hidden_layers
    kinds = getattr(text, "layer_types", None) or [None] * layers
    fewest = max(2, 1 + max(kinds.index(kind) for kind in kinds))
    for name, value in vars(text).items():
        if isinstance(value, list) and len(value) == layers:
            setattr(text, name, value[:fewest])
    text.num_hidden_layers = min(layers, fewest)
    if sees_images(small):
        # What is tried is text: a vision tower is not run.
        for name in {"depth", "num_hidden_layers"} & set(vars(small.vision_config)):
            setattr(small.vision_config, name, 1)
    text.initializer_range = 1 / math.sqrt(text.hidden_size)
    for name in ("num_experts", "num_local_experts"):
        if getattr(text, name, None):
            few = max(4, getattr(text, "num_experts_per_tok", None) or 1)
            setattr(text, name, min(few, getattr(text, name)))
    return small


def _by_its_own_code(network: Network, sequences: Sequence[Tensor]) -> Tensor:
    model: Any = network.model
    implementation = model.config.get_text_config()._attn_implementation
    model.set_attn_implementation("eager")
    found = []
    try:
        for ids in sequences:
            with network.in_its_precision(ids.device):
                logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1].float()
            if isinstance(network, PolicyNetwork):
                if banned := placeholder_ids(model.config):
                    logits = without_tokens(logits, banned)
                log_p = (logits / network.temperature).log_softmax(-1)
                found.append(log_p.gather(1, ids[1:, None])[:, 0])
            else:
                found.append(logits[:, 0])
    finally:
        model.set_attn_implementation(attention_of(model.config, implementation))
    return torch.cat(found)


def _scores(network: Network, sequences: Sequence[Tensor]) -> Tensor:
    lengths = [ids.numel() for ids in sequences]
    device = sequences[0].device
    places = torch.cat([torch.arange(n, device=device) for n in lengths])
    last = torch.tensor(lengths, device=device).cumsum(0) - 1
    reads = torch.arange(sum(lengths), device=device)
    pack = Pack(
        token_ids=torch.cat(list(sequences)),
        position_ids=places,
        layout=layout_of(lengths, device=device),
        reads=reads[~torch.isin(reads, last)],
        targets=torch.cat([ids[1:] for ids in sequences]),
    )
    found = network(pack)
    return (found if isinstance(found, Tensor) else found.logprobs).float()
