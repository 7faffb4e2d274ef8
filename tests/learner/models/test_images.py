"""Packs with images: the same numbers as each sequence by its family's own code, alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace as replaced
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForImageTextToText

from headrace.config.sections.model import ModelConfig
from headrace.data.image_processor import placeholder_ids
from headrace.errors import UserError
from learner.device import RankContext
from learner.models.deepspeed_engine import StepLog
from learner.models.family_check import check_folder, may_share_rows
from learner.models.forward import NEVER, PolicyNetwork, ValueNetwork
from learner.models.images import ImageInputs, VisionTower, is_frozen, tower_of
from learner.models.inference import infer
from learner.models.loading import critic_class, file_weights, load_critic, load_policy
from learner.models.microbatches import empty_micro_batch, micro_batches
from learner.models.prefix_cache import PrefixCache
from learner.process.weight_publishing import weights_of
from tests.learner.models.pictures import CPU, Asked, folder_of, lacks

pytestmark = pytest.mark.skipif(bool(lacks()), reason=lacks())
FAMILIES = ("qwen3_vl", "qwen2_5_vl", "idefics3")
Network = PolicyNetwork | ValueNetwork


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(request.param, tmp_path_factory.mktemp("model"))


def seeing(network: Network, asked: Asked, **settings: Any) -> ImageInputs:
    """Give a network its tower."""
    inputs = ImageInputs(asked.files.__getitem__, asked.processor, network.model)
    network.vision = VisionTower(network.model, inputs, **settings)
    return inputs


def policy_of(folder: Path, asked: Asked, *, freeze: bool = True) -> tuple[Any, ImageInputs]:
    config = ModelConfig(path=str(folder), freeze_vision=freeze)
    network = PolicyNetwork(load_policy(config, dtype=torch.float32, device=CPU))
    return network, seeing(network, asked)


def computed(network: Any, asked: Asked, inputs: ImageInputs, **settings: Any) -> Tensor:
    """As an update computes them."""
    place = RankContext(device=CPU, images=inputs, **settings)
    everything = range(len(asked.reads.token_ids))
    return infer(network, asked.reads, everything, place, log=StepLog())


def logprobs(asked: Asked, logits: list[Tensor], banned: list[int]) -> Tensor:
    rows = torch.cat(logits)
    rows[:, banned] = NEVER
    targets = torch.from_numpy(asked.reads.targets)
    return rows.log_softmax(-1).gather(1, targets[:, None])[:, 0]


@torch.no_grad()
@pytest.mark.parametrize("budget", [1, 70, 4096])
def test_packed_is_as_alone(folder: Path, budget: int) -> None:
    asked, config = Asked(folder), ModelConfig(path=str(folder))
    policy, inputs = policy_of(folder, asked)
    own = AutoModelForImageTextToText.from_pretrained(folder, attn_implementation="sdpa")
    expected = logprobs(asked, asked.alone(own), placeholder_ids(own.config))
    found = computed(policy, asked, inputs, budget=budget)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)

    critic = ValueNetwork(load_critic(config, dtype=torch.float32, device=CPU))
    inputs = seeing(critic, asked)
    assert not computed(critic, asked, inputs).any()
    shape = AutoConfig.from_pretrained(folder, num_labels=1, classifier_dropout=0.0)
    own = critic_class(shape).from_pretrained(folder, config=shape, attn_implementation="sdpa")
    torch.manual_seed(3)
    nn.init.normal_(own.score.weight)
    critic.model.load_state_dict(own.state_dict())
    expected = torch.cat(asked.alone(own))[:, 0]
    found = computed(critic, asked, inputs, budget=budget)
    assert expected.std() > 0.01
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_every_image_counts(folder: Path) -> None:
    """Other pixels, other numbers: in the sequences that have them, and in no other."""
    asked = Asked(folder)
    policy, inputs = policy_of(folder, asked)
    before = computed(policy, asked, inputs)
    digests = list(asked.files)
    asked.reads = replace(
        asked.reads,
        media=[
            tuple(
                replaced(run, digest=digests[2] if run.digest == digests[0] else run.digest)
                for run in runs
            )
            for runs in asked.reads.media
        ],
    )
    changed = (computed(policy, asked, inputs) - before).abs() > 1e-6
    moved = {int(s) for s in asked.reads.sequence_of[changed.numpy()]}
    assert moved == {0, 3}


def test_patches_of_a_trained_tower_fill_packs(folder: Path) -> None:
    """A frozen tower sees an image once for all packs; a trained one in each pack that has it."""
    asked = Asked(folder)
    whole = sum(ids.size for ids in asked.reads.token_ids)
    for freeze, packs in ((True, 1), (False, 4)):
        _, inputs = policy_of(folder, asked, freeze=freeze)
        one, _, text, repeated = costs = [inputs.cost(media) for media in asked.reads.media]
        assert not any(costs) if freeze else one > 0
        assert text == 0
        assert repeated == inputs.cost(asked.reads.media[3][:2]), "its first image comes again"
        inputs._scale *= 1000  # a tower so large that no pack takes two sequences
        place = RankContext(device=CPU, images=inputs, budget=whole)
        assert len(micro_batches(asked.reads, range(4), place)) == packs


@torch.no_grad()
def test_a_frozen_tower_sees_each_image_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(folder)
    policy, inputs = policy_of(folder, asked)
    assert is_frozen(policy.model)
    seen: list[int] = []
    through = VisionTower._through

    def counted(self: VisionTower, images: Any) -> Any:
        seen.append(len(images))
        return through(self, images)

    monkeypatch.setattr(VisionTower, "_through", counted)
    first = computed(policy, asked, inputs)
    assert torch.equal(computed(policy, asked, inputs), first)
    assert sum(seen) == len(asked.files)
    policy.vision = VisionTower(policy.model, inputs, in_step=True)
    torch.testing.assert_close(computed(policy, asked, inputs), first, rtol=0, atol=1e-6)
    assert sum(seen) == 2 * len(asked.files)


@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize("of", ["policy", "critic"])
def test_a_gradient_reaches_a_tower_that_is_trained(folder: Path, freeze: bool, of: str) -> None:
    asked = Asked(folder)
    config = ModelConfig(path=str(folder), freeze_vision=freeze)
    load = load_policy if of == "policy" else load_critic
    model = load(config, dtype=torch.float32, device=CPU)
    network: Network = PolicyNetwork(model) if of == "policy" else ValueNetwork(model)
    if isinstance(network, ValueNetwork):
        nn.init.normal_(model.score.weight)
    inputs = seeing(network, asked)
    place = RankContext(device=CPU, images=inputs)
    ((pack, _),) = micro_batches(asked.reads, range(4), place)
    output = network(pack)
    (output if isinstance(output, Tensor) else output.logprobs).sum().backward()
    tower = [p for part in tower_of(model) for p in part.parameters()]
    assert not (freeze and any(p.grad is not None for p in tower))
    assert any(p.grad is not None and p.grad.any() for p in tower) is not freeze
    assert model.base_model.get_input_embeddings().weight.grad is not None
    # A rank without images sums gradients of the same parameters.
    model.zero_grad(set_to_none=True)
    output = network(empty_micro_batch(place).pack)
    (output if isinstance(output, Tensor) else output.logprobs).sum().backward()
    with_gradient = sum(p.grad is not None for p in tower)
    assert with_gradient == 0 if freeze else with_gradient >= len(tower) - 3
    assert not any(p.grad.any() for p in tower if p.grad is not None)


@torch.no_grad()
def test_names_and_weights_are_those_of_the_files(folder: Path) -> None:
    config = ModelConfig(path=str(folder))
    check_folder(config, with_critic=True)
    policy = load_policy(config, dtype=torch.float32, device=CPU)
    assert may_share_rows(PolicyNetwork(policy))
    published, file = (
        weights_of(file_weights(policy, policy.state_dict()), dtype=None),
        load_file(folder / "model.safetensors"),
    )
    assert published.keys() == file.keys()
    assert all(torch.equal(published[name], tensor) for name, tensor in file.items())
    critic = load_critic(config, dtype=torch.float32, device=CPU)
    assert may_share_rows(ValueNetwork(critic))
    backbone = policy.base_model.state_dict()
    assert backbone.keys() == critic.base_model.state_dict().keys()
    assert all(torch.equal(backbone[n], x) for n, x in critic.base_model.state_dict().items())
    assert not critic.score.weight.any()


@torch.no_grad()
def test_a_saved_critic_is_taken_whole(folder: Path, tmp_path: Path) -> None:
    config = ModelConfig(path=str(folder))
    critic = load_critic(config, dtype=torch.float32, device=CPU)
    nn.init.normal_(critic.score.weight)
    critic.save_pretrained(tmp_path)
    again = ModelConfig(path=str(folder), critic_path=str(tmp_path))
    found = load_critic(again, dtype=torch.float32, device=CPU).state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in critic.state_dict().items())


@torch.no_grad()
def test_a_sampled_image_token_changes_no_place(folder: Path) -> None:
    """It is a token like any other; and no distribution has it."""
    asked = Asked(folder)
    policy, inputs = policy_of(folder, asked)
    before = computed(policy, asked, inputs)
    token, reads = placeholder_ids(policy.model.config)[0], asked.reads
    ids = [x.copy() for x in reads.token_ids]
    ids[1][reads.openings[1] + 1] = token
    asked.reads = replace(reads, token_ids=ids)
    after = computed(policy, asked, inputs)
    untouched = reads.sequence_of != 1
    torch.testing.assert_close(after[untouched], before[untouched], rtol=0, atol=1e-5)
    assert after.isfinite().all()
    place = RankContext(device=CPU, images=inputs)
    ((pack, _),) = micro_batches(reads, range(4), place)
    scores = policy(pack._replace(targets=torch.full_like(pack.targets, token)))
    assert (scores.logprobs < NEVER / 2).all()
    assert scores.entropy.isfinite().all()


@torch.no_grad()
def test_shared_openings_are_as_unshared(folder: Path) -> None:
    asked = Asked(folder, answers=3)
    policy, inputs = policy_of(folder, asked)
    shared = RankContext(device=CPU, images=inputs, shares_openings=True)
    everything = range(len(asked.reads.token_ids))
    packs = [
        micro_batches(asked.reads, everything, place)[0].pack
        for place in (shared, replace(shared, shares_openings=False))
    ]
    sizes = [pack.token_ids.numel() for pack in packs]
    assert sizes[1] - sizes[0] == sum(asked.reads.openings) * 2 // 3
    found = computed(policy, asked, inputs, shares_openings=True)
    torch.testing.assert_close(found, computed(policy, asked, inputs), rtol=0, atol=1e-5)
    # The same tokens with another image are another opening.
    media = list(asked.reads.media)
    first, other = media[0][0], list(asked.files)[2]
    media[1] = (replaced(first, digest=other),)
    asked.reads = replace(asked.reads, media=media)
    found = computed(policy, asked, inputs, shares_openings=True)
    torch.testing.assert_close(found, computed(policy, asked, inputs), rtol=0, atol=1e-5)


@torch.no_grad()
def test_carried_keys_belong_to_their_images(folder: Path) -> None:
    asked = Asked(folder)
    policy, inputs = policy_of(folder, asked)
    expected = computed(policy, asked, inputs)
    place = RankContext(device=CPU, images=inputs)
    carried, everything = PrefixCache(bound=1 << 30), range(4)
    ends = np.array([x.size for x in asked.reads.token_ids])
    early = asked.reads.position_of < (ends - 2)[asked.reads.sequence_of]
    late = ~early

    def part(chosen: Any, reads: Any = None) -> Any:
        own = reads or asked.reads
        names = ("sequence_of", "position_of", "targets")
        return replace(own, **{name: getattr(own, name)[chosen] for name in names})

    for update, chosen in enumerate((early, late), 1):
        carried.begin_update(update, ())
        found = infer(policy, part(chosen), everything, place, log=StepLog(), carried=carried)
        torch.testing.assert_close(found, expected[chosen], rtol=0, atol=1e-5)
        assert (carried.figures.carried > 0) is (update == 2)
    digests, runs = list(asked.files), asked.reads.media[0]
    changed = [tuple(replaced(run, digest=digests[2]) for run in runs)]
    carried.begin_update(3, ())
    other = replace(asked.reads, media=changed + asked.reads.media[1:])
    found = infer(policy, part(late, other), [0], place, log=StepLog(), carried=carried)
    assert carried.figures.carried == 0


def test_wrong_images_are_one_line(folder: Path) -> None:
    asked = Asked(folder)
    policy, inputs = policy_of(folder, asked)
    run, ids = asked.reads.media[0][0], asked.reads.token_ids[0]
    with pytest.raises(UserError, match="has 4 tokens by the learner's processor, and 3 placeh"):
        inputs.placed(ids, [replaced(run, end=run.end - 1)])
    with pytest.raises(UserError, match=r"grids \(1, \d+, \d+\) and \(1, 2, 8\)"):
        inputs.placed(ids, [replaced(run, grid=(1, 2, 8))])
    with pytest.raises(UserError, match="is empty, damaged"):
        ImageInputs(lambda _: b"", asked.processor, policy.model).of("0" * 64)
