"""What shipped recipes become on pretended machines and on this CPU: golden files, and rules."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.config.device_defaults import (
    GpuSharing,
    gpu_places,
    resolve,
    resolve_generator,
    resolve_learner,
)
from headrace.config.estimates.memory import gpu_memory
from headrace.config.estimates.model_shape import ModelShape, model_shape
from headrace.config.loading.recipe import load_recipe
from headrace.config.sections.run import RunConfig
from headrace.host.hardware import GIB, Gpu, Hardware
from tests.headrace.config.test_recipes import RECIPES

Make = Callable[..., RunConfig]
GOLDEN = Path(__file__).parent / "resolved"
PAIR = GpuSharing(0, 2)
KEYS = {
    "generator": ("dtype", "enforce_eager", "max_num_seqs", "gpu_memory_utilization"),
    "learner": ("precision", "zero_stage", "gradient_checkpointing", "compile"),
}
QWEN = ModelShape(
    parameters=1_543_714_304, hidden=1536, intermediate=8960, heads=12, kv_heads=2, head_dim=128,
    layers=28, vocabulary=151_936,
)  # fmt: skip
"""Of Qwen2.5-1.5B, for recipes whose model is not shipped; one of them is for it."""
QWEN_7B = ModelShape(
    parameters=7_615_616_512, hidden=3584, intermediate=18_944, heads=28, kv_heads=4, head_dim=128,
    layers=28, vocabulary=152_064, head=152_064 * 3584,
)  # fmt: skip
SHAPES = {"qwen-7b-eight-gpus": QWEN_7B}


def machine(*gigabytes: int) -> Hardware:
    cards = tuple(Gpu(index, "card", size * GIB) for index, size in enumerate(gigabytes))
    return Hardware(tuple(range(16)), 256 * GIB, 256 * GIB, cards, bfloat16=True)


MACHINES = {
    "this-cpu": machine(),
    "one-h100": machine(80),
    "eight-h100": machine(*[80] * 8),
    "shared-l4": machine(24),
}
"""With one card the learner and a generator share it."""


def resolved(name: str) -> dict[str, Any]:
    """By recipe: the value of each key, and the reason where the recipe does not say it."""
    found = {}
    for path in RECIPES:
        config = load_recipe(path)
        folder = Path(config.model.path)
        shape = model_shape(folder) if folder.is_dir() else SHAPES.get(path.stem, QWEN)
        config, choices = resolve(config, MACHINES[name], shape)
        why = {choice.key: choice.why for choice in choices}
        sections = {"generator": config.generator, "learner": config.learner}
        found[path.stem] = {
            f"{section}.{key}": [getattr(sections[section], key), why.get(f"{section}.{key}")]
            for section, keys in KEYS.items()
            for key in keys
        }
    return found


@pytest.mark.parametrize("name", MACHINES)
def test_recipes_become_what_they_became(name: str) -> None:
    """After a change on purpose: python -m tests.headrace.config.test_device_defaults"""
    assert resolved(name) == json.loads((GOLDEN / f"{name}.json").read_text())


def test_seven_billion_parameters_fit_on_eight_gpus_and_say_what_does_not() -> None:
    """Four ranks share what no two could hold; the largest part says which key lowers it."""
    path = next(path for path in RECIPES if path.stem == "qwen-7b-eight-gpus")
    room = 0.9 * 80 * GIB
    needs = {
        stage: gpu_memory(
            resolve(load_recipe(path, [f"learner.zero_stage={stage}"]), machine(*[80] * 8)).config,
            QWEN_7B,
        )
        for stage in (2, 3)
    }
    assert needs[3].total < room < needs[2].total
    assert "raise learner.zero_stage" in needs[2].advice
    chunks = ["learner.logits_chunk_tokens=65536", "learner.micro_batch_tokens=65536"]
    wide = resolve(load_recipe(path, chunks), machine(*[80] * 8)).config
    assert "lower learner.logits_chunk_tokens" in gpu_memory(wide, QWEN_7B).advice


def test_on_a_cpu_nothing_is_other_than_before(make_config: Make) -> None:
    """The defaults of 84e96df."""
    config = resolve(make_config(), machine()).config
    generator, learner = config.generator, config.learner
    assert (generator.dtype, generator.enforce_eager, generator.max_num_seqs) == (
        "float32", True, 128,
    )  # fmt: skip
    assert (generator.gpu_memory_utilization, generator.capacity) == (0.9, 144)
    assert (learner.precision, learner.zero_stage, learner.gradient_checkpointing) == (
        "bf16_autocast", 0, False,
    )  # fmt: skip


def test_on_gpus_it_is_what_their_users_expect(make_config: Make) -> None:
    config, choices = resolve(make_config(), machine(80, 80), QWEN)
    assert [str(choice) for choice in choices] == [
        'learner.precision = "bfloat16" (the learner is on GPUs)',
        "learner.zero_stage = 2 (with bfloat16)",
        "learner.gradient_checkpointing = true (the learner is on GPUs)",
        "learner.compile = true (the learner is on GPUs)",
        'generator.dtype = "bfloat16" (the generator is on a GPU)',
        "generator.enforce_eager = false (the generator is on a GPU)",
        "generator.max_num_seqs = 256 (the generator is on a GPU)",
        "generator.gpu_memory_utilization = 0.9 (the generator is on a GPU)",
    ]
    assert config.generator.capacity == 288


@pytest.mark.parametrize("gpus", [(), (80,), (80, 80)])
def test_what_is_said_or_chosen_stays(make_config: Make, gpus: tuple[int, ...]) -> None:
    """So that a resumed run keeps its values on whatever machine, and every host may ask."""
    said = make_config(
        "generator.dtype=float32", "generator.enforce_eager=true", "generator.max_num_seqs=7",
        "generator.gpu_memory_utilization=0.3", "learner.precision=float32",
        "learner.zero_stage=0", "learner.gradient_checkpointing=false", "learner.compile=false",
    )  # fmt: skip
    assert resolve(said, machine(*gpus), QWEN) == (said, ())
    for other in ((), (80,)):
        once = resolve(make_config(), machine(*gpus), QWEN).config
        assert resolve(once, machine(*other), QWEN) == (once, ())


def test_a_learner_on_the_cpu_has_a_cpus_values_beside_gpus(make_config: Make) -> None:
    config = resolve(make_config("learner.device=cpu"), machine(80), QWEN).config
    assert (config.learner.precision, config.learner.gradient_checkpointing) == (
        "bf16_autocast", False,
    )  # fmt: skip
    assert (config.generator.dtype, config.generator.gpu_memory_utilization) == ("bfloat16", 0.9)


@pytest.mark.parametrize("said", ["auto", "bf16_autocast"])
def test_a_cpu_without_bfloat16_products_computes_in_float32(make_config: Make, said: str) -> None:
    config = make_config(f"learner.precision={said}")
    found = resolve_learner(config, on_gpu=False, bfloat16=False)
    assert found.config.learner.precision == "float32"
    assert 'learner.precision = "float32" (the learner is on a CPU without bfloat16 products)' in [
        str(choice) for choice in found.choices
    ]
    kept = {"auto": "bfloat16"}.get(said, said)
    config = resolve_learner(config, on_gpu=True, bfloat16=False).config
    assert config.learner.precision == kept


def test_a_generator_on_such_a_cpu_samples_in_float32(make_config: Make) -> None:
    config = make_config("generator.dtype=bfloat16")
    found = resolve_generator(config, (), bfloat16=False)
    assert found.config.generator.dtype == "float32"
    assert 'generator.dtype = "float32" (the generator is on a CPU without bfloat16 products)' in [
        str(choice) for choice in found.choices
    ]
    for gpus, products in (((), True), (machine(80).gpus, False)):
        kept = resolve_generator(config, gpus, bfloat16=products).config.generator
        assert kept.dtype == "bfloat16"


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("stage", [0, 1])
def test_bfloat16_raises_a_stage_and_says_so(make_config: Make, stage: int, on_gpu: bool) -> None:
    config = make_config("learner.precision=bfloat16", f"learner.zero_stage={stage}")
    found = resolve_learner(config, on_gpu=on_gpu, bfloat16=True)
    assert found.config.learner.zero_stage == 2
    assert f"not {stage}: bfloat16 sums gradients in float32" in str(found.choices[0])
    for kept in ("learner.zero_stage=3", "learner.precision=float32"):
        config = make_config("learner.precision=bfloat16", f"learner.zero_stage={stage}", kept)
        found = resolve_learner(config, on_gpu=on_gpu, bfloat16=True)
        assert found.config.learner.zero_stage == config.learner.zero_stage


def test_the_learner_claims_its_memory_of_a_shared_gpu_first(make_config: Make) -> None:
    """What the estimate leaves below nine tenths, evenly, rounded down to a hundredth."""
    config = resolve_learner(make_config(), on_gpu=True, bfloat16=False).config
    taken = gpu_memory(config, QWEN).total
    cards = machine(80).gpus
    for generators in (1, 2):
        company = GpuSharing(1, generators)
        share = resolve_generator(config, cards, company, taken, bfloat16=True).config.generator
        exact = (0.9 - taken / (80 * GIB)) / generators
        assert share.gpu_memory_utilization == pytest.approx(exact, abs=0.01)
        assert (share.gpu_memory_utilization or 1) <= exact
    alone = resolve_generator(config, cards, GpuSharing(0, 2), bfloat16=True).config.generator
    assert alone.gpu_memory_utilization == 0.45


@pytest.mark.parametrize(
    ("overrides", "gpus", "learner", "generators"),
    [
        ((), 1, ["0"], [("0", GpuSharing(1, 1))]),
        ((), 2, ["0"], [("1", GpuSharing())]),
        (("generator.count=2",), 2, ["0"], [("1", PAIR)] * 2),
        (("generator.count=3",), 3, ["0"], [("1", PAIR), ("2", GpuSharing()), ("1", PAIR)]),
        (("learner.ranks=2",), 2, ["0", "1"], [("0", GpuSharing(1, 1))]),
        (("generator.tensor_parallel_size=2",), 2, ["0"], [("0,1", GpuSharing(1, 1))]),
        (("learner.device=cpu",), 1, [""], [("0", GpuSharing())]),
        (("evaluation.only=true",), 2, [""], [("0", GpuSharing())]),
    ],
)  # fmt: skip
def test_who_shares_a_gpu(
    make_config: Make,
    overrides: tuple[str, ...],
    gpus: int,
    learner: list[str],
    generators: list[tuple[str, GpuSharing]],
) -> None:
    places = gpu_places(make_config(*overrides), machine(*[80] * gpus).gpus)
    assert [",".join(own) for own in places.learner] == learner
    assert [(",".join(own), places.company(*own)) for own in places.generators] == generators


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name in MACHINES:
        text = json.dumps(resolved(name), indent=1).replace("[\n   ", "[").replace("\n  ]", "]")
        (GOLDEN / f"{name}.json").write_text(text.replace(",\n   ", ", ") + "\n")
