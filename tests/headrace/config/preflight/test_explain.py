"""The arithmetic of a recipe, against numbers worked out by hand."""

from collections.abc import Callable

import pytest

from headrace.config.device_defaults import resolve
from headrace.config.estimates.model_shape import ModelShape
from headrace.config.preflight.explain import facts, memory_facts, prefix_cost
from headrace.config.sections.run import RunConfig
from headrace.host.hardware import GIB, Gpu, Hardware

Make = Callable[..., RunConfig]
CPU = Hardware((0, 1), 64 * GIB, 64 * GIB)


def values(config: RunConfig) -> dict[str, float | str]:
    return {fact.name: fact.value for fact in facts(resolve(config, CPU).config)}


def test_streaming_arithmetic(make_config: Make) -> None:
    found = values(
        make_config("schedule.batch_windows=128", "schedule.max_staleness=3", "stop.updates=9")
    )
    assert found["tokens per update"] == 128 * 60
    assert found["windows per trajectory"] == 4
    assert found["updates spanned"] == 4
    assert found["back-pressure"] == 4 * 128
    assert found["in flight"] == 128
    assert found["chunk"] == 60
    assert found["ends"] == "9 updates"


def test_carried_keys_leave_no_prefix_to_compute(make_config: Make) -> None:
    assert values(make_config("schedule.window=60"))["prefix cost"] == 2.5
    found = values(make_config("schedule.window=60", "learner.context=carried"))
    assert found["prefix cost"] == 1.0


def test_lockstep_has_no_staleness(make_config: Make) -> None:
    found = values(make_config("schedule.mode=synchronous"))
    assert found["staleness"] == 0
    assert found["window"] == 240
    assert found["prefix cost"] == 1
    assert "never" in str(found["ends"])


def test_groups_of_one_are_left_to_the_rules(make_config: Make) -> None:
    overrides = ("algorithm.name=grpo", "algorithm.value=null", "algorithm.advantages=null")
    group = ("algorithm.advantages.kind=group", "schedule.num_generations=1")
    assert "largest advantage" not in values(make_config(*overrides, *group))


def test_a_stream_of_plain_policy_gradient_says_that_age_is_not_corrected(
    make_config: Make,
) -> None:
    overrides = ("algorithm.policy_loss.kind=reinforce", "schedule.max_staleness=2")
    assert values(make_config(*overrides))["correction for age"] == "none"
    assert "correction for age" not in values(make_config(*overrides, "algorithm.ratio.kind=tis"))


@pytest.mark.parametrize(
    ("length", "window", "cost"), [(240, 240, 1.0), (240, 60, 2.5), (100, 60, 1.6), (30, 60, 1.0)]
)
def test_prefix_cost(length: int, window: int, cost: float) -> None:
    assert prefix_cost(length, window) == pytest.approx(cost)


def test_prefix_cost_tends_to_half_the_windows() -> None:
    assert prefix_cost(64_000, 64) == pytest.approx(64_000 / 128, rel=0.01)


def test_lambda_at_lengths(make_config: Make) -> None:
    found = values(make_config("algorithm.advantages.length_adaptive_alpha=0.5"))
    assert found["lambda at 15 tokens"] == 0.95
    assert found["lambda at 60 tokens"] == pytest.approx(1 - 1 / 30, abs=1e-4)
    assert values(make_config())["lambda"] == 0.95


LONG = (
    "task.max_response_length=32688", "schedule.window=2043", "learner.precision=bfloat16",
    "learner.gradient_checkpointing=true",
)  # fmt: skip
BILLION = ModelShape(
    parameters=10**9, hidden=2048, intermediate=8192, heads=16, kv_heads=8, head_dim=128,
    layers=16, vocabulary=128_000,
)  # fmt: skip


def test_the_memory_of_the_longest_trajectory(make_config: Make) -> None:
    """32,768 tokens take 128 MiB for each input of a layer. All that a layer keeps is 114,752 bytes
    a token (norms 32,768, attention 16,448, feed-forward 65,536), its gradients are 36,864."""
    machine = Hardware((0, 1), 64 * GIB, 64 * GIB, (Gpu(0, "card", 80 * GIB),))
    config = resolve(make_config(*LONG), machine, BILLION).config
    found = {fact.name: fact for fact in memory_facts(config, BILLION, machine)}
    assert found["longest trajectory"].value == 32768
    assert "by itself" in found["longest trajectory"].meaning
    for half in ("its policy update", "its value update"):
        assert found[half].value == 16 * 128 + 3586 + 1152 + 6
        parts = "inputs of layers 2,048, one layer and its gradients 4,738, ids and losses 6; "
        assert found[half].meaning.startswith(parts)
    # All layers, the last norm, what is read of it and the logits of a window.
    whole = 16 * 3586 + 512 + 8 + 3990 + 6
    assert f"; {whole:,} without" in found["its policy update"].meaning
    assert "GPU memory" in found


@pytest.mark.parametrize(
    ("overrides", "gpus", "gib", "held", "seats"),
    [
        ((), 2, 70.14, "3,591 trajectories of 320", ""),  # 20 MiB each
        (LONG, 2, 70.14, "35 trajectories of 32,768", "256"),
        ((), 0, 1.0, "25 trajectories of 320", "128"),  # in float32
    ],
)
def test_the_trajectories_that_keys_and_values_have_room_for(
    make_config: Make, overrides: tuple[str, ...], gpus: int, gib: float, held: str, seats: str
) -> None:
    """0.9 of 80 GiB less the weights' 2 * 10^9 bytes; 65,536 bytes a token."""
    cards = tuple(Gpu(index, "card", 80 * GIB) for index in range(gpus))
    machine = Hardware((0, 1), 64 * GIB, 64 * GIB, cards)
    config = resolve(make_config(*overrides), machine, BILLION).config
    (found,) = (f for f in memory_facts(config, BILLION, machine) if f.name == "KV cache")
    warning = f"; with generator.max_num_seqs = {seats} of them vLLM computes some twice"
    meaning = f"of a generator: about {held} tokens{warning if seats else ''}"
    assert (found.value, found.meaning) == (gib, meaning)


@pytest.mark.parametrize(("gib", "held"), [("4.0", "0.0056"), ("1000.0", "1")])
def test_the_share_of_carried_keys_that_stays(make_config: Make, gib: str, held: str) -> None:
    """192 answers of 32,768 tokens but for their last windows of 2,043, 65,536 bytes a token in
    each of two models; else `prefix cost` would promise what most windows do not get."""
    overrides = (*LONG, "learner.context=carried", f"learner.carried_gib={gib}")
    config = resolve(make_config(*overrides), CPU, BILLION).config
    (found,) = (f for f in memory_facts(config, BILLION, CPU) if f.name == "carried keys")
    assert found.value == 720.12
    assert found.meaning.endswith(f"learner.carried_gib holds {held} of it")


@pytest.mark.parametrize(("free", "place"), [(15, "in /dev/shm"), (14, "in the run folder")])
def test_the_room_that_files_take(make_config: Make, free: int, place: str) -> None:
    """Four versions of 2 bytes a parameter; a checkpoint has 12 more of the optimizer."""
    cards = tuple(Gpu(index, "card", 80 * GIB) for index in range(2))
    machine = Hardware((0, 1), 64 * GIB, 64 * GIB, cards, shm_bytes=free * GIB)
    group = ("algorithm.advantages.kind=group", "algorithm.value=null")
    config = resolve(make_config(*group), machine, BILLION).config
    found = {fact.name: fact for fact in memory_facts(config, BILLION, machine)}
    assert (found["weights"].value, found["checkpoint"].value) == (7.45, 13.04)
    assert place in found["weights"].meaning
    assert "the last 2 stay, and one more" in found["checkpoint"].meaning


def test_a_trajectory_that_fits_a_micro_batch_shares_it(make_config: Make) -> None:
    group = ("algorithm.advantages.kind=group", "algorithm.value=null")
    config = resolve(make_config(*group), CPU).config
    found = {fact.name: fact for fact in memory_facts(config, BILLION, CPU)}
    assert found["longest trajectory"].value == 320
    assert "shares packs of up to 4,096 tokens" in found["longest trajectory"].meaning
    assert "its value update" not in found
    only = memory_facts(resolve(make_config("evaluation.only=true"), CPU).config, BILLION, CPU)
    assert "longest trajectory" not in {fact.name for fact in only}
