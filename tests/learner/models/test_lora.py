"""Adapters: what trains, what is shared, what is merged, and what peft makes of the files."""

from pathlib import Path

import peft
import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from generators.engines.model_files import weight_layout
from generators.engines.vllm_adapter import adapter_layout
from headrace.config.estimates.model_shape import model_shape
from headrace.config.sections.learner import AdapterConfig
from headrace.config.sections.model import ModelConfig
from headrace.errors import UserError
from learner.models.forward import PolicyNetwork, ValueNetwork
from learner.models.loading import load_critic, load_policy
from learner.models.lora import (
    adapter_weights,
    add_adapters,
    merged_state,
    save_adapter,
    share_base,
)
from tests.learner.models.families import save_family
from tests.learner.models.test_forward import pack_of
from tests.learner.recorded import save_tiny_model

CPU = torch.device("cpu")
ADAPTERS = AdapterConfig(rank=2, alpha=3)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return ModelConfig(path=str(save_tiny_model(tmp_path_factory.mktemp("model"))))


def policy(model: ModelConfig) -> PreTrainedModel:
    return load_policy(model, dtype=torch.float32, device=CPU)


def critic(model: ModelConfig) -> PreTrainedModel:
    return load_critic(model, dtype=torch.float32, device=CPU)


def shake(model: nn.Module) -> None:
    """Give everything that trains values of its own."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.2)


def logprobs(model: PreTrainedModel) -> Tensor:
    with torch.no_grad():
        found: Tensor = PolicyNetwork(model)(pack_of(seed=1)).logprobs
    return found


def values(model: PreTrainedModel) -> Tensor:
    with torch.no_grad():
        found: Tensor = ValueNetwork(model)(pack_of(seed=1))
    return found


def test_an_adapter_that_has_learnt_nothing_changes_nothing(model: ModelConfig) -> None:
    adapted = policy(model)
    add_adapters(adapted, ADAPTERS, None)
    assert torch.equal(logprobs(adapted), logprobs(policy(model)))


def test_nothing_but_adapters_and_the_head_trains(model: ModelConfig) -> None:
    adapted, valued = policy(model), critic(model)
    for one in (adapted, valued):
        add_adapters(one, ADAPTERS, None)
    trains = {n for n, p in adapted.named_parameters() if p.requires_grad}
    assert trains
    assert all(".lora_" in name for name in trains)
    also = {n for n, p in valued.named_parameters() if p.requires_grad and ".lora_" not in n}
    assert {name.split(".")[0] for name in also} == {"score"}
    size = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    assert model_shape(Path(model.path)).adapter_parameters(ADAPTERS.rank, None) == size


def test_targets_choose_layers(model: ModelConfig) -> None:
    adapted = policy(model)
    add_adapters(adapted, AdapterConfig(rank=2, targets=["q_proj", "v_proj"]), None)
    trains = {n for n, p in adapted.named_parameters() if p.requires_grad}
    assert {name.split(".lora_")[0].split(".")[-1] for name in trains} == {"q_proj", "v_proj"}


def test_targets_that_name_no_layer_are_refused_with_those_there_are(model: ModelConfig) -> None:
    with pytest.raises(UserError, match=r"\['wq'\] names no layer; known: .*q_proj"):
        add_adapters(policy(model), AdapterConfig(targets=["wq"]), None)


def test_merged_weights_are_the_model_with_its_adapter(model: ModelConfig) -> None:
    adapted, plain = policy(model), policy(model)
    add_adapters(adapted, ADAPTERS, None)
    shake(adapted)
    merged = merged_state(adapted, adapted.state_dict())
    assert {n: x.shape for n, x in merged.items()} == {
        n: x.shape for n, x in plain.state_dict().items()
    }
    before = logprobs(plain)
    plain.load_state_dict(merged)
    assert (logprobs(plain) - before).abs().max() > 0.01
    torch.testing.assert_close(logprobs(plain), logprobs(adapted), atol=1e-5, rtol=0)


def copied(adapted: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight.detach() for name, weight in adapter_weights(adapted).items()}


@pytest.mark.parametrize("with_values", [False, True])
def test_peft_loads_a_saved_adapter(model: ModelConfig, tmp_path: Path, with_values: bool) -> None:
    load, outputs = (critic, values) if with_values else (policy, logprobs)
    adapted = load(model)
    add_adapters(adapted, ADAPTERS, None)
    shake(adapted)
    save_adapter(adapted, tmp_path / "adapter", copied(adapted))
    theirs = peft.PeftModel.from_pretrained(load(model), tmp_path / "adapter")
    merged = theirs.merge_and_unload()
    torch.testing.assert_close(outputs(merged), outputs(adapted), atol=1e-5, rtol=0)


def test_a_saved_adapter_goes_on_to_the_bit(model: ModelConfig, tmp_path: Path) -> None:
    adapted = critic(model)
    add_adapters(adapted, ADAPTERS, None)
    shake(adapted)
    save_adapter(adapted, tmp_path / "adapter", copied(adapted))
    again = critic(model)
    add_adapters(again, ADAPTERS, tmp_path)
    assert torch.equal(values(again), values(adapted))
    with pytest.raises(UserError, match="of other layers or of another rank"):
        add_adapters(critic(model), AdapterConfig(rank=4), tmp_path)
    with pytest.raises(UserError, match="of other layers or of another rank"):
        add_adapters(policy(model), ADAPTERS, tmp_path)


def test_one_copy_of_the_base_is_held(model: ModelConfig) -> None:
    adapted, valued, reference = policy(model), critic(model), policy(model)
    add_adapters(adapted, ADAPTERS, None)
    add_adapters(valued, ADAPTERS, None)
    before = values(valued), logprobs(reference)
    reference.requires_grad_(False)
    for one in (valued, reference):
        share_base(one, adapted)
    held = {p.data_ptr() for p in adapted.parameters()}
    assert all(p.data_ptr() in held for p in reference.parameters())
    own = {n for n, p in valued.named_parameters() if p.data_ptr() not in held}
    assert own == {n for n, p in valued.named_parameters() if p.requires_grad}
    assert torch.equal(values(valued), before[0])
    shake(adapted)
    assert torch.equal(logprobs(reference), before[1]), "the reference never changes"


def test_a_model_that_shares_comes_to_the_device_of_the_base(model: ModelConfig) -> None:
    """It is loaded on the host, as a GPU that holds the base once may not hold it twice."""
    adapted, valued, reference = policy(model), critic(model), policy(model)
    for one in (adapted, valued):
        add_adapters(one, ADAPTERS, None)
    reference.requires_grad_(False)
    adapted.to("meta")
    held = {id(weight) for weight in adapted.parameters()}
    for one in (valued, reference):
        share_base(one, adapted)
        found = [*one.parameters(), *one.buffers()]
        assert {x.device.type for x in found} == {"meta"}
    assert all(id(weight) in held for weight in reference.parameters())
    own = {n for n, weight in valued.named_parameters() if id(weight) not in held}
    assert own == {n for n, weight in valued.named_parameters() if weight.requires_grad}


@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe", "gpt_oss", "jamba"])
def test_generators_expect_the_adapters_that_a_family_has(family: str, tmp_path: Path) -> None:
    """By the names in its files, where each expert may have matrices of its own, and a router is a
    linear layer like others (Jamba)."""
    folder = save_family(family, tmp_path)
    adapted = policy(ModelConfig(path=str(folder)))
    add_adapters(adapted, ADAPTERS, None)
    layout = adapter_layout(weight_layout(str(folder), adapted.config), ADAPTERS)
    published = {name: x.shape for name, x in adapter_weights(adapted).items()}
    assert layout.difference("the learner", published) is None
