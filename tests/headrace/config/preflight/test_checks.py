"""Combinations that cannot work, and what a recipe needs from the machine."""

import json
import re
import socket
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from headrace.config.device_defaults import resolve, resolve_learner
from headrace.config.estimates.activations import value_activations, value_packs
from headrace.config.estimates.memory import (
    carried_bytes,
    checkpoint_bytes,
    gpu_memory,
    host_memory,
    trained_bytes,
)
from headrace.config.estimates.model_shape import ModelShape, model_shape
from headrace.config.loading.hub import is_hub_name, with_local_model
from headrace.config.loading.recipe import load_recipe
from headrace.config.preflight.checks import (
    check_dataset,
    check_machine,
    check_model,
    check_recipe,
    check_sampler,
    ignores_age,
    never_ends,
    problems,
)
from headrace.config.sections.run import RunConfig
from headrace.config.validation.rules import RULES
from headrace.errors import UserError
from headrace.host.hardware import GIB, MIB, Gpu, Hardware, port_is_free
from tests.headrace.conftest import write_model

Make = Callable[..., RunConfig]
PLENTY = Hardware((0, 1), 64 * GIB, 64 * GIB, bfloat16=True)
GROUP = (
    "algorithm.advantages.kind=group", "algorithm.value=null", "schedule.unit=group",
    "schedule.window=null",
)  # fmt: skip
MIXED = ("algorithm.admit=mixed_groups",)
TIS = ("algorithm.ratio.kind=tis",)
TOGETHER = ("reward.kind=function", "reward.function=m:f", "reward.unit=group")
CARRIED = "learner.context=carried"
LATE = "learner.publish_min_interval_s=60"
ALONG = ("evaluation.mode=along", "evaluation.every_updates=2")
RANKER = ("reward.kind=ranker", "learner.ranker.lr=1e-4")
WARMUP = ("algorithm.value.warmup_updates=9", "stop.after_warmup=true")
BY_TURNS = ("environment.name=guess", "schedule.across_turns=false")
BY_ACT = ("algorithm.advantages.whiten_by_act=true", "algorithm.turns=turn", "environment.name=pag")
BRANCHES = ("environment.name=command", "environment.rewritten=branch", "schedule.window=240")


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["schedule.window=480"], "schedule.window: 480 is longer than task.max_response_length"),
        (["schedule.window=100"], "schedule.window: 100 does not divide task.max_response_length"),
        (["schedule.max_in_play=64"], "no room beside a batch of 64 windows"),
        (["schedule.num_generations=193"], "193 of a prompt never begin, for at most 192 windows"),
        (
            ["schedule.num_generations=16", "schedule.batch_windows=8", "schedule.max_staleness=0"],
            "use fewer, or a larger schedule.batch_windows or schedule.max_staleness",
        ),
        ([*GROUP, "schedule.value_batch_tokens=9"], "makes batches for a value model, and this"),
        (["algorithm.advantages.boundary_mask=60"], "leaves nothing of a window of 60 tokens"),
        ([*BY_TURNS, "algorithm.advantages.boundary_mask=8"], "or no end of a turn where across"),
        (["generator.chunk_tokens=61"], "generator.chunk_tokens: 61 is longer than a window"),
        (["generator.fire.top_k=1"], "generator.fire.top_k: 1 leaves the first token no choice"),
        (["generator.fire.top_k=0"], "generator.fire.top_k: 0 leaves the first token no choice"),
        (
            ["generator.fire.temperature=1"],
            "generator.fire.temperature: 1 is no hotter than generator.temperature = 1",
        ),
        (
            ["generator.fire.temperature=2", "generator.temperature=3"],
            "2 is no hotter than generator.temperature = 3",
        ),
        (
            ["transport.max_message_mib=0.01"],
            "transport.max_message_mib: 0.01 has no room for one answer with",
        ),
        ([CARRIED, "schedule.mode=windowed"], 'learner.context: "carried" goes with generators'),
        ([CARRIED, "schedule.mode=synchronous"], 'use "frozen"'),
        ([CARRIED, "schedule.max_staleness=0"], "compute each prefix again with new weights"),
        ([CARRIED, "generator.kv_on_update=recompute"], 'generator.kv_on_update = "keep"'),
        (
            ["learner.carried_gib=1", "learner.carried_on_device_gib=2"],
            "learner.carried_on_device_gib: 2 is part of learner.carried_gib = 1",
        ),
        (["generator.top_p=0.9"], "generator.top_p: 0.9: the sampler's logprobs are renormalised"),
        (["generator.top_k=50"], "generator.top_k: 50: the sampler's logprobs are renormalised"),
        (["algorithm.value=null"], "algorithm.value: missing"),
        (["algorithm.advantages.kind=group", "schedule.unit=group"], "use no value model"),
        (["algorithm.advantages.kind=group", "algorithm.value=null"], 'schedule.unit: "window"'),
        ([*GROUP], "schedule.num_generations: 1 leaves no"),
        (
            [*GROUP, "schedule.num_generations=7"],
            "schedule.batch_windows: 64 is no multiple of schedule.num_generations = 7",
        ),
        (
            [*GROUP, "schedule.unit=trajectory", "schedule.num_generations=8"],
            '"trajectory" tears groups apart',
        ),
        ([*GROUP, "schedule.window=60"], "schedule.window = 60 cuts them at 60 of 240 tokens"),
        (["schedule.unit=trajectory"], "schedule.window = 60 cuts them at 60 of 240 tokens"),
        (
            [*GROUP, *BY_TURNS, "schedule.num_generations=8"],
            "or across_turns = false at their turns",
        ),
        (
            [*BY_TURNS, *TIS, "algorithm.ratio.level=sequence", "schedule.window=240"],
            "as turns are with across_turns = false",
        ),
        (["schedule.unit=group", "schedule.window=null"], "makes a critic wait for whole groups"),
        (
            [*TOGETHER, "schedule.mode=windowed", "schedule.num_generations=4"],
            'reward.unit: "group" scores an answer when its siblings have ended',
        ),
        ([*GROUP, *MIXED], 'algorithm.admit: "mixed_groups" needs groups'),
        (
            [*MIXED, "schedule.num_generations=4", "schedule.mode=windowed"],
            "judges complete groups in rounds",
        ),
        (
            [*GROUP, "algorithm.advantages.baseline=none"],
            'algorithm.advantages.scale: "sample_std" divides by a spread',
        ),
        (
            ["algorithm.advantages.length_adaptive_alpha=0.05"],
            "0.05 keeps lambda at its floor gae_lambda_policy = 0.95 for every length up to",
        ),
        ([*TIS, "algorithm.ratio.level=sequence"], "windows of 60 tokens are parts of one"),
        ([*TIS, "algorithm.ratio.geometric_filter=[0.999, 1.001]"], "judges whole responses"),
        ([*TIS, "algorithm.ratio.geometric_filter=[1.1, 1.2]"], "should be [low, high] with"),
        (["algorithm.kl.coef=0.1", "algorithm.kl.estimator=k1"], '"k1" as a loss has a gradient'),
        (
            [
                "algorithm.kl.coef=0.1",
                "algorithm.kl.where=reward",
                "algorithm.kl.estimator=k3+",
            ],
            '"k3+" in the reward does not lead towards the reference',
        ),
        (
            ["algorithm.kl.coef=0.1", "algorithm.kl.where=reward", "generator.fire.top_k=4"],
            'algorithm.kl.where: "reward" takes the divergence from what sampled a token',
        ),
        (["algorithm.overlong.cache=241"], "241 is longer than task.max_response_length = 240"),
        (
            ["algorithm.turns=turn", "algorithm.overlong.cache=24"],
            "algorithm.overlong.cache: holds a turn against the limit of all turns",
        ),
        (["algorithm.overlong.factor=2"], "does nothing without cache or filter"),
        ([*BY_ACT, "algorithm.advantages.whiten=false"], "whiten_by_act: goes together with"),
        (BY_ACT[:1], "whiten_by_act: goes together with"),
        ([*GROUP, "model.critic_path=critic"], "model.critic_path: names a value model"),
        (["algorithm.value.warmup_explained_variance=0.5"], "ends a warm-up early"),
        (["stop.after_warmup=true"], "needs a warm-up of a value model"),
        ([*WARMUP, "algorithm.value.fit=least_squares"], 'value model of fit = "gradient"'),
        (["stop.accuracy=0.9"], "stop.accuracy: needs evaluation.every_updates"),
        (["evaluation.spacing=0.1"], "evaluation.spacing: leaves out some of"),
        (["evaluation.mode=along"], 'evaluation.mode: "along" is for the'),
        ([*ALONG, "schedule.mode=windowed"], 'evaluation.mode: "along" is for the'),
        ([*ALONG, "evaluation.spacing=0.1"], "evaluation.spacing: leaves out some of"),
        (["schedule.mode=windowed", "schedule.stale=wait"], "ignores schedule.stale"),
        (["schedule.mode=synchronous", "schedule.warm_start=full"], '"synchronous" ignores'),
        ([LATE, "schedule.mode=windowed"], "a round wants the newest version"),
        ([LATE, "schedule.max_staleness=0"], "goes with streams of some staleness"),
        (["learner.offload_optimizer=true"], "needs learner.zero_stage"),
        (["learner.lora.rank=4", "learner.zero_stage=3"], "learner.lora: shares one base model"),
        (["learner.lora.rank=4", "model.freeze_vision=false"], "has adapters for the decoder"),
        (["learner.lora.publish=adapter", "generator.engine=torch"], 'is "merged" where'),
        (["learner.lora.publish=adapter", "learner.lora.rank=600"], "lora.rank: is at most 512"),
        (["algorithm.policy_loss.kind=none"], '"none" trains by a divergence in the loss alone'),
        (["reward.kind=function"], "reward.function: goes together"),
        (
            ["reward.kind=function", "reward.function=m:f", "reward.correct_reward=0.9"],
            "reward.correct_reward: a function says itself what it pays; which scores of a "
            "function mean a right answer is reward.correct_threshold",
        ),
        (["reward.correct_reward=0"], "reward.wrong_reward: 0 is not less than reward.correct_rew"),
        (["learner.ranker.lr=1e-4"], "learner.ranker: trains the ranker of a reward along; name"),
        ([*RANKER, "reward.options.answer=order"], "learner.ranker: learns from answers that are"),
        ([*RANKER, "schedule.num_generations=4"], '"trajectory" lets several versions of a ranker'),
        ([*RANKER, *ALONG, "evaluation.samples=4"], "versions of a ranker score one group"),
        (["transport.heartbeat_timeout_s=2"], "should be at least three heartbeats"),
        (["evaluation.only=true", "evaluation.before=false"], "evaluation.before: must be true"),
        ([*BRANCHES, "environment.scored=true"], '"branch" is for agents that pay themselves'),
    ],
)
def test_a_broken_rule_says_what_to_do(
    make_config: Make, overrides: list[str], expected: str
) -> None:
    config = make_config(*overrides)
    assert any(expected in problem for problem in problems(config)), problems(config)
    with pytest.raises(UserError) as caught:
        check_recipe(config)
    assert "\n" not in str(caught.value)


def test_every_rule_has_a_recipe_that_passes(make_config: Make) -> None:
    good = make_config()
    assert problems(good) == []
    group = make_config(*GROUP, "schedule.num_generations=8")
    assert problems(group) == []
    whole = make_config("schedule.mode=synchronous", "schedule.window=100")
    assert problems(whole) == []
    corrected = make_config(
        *GROUP, *MIXED, *TIS, "schedule.num_generations=4", "algorithm.ratio.level=sequence",
        "algorithm.ratio.geometric_filter=[0.999, 1.001]", "algorithm.overlong.cache=48",
        "algorithm.kl.coef=0.1", "schedule.stale=wait",
    )  # fmt: skip
    assert problems(corrected) == []
    assert problems(make_config(*BY_ACT)) == []
    assert problems(make_config(*BY_TURNS)) == []
    masked = (*BY_TURNS, "algorithm.advantages.boundary_mask=8", "algorithm.turns=turn")
    assert problems(make_config(*masked)) == []
    across = (*GROUP, *BY_TURNS, "schedule.across_turns=true", "schedule.num_generations=8")
    assert problems(make_config(*across)) == []
    for mode in ("streaming", "synchronous"):
        scored = (*TOGETHER, f"schedule.mode={mode}", "schedule.num_generations=4")
        assert problems(make_config(*scored)) == []
    assert problems(make_config(*ALONG, "schedule.warm_start=full")) == []
    assert problems(make_config(*RANKER, "evaluation.samples=4")) == []
    assert problems(make_config(*RANKER, *ALONG)) == []
    scoring = (*RANKER, *ALONG, "evaluation.samples=4", "evaluation.only=true")
    assert problems(make_config(*scoring)) == []
    together = (*RANKER, "reward.unit=group", "schedule.num_generations=4")
    assert problems(make_config(*together, *ALONG, "evaluation.samples=4")) == []
    pretraining = make_config(*WARMUP)
    assert problems(pretraining) == []
    assert problems(make_config(LATE)) == []
    assert problems(make_config("generator.fire.top_k=4")) == []
    assert not never_ends(pretraining)
    assert problems(make_config("schedule.num_generations=192")) == []
    narrow_evaluation = ("evaluation.top_p=0.7", "generator.top_k=0", "generator.top_p=1")
    assert problems(make_config(*narrow_evaluation)) == []
    narrow = ("generator.top_p=0.7", "generator.top_k=20", "evaluation.only=true")
    assert problems(make_config(*narrow)) == []
    rounds = ("schedule.mode=windowed", "schedule.batch_windows=8", "schedule.num_generations=16")
    assert problems(make_config("schedule.mode=windowed", "schedule.max_in_play=64")) == []
    assert problems(make_config(*rounds)) == []
    assert len({rule.advice for rule in RULES}) == len(RULES)


def test_a_run_without_end_is_known(make_config: Make) -> None:
    assert never_ends(make_config())
    assert not never_ends(make_config("stop.tokens=10"))
    assert not never_ends(make_config("evaluation.only=true"))


def test_plain_policy_gradient_in_a_stream_is_known_to_ignore_age(make_config: Make) -> None:
    stream = (*GROUP, "schedule.num_generations=8", "algorithm.policy_loss.kind=reinforce")
    assert ignores_age(make_config(*stream))
    assert problems(make_config(*stream)) == []
    for cure in (*TIS, "schedule.max_staleness=0", "schedule.mode=synchronous",
                 "algorithm.policy_loss.kind=clipped"):  # fmt: skip
        assert not ignores_age(make_config(*stream, cure))


@pytest.mark.parametrize("window", ["60", "100", "480", "null"])
def test_synchronous_takes_whole_responses_whatever_the_window(
    make_config: Make, window: str
) -> None:
    """Everybody asks for `RunConfig.window`; `schedule.window` is for the other modes."""
    config = make_config("schedule.mode=synchronous", f"schedule.window={window}")
    assert config.window == config.task.max_response_length == 240
    assert problems(config) == []


def test_the_model_folder_must_be_one(recipe: Path) -> None:
    config = load_recipe(recipe)
    shape = check_model(config)
    assert (shape.parameters, shape.hidden, shape.layers, shape.vocabulary) == (1000, 8, 2, 32)
    folder = Path(config.model.path)
    for name, expected in (
        ("tokenizer.json", "no tokenizer in it"),
        ("model.safetensors", r"no \*\.safetensors weights"),
        ("config.json", "no config.json"),
    ):
        (folder / name).unlink()
        with pytest.raises(UserError, match=expected):
            check_model(config)
    folder.rmdir()
    with pytest.raises(UserError, match="no such model folder"):
        check_model(config)


@pytest.mark.parametrize("size", [[16, 16], None])
def test_a_size_that_is_no_number_is_one_line(recipe: Path, size: object) -> None:
    """Gemma 3n has one for each layer, some Nemotrons null."""
    config = load_recipe(recipe)
    path = Path(config.model.path, "config.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"intermediate_size": size}))
    with pytest.raises(UserError, match=r"model\.path = .*cannot read it: int\(\) argument"):
        check_model(config)


@pytest.mark.parametrize("rest", [b"", b"\0\0\0"])
def test_weights_that_were_cut_off_are_one_line(recipe: Path, rest: bytes) -> None:
    config = load_recipe(recipe)
    Path(config.model.path, "model.safetensors").write_bytes(rest)
    with pytest.raises(UserError, match=r"model\.path = .*cannot read it"):
        check_model(config)


@pytest.mark.parametrize(
    ("changes", "context", "expected"),
    [
        ([], 320, None),
        ([], 319, "may have 320 tokens, and the model's context is 319: lower"),
        (["generator.engine=fake"], 319, None),
        (["environment.name=guess"], 1343, "may have 1344 tokens, and the model"),
        (["environment.name=guess", "environment.max_context=300"], 319, None),
        (["algorithm.value.context=anchor"], 559, "may have 560 tokens, and the value model's"),
        (["algorithm.value.context=anchor"], 560, None),
    ],
)
def test_answers_have_to_fit_the_models_context(
    make_config: Make, tmp_path: Path, changes: list[str], context: int, expected: str | None
) -> None:
    """Before a queue, and before a model is loaded."""
    folder = write_model(tmp_path / "m")
    shape = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": context}
    (folder / "config.json").write_text(json.dumps(shape))
    with pytest.raises(UserError, match=expected) if expected else nullcontext():
        check_model(make_config(f"model.path={folder}", *changes))


@pytest.mark.parametrize("context", [319, 320])
@pytest.mark.parametrize(
    ("key", "name"),
    [("model.critic_path", "value model"), ("algorithm.kl.reference_path", "reference")],
)
def test_a_pretrained_value_model_and_a_teacher_read_whole_answers_too(
    make_config: Make, tmp_path: Path, key: str, name: str, context: int
) -> None:
    """Behind their context they would say something all the same."""
    policy = write_model(tmp_path / "policy")
    folder = write_model(tmp_path / "other", parameters=8, tensor="score.weight")
    shape = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": context}
    (folder / "config.json").write_text(json.dumps(shape))
    overrides = [f"model.path={policy}", f"{key}={folder}"]
    if name == "reference":
        overrides.append("algorithm.kl.coef=1.0")
    expected = f"may have 320 tokens, and the {name}'s context is 319"
    with nullcontext() if context == 320 else pytest.raises(UserError, match=expected):
        check_model(make_config(*overrides))
    # An evaluation loads neither.
    alone = make_config(*overrides, "evaluation.only=true")
    assert check_model(alone).parameters == 1000


@pytest.mark.parametrize(
    ("family", "changes", "on_gpu", "expected"),
    [
        ("cohere2", [], False, "a token of cohere2 sees 100 tokens, and 101 in vLLM"),
        ("cohere2", ["generator.engine=torch"], False, None),
        ("cohere2", ["task.max_prompt_length=20", "task.max_response_length=80"], False, None),
        ("apertus", [], False, "the activation of apertus in bfloat16 whatever the model is in"),
        ("apertus", ["generator.dtype=float32"], True, "the activation of apertus in bfloat16"),
        ("apertus", ["generator.dtype=bfloat16"], False, None),
        ("apertus", [], True, None),
        ("llama", [], False, None),
    ],
)
def test_what_vllm_computes_otherwise_is_refused(
    make_config: Make, tmp_path: Path, family: str, changes: list[str], on_gpu: bool,
    expected: str | None,
) -> None:  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family, "sliding_window": 100}))
    chosen = ["schedule.window=20", "generator.engine=vllm", f"model.path={tmp_path}", *changes]
    config = make_config(*chosen)
    with pytest.raises(UserError, match=expected) if expected else nullcontext():
        check_sampler(config, on_gpu=on_gpu)


@pytest.mark.parametrize("engine", ["vllm", "torch"])
@pytest.mark.parametrize(
    "shape",
    [
        {"rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 319},
        {"rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 319}},
    ],
)
def test_rotations_that_change_with_the_length_are_refused(
    make_config: Make, tmp_path: Path, engine: str, shape: dict[str, object]
) -> None:
    """vLLM takes the long ones for a whole run, transformers for a pack that is long."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "phi3"} | shape))
    config = make_config(f"generator.engine={engine}", f"model.path={tmp_path}")
    with pytest.raises(UserError, match="beyond 319 tokens LongRoPE is another"):
        check_sampler(config, on_gpu=False)
    short = config.task.model_copy(update={"max_prompt_length": config.task.max_prompt_length - 1})
    check_sampler(config.model_copy(update={"task": short}), on_gpu=False)


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        ('["wq"]', r"learner\.lora\.targets = \['wq'\] names no layer; known: q_proj"),
        ('["wq", "q_proj"]', None),
    ],
)
def test_adapters_beside_layers_that_no_file_has_are_refused(
    make_config: Make, tmp_path: Path, targets: str, expected: str | None
) -> None:
    """Before a process starts: the learner would say so when all others run."""
    folder = write_model(tmp_path / "m", tensor="model.layers.0.self_attn.q_proj.weight")
    config = make_config(f"model.path={folder}", f"learner.lora.targets={targets}")
    with pytest.raises(UserError, match=expected) if expected else nullcontext():
        check_model(config)


def test_an_evaluation_asks_for_nothing_that_the_learner_has(
    make_config: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A recipe's teacher need not be here, nor its adapters fit the family that is evaluated."""
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    folder = write_model(tmp_path / "m", tensor="model.layers.0.self_attn.q_proj.weight")
    teacher = ("algorithm.kl.coef=1.0", "algorithm.kl.reference_path=owner/not-there")
    recipe = (f"model.path={folder}", *teacher, 'learner.lora.targets=["wq"]')
    check_model(with_local_model(make_config(*recipe, "evaluation.only=true"), download=True))
    with pytest.raises(UserError, match=r"algorithm\.kl\.reference_path = .*no such model folder"):
        check_model(make_config(*recipe))


def test_a_critic_folder_is_checked_too(recipe: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model\.critic_path = .*no such model folder"):
        check_model(load_recipe(recipe, [f"model.critic_path={tmp_path}/none"]))


def test_more_layers_than_the_model_has_are_refused_before_anything_starts(recipe: Path) -> None:
    check_model(load_recipe(recipe, ["algorithm.value.layers=2"]))
    wanted = ["algorithm.value.layers=3"]
    with pytest.raises(UserError, match=r"^algorithm\.value\.layers = 3: there are 2$"):
        check_model(load_recipe(recipe, wanted))
    check_model(load_recipe(recipe, [*wanted, "evaluation.only=true"]))


def test_a_dataset_must_exist(make_config: Make, tmp_path: Path) -> None:
    config = make_config("task.kind=dataset", f"task.path={tmp_path}/rows.jsonl")
    with pytest.raises(UserError, match=r"task\.path = .*rows\.jsonl.*no such file"):
        check_dataset(config)
    (tmp_path / "rows.jsonl").write_text("{}")
    check_dataset(config)
    check_dataset(make_config("task.kind=dataset", f"task.path={tmp_path}/ro*.jsonl"))
    none = make_config("task.kind=dataset", f"task.path={tmp_path}/none*.jsonl")
    with pytest.raises(UserError, match="no such file"):
        check_dataset(none)


def test_a_port_in_use_is_named(recipe: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert not port_is_free("127.0.0.1", port)
        with pytest.raises(UserError, match=rf"transport\.port = {port} is in use"):
            check_machine(load_recipe(recipe, [f"transport.port={port}"]), PLENTY)
    elsewhere = ["transport.host=192.0.2.1", f"transport.port={port}"]
    with pytest.raises(UserError, match=r"no address of this machine: .* or transport\.host$"):
        check_machine(load_recipe(recipe, elsewhere), PLENTY)


def test_too_little_memory_is_said_with_its_parts(recipe: Path) -> None:
    poor = Hardware((0,), 2 * GIB, 1 * GIB)
    config = load_recipe(recipe, ["generator.engine=vllm", "generator.kv_cache_gib=3"])
    with pytest.raises(UserError, match=r"not enough memory.*kv cache 3\.0.*1\.0 GiB are free"):
        check_machine(config, poor)
    check_machine(config, PLENTY)


def test_memory_grows_with_what_costs_it(make_config: Make, tmp_path: Path) -> None:
    def made(*overrides: str) -> RunConfig:
        return resolve(make_config(*overrides), PLENTY).config

    shape = model_shape(write_model(tmp_path / "m", parameters=1_000_000))
    plain = host_memory(made(), shape, on_gpu=False)
    each = {"models": 8_000_000, "optimizers": 16_000_000, "gradients": 4_000_000}
    assert each.items() <= plain.parts.items()
    assert plain.parts["kv cache"] == GIB
    assert host_memory(made("learner.ranks=2"), shape, on_gpu=False).total > plain.total
    only = host_memory(made("evaluation.only=true"), shape, on_gpu=False)
    assert "optimizers" not in only.parts
    assert plain.parts["carried keys"] == 0
    carried = made(CARRIED, "learner.ranks=2", "learner.precision=bf16_autocast")
    assert not problems(carried)
    # 192 windows in play, half of them a rank's, 80 + 240 tokens each, of two models; of the last
    # window of 60 nothing is kept.
    longest = carried.task.max_prompt_length + carried.task.max_response_length
    assert (longest, carried.window) == (320, 60)
    rank = 2 * 96 * (320 - 60) * shape.kv_bytes_per_token
    assert host_memory(carried, shape, on_gpu=False).parts["carried keys"] == 2 * rank
    bounded = made(CARRIED, "learner.carried_gib=0.001", "learner.carried_on_device_gib=0.0005")
    assert host_memory(bounded, shape, on_gpu=False).parts["carried keys"] == int(0.001 * GIB)
    assert gpu_memory(bounded, shape).parts["carried keys"] == int(0.0005 * GIB)
    sharded = made("learner.ranks=4", "learner.zero_stage=3")
    quarter = {name: size // 4 for name, size in each.items()} | {"gradients": 2_000_000}
    assert quarter.items() <= gpu_memory(sharded, shape).parts.items()
    offloaded = made("learner.ranks=4", "learner.zero_stage=3", "learner.offload_optimizer=true")
    assert "optimizers" not in gpu_memory(offloaded, shape).parts
    adapted = made("learner.lora.rank=4")
    few = shape.adapter_parameters(4, None)
    assert gpu_memory(adapted, shape).parts["gradients"] == 4 * few
    assert gpu_memory(adapted, shape).parts["models"] == 4 * (shape.parameters + 2 * few)
    assert gpu_memory(offloaded, shape).parts["gradients"] == 0
    summed = made("learner.ranks=4", "learner.zero_stage=1", "learner.offload_optimizer=true")
    # DeepSpeed reduces them, and so takes them to the host, behind the last micro-batch alone.
    assert gpu_memory(summed, shape).parts["gradients"] == each["gradients"]
    two = ("learner.ranks=4", "learner.zero_stage=2", "learner.offload_optimizer=true")
    assert gpu_memory(made(*two, "learner.precision=float32"), shape).parts["gradients"] == 0
    # A rank's share of gradients in bfloat16 is summed in float32 where they are computed.
    narrow = made(*two, "learner.precision=bfloat16")
    assert gpu_memory(narrow, shape).parts["gradients"] == each["gradients"] // 4
    on_host = host_memory(offloaded, shape, on_gpu=True).parts
    # Moments, weights, gradients as they are summed and as they are in a step, 4 bytes each.
    assert on_host["optimizers on the host"] == 20 * 2_000_000
    cut_up = made("learner.ranks=4", "learner.zero_stage=2")
    # DeepSpeed copies the weights that it cuts up, though they are in float32 already.
    assert gpu_memory(cut_up, shape).parts["optimizers"] == 12 * 2_000_000 // 4
    model = f"reward.options.model={tmp_path / 'm'}"
    paid = made("reward.kind=ranker", model, "learner.ranker.lists=2")
    assert gpu_memory(paid, shape).parts["ranker"] == 16_000_000


@pytest.mark.parametrize("kind", ["bradley_terry", "ranker"])
def test_a_folder_that_is_no_reward_model_is_left_to_the_check_of_rewards(
    make_config: Make, tmp_path: Path, kind: str
) -> None:
    """As that of a run, whose folder `model` was meant."""
    shape = model_shape(write_model(tmp_path / "m"))
    named = (f"reward.kind={kind}", f"reward.options.model={tmp_path}")
    config = resolve(make_config(*named), PLENTY).config
    assert host_memory(config, shape, on_gpu=False).parts["rewards"] > 0


def test_a_value_model_of_few_layers_takes_less(make_config: Make, tmp_path: Path) -> None:
    shape = model_shape(write_model(tmp_path / "m", parameters=1_000_000))
    few = shape.first(1)
    layer = 4 * 8 * 8 + 3 * 8 * 16
    assert (shape.layers, few.layers, shape.first(9)) == (2, 1, shape)
    assert few.parameters == shape.parameters - layer
    both = shape.parameters + few.parameters
    trained, fitted = (
        trained_bytes(resolve(make_config(*overrides), PLENTY).config, shape, on_gpu=False)
        for overrides in (
            ("algorithm.value.layers=1",),
            ("algorithm.value.layers=1", "algorithm.value.fit=least_squares"),
        )
    )
    assert trained["models"] == fitted["models"] == 4 * both
    assert (trained["optimizers"], fitted["optimizers"]) == (8 * both, 8 * shape.parameters)
    overrides = ("algorithm.value.fit=least_squares", "algorithm.value.features=4")
    config = resolve(make_config(*overrides), PLENTY).config
    tokens = max(config.schedule.batch_windows * config.window, config.longest)
    # Four numbers of each token, and of each of the 2 layers' 8, which are projected on four.
    assert trained_bytes(config, shape, on_gpu=False)["features"] == 4 * 4 * (tokens + 2 * 8)
    assert "features" not in trained


def test_a_teacher_and_a_value_model_of_their_own_count_by_their_shapes(
    make_config: Make, tmp_path: Path
) -> None:
    shape = model_shape(write_model(tmp_path / "m", parameters=1_000_000))
    folder = write_model(tmp_path / "large", parameters=5_000_000)
    table = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(table | {"num_hidden_layers": 20}))
    large = f"algorithm.kl.reference_path={folder}"
    plain, taught, valued, adapted = (
        resolve(make_config("algorithm.kl.coef=0.1", CARRIED, *overrides), PLENTY).config
        for overrides in (
            (), (large,), (f"model.critic_path={folder}",), (large, "learner.lora.rank=4"),
        )
    )  # fmt: skip
    # Keys and values of policy, value model and reference, of 2 layers or 20.
    each = carried_bytes(plain, shape) // 3
    assert carried_bytes(taught, shape) == carried_bytes(valued, shape) == 12 * each
    pack = value_packs(plain)[0]
    few, many = (value_activations(c, shape, pack, on_gpu=False) for c in (plain, valued))
    assert many.layers == 10 * few.layers
    held = [
        trained_bytes(config, shape, on_gpu=False)["models"]
        for config in (plain, taught, valued, adapted)
    ]
    adapters = 2 * shape.adapter_parameters(4, None)
    assert held == [4 * n for n in (3_000_000, 7_000_000, 7_000_000, 6_000_000 + adapters)]


def test_every_part_is_of_the_processes_of_a_role_or_of_files(make_config: Make) -> None:
    shape = ModelShape(1000, 1, 1, 1, 1, 1, 1, 1)
    found = host_memory(resolve(make_config(), PLENTY).config, shape, on_gpu=False)
    roles = ("coordinator", "generator", "learner", "reward", "dashboard", "")
    assert sum(map(found.of_role, roles)) == found.total
    assert found.of_role("generator") == found.parts["generators"] + found.parts["kv cache"]
    assert found.of_role("") == found.parts["published weights"]


def test_a_checkpoint_has_float32_weights_of_each_share(make_config: Make) -> None:
    """A rank saves them at ZeRO 3, as at ZeRO 2, though the optimizer holds no others there."""
    shape = ModelShape(1000, 1, 1, 1, 1, 1, 1, 1)
    two, three = (
        checkpoint_bytes(make_config("learner.precision=float32", f"learner.zero_stage={n}"), shape)
        for n in (2, 3)
    )
    assert two == three == 2 * 4 * 1000 + 2 * 12 * 1000


def test_parameters_are_reckoned_where_weights_are_not_there(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    attention, feed_forward, embeddings = 4 * 8 * 8, 3 * 8 * 16, 2 * 32 * 8
    assert model_shape(folder).parameters == 2 * (attention + feed_forward) + embeddings


def test_weights_in_two_formats_count_once(tmp_path: Path) -> None:
    """Mistral's folders hold them as `consolidated.safetensors`, too, under other names."""
    folder, other = write_model(tmp_path / "m"), write_model(tmp_path / "n", tensor="wq.weight")
    (other / "model.safetensors").rename(folder / "consolidated.safetensors")
    assert model_shape(folder).parameters == 1000
    part = "model-00001-of-00001.safetensors"
    (folder / "model.safetensors").rename(folder / part)
    index = json.dumps({"weight_map": {"weight": part}})
    (folder / "model.safetensors.index.json").write_text(index)
    assert model_shape(folder).parameters == 1000


@pytest.mark.parametrize("name", ["model.layers.0.self_attn.q_norm.weight", "weight"])
def test_norms_of_heads_are_seen_in_the_names_of_weights(tmp_path: Path, name: str) -> None:
    folder = write_model(tmp_path / "m", tensor=name)
    assert model_shape(folder).normalised_heads == (name != "weight")


def test_a_gpu_too_small_for_the_learner_is_named(make_config: Make, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", parameters=2_000_000)
    small = Hardware((0, 1), 64 * GIB, 64 * GIB, (Gpu(0, "small", 64 * 2**20),))
    config = make_config(f"model.path={folder}", "dashboard.enabled=false")
    with pytest.raises(UserError, match="not enough GPU memory"):
        check_machine(config, small)


def gpus(*cards: Gpu, **facts: Any) -> Hardware:
    """A machine whose driver and torch are of CUDA 13."""
    told: dict[str, Any] = {"driver": "580.95.05", "driver_cuda": "13.0", "torch_cuda": "13.0"}
    return Hardware((0, 1), 64 * GIB, 64 * GIB, cards, **(told | {"shm_bytes": 8 * GIB} | facts))


def card(index: int = 0, free: float = 79.0) -> Gpu:
    return Gpu(index, "card", 80 * GIB, int(free * GIB))


@pytest.mark.parametrize(
    ("overrides", "of_host", "advice"),
    [
        (["learner.ranks=2"], True, r"\(copy to checkpoint\) lower the .* by learner\.lora"),
        (
            [CARRIED, "learner.carried_gib=99", "learner.carried_on_device_gib=90"],
            False,
            r"\(carried keys\) lower .* learner\.carried_on_device_gib",
        ),
    ],
)
def test_what_is_largest_is_said_with_a_key_that_lowers_it(
    make_config: Make, overrides: list[str], of_host: bool, advice: str
) -> None:
    config = resolve(make_config(*overrides), gpus(card(), card(1))).config
    shape = ModelShape(10**9, 2048, 8192, 16, 8, 2048, 16, 128_000)
    need = host_memory(config, shape, on_gpu=True) if of_host else gpu_memory(config, shape)
    assert re.search(advice, need.advice), need.text()


@pytest.mark.parametrize(
    ("overrides", "machine", "line"),
    [
        (
            ["learner.device=cuda", "generator.engine=torch"],
            PLENTY,
            "learner.device is cuda, but there is no GPU",
        ),
        (
            [],
            gpus(without="CUDA_VISIBLE_DEVICES = '' leaves none"),
            "vLLM is built for CUDA, but there is no GPU: CUDA_VISIBLE_DEVICES = '' leaves none",
        ),
        (
            [],
            gpus(card(), misnamed="'7' names none of 0, or one twice"),
            "'7' names none of 0, or one twice; CUDA ignores it and what follows",
        ),
        (
            ["generator.tensor_parallel_size=2"],
            gpus(card()),
            "generator.tensor_parallel_size = 2 but this machine has 1 GPU(s)",
        ),
        (
            ["learner.ranks=2"],
            gpus(card()),
            "learner.ranks = 2 but this machine has 1 GPU(s), and two ranks cannot share one",
        ),
        (
            [],
            gpus(card(), driver="535.104.05", driver_cuda="12.2"),
            "driver 535.104.05 knows CUDA up to 12.2, and torch is built for 13.0",
        ),
        (
            ["generator.tensor_parallel_size=2"],
            gpus(card(), card(1), shm_bytes=64 * MIB),
            "/dev/shm has 64 MiB free, and the ranks of NCCL and vLLM want 512",
        ),
        (
            ["learner.ranks=2"],
            gpus(card(), card(1), shm_bytes=64 * MIB),
            "/dev/shm has 64 MiB free, and the ranks of NCCL and vLLM want 512",
        ),
        (
            [],
            gpus(card(), card(1, free=20)),
            "GPU 1 has 20.0 of 80.0 GiB free; 0 learner rank(s) take about",
        ),
        (
            ["generator.gpu_memory_utilization=0.3"],
            gpus(card(free=20)),
            "GPU 0 has 20.0 of 80.0 GiB free; 1 learner rank(s) take about 0.0",
        ),
        (["generator.quantization=fp8"], PLENTY, "generator.quantization is for GPUs"),
    ],
)
def test_a_gpu_that_cannot_do_it_is_one_line(
    make_config: Make, tmp_path: Path, overrides: list[str], machine: Hardware, line: str
) -> None:
    folder = write_model(tmp_path / "m")
    config = make_config(f"model.path={folder}", "dashboard.enabled=false", *overrides)
    with pytest.raises(UserError, match=re.escape(line)):
        check_machine(config, machine)


@pytest.mark.parametrize(
    ("overrides", "machine"),
    [
        (["generator.tensor_parallel_size=2"], PLENTY),  # a CPU's tensor parallel ranks
        (["generator.engine=torch"], gpus(without="CUDA_VISIBLE_DEVICES = '' leaves none")),
        ([], gpus(card(), card(1))),
        ([], gpus(card(), driver_cuda="13.4", shm_bytes=64 * MIB)),  # no ranks to talk
        ([], gpus(card(), driver_cuda="12.8", torch_cuda="12.9")),  # within one version
        ([], gpus(card(), driver_cuda="")),  # not known
        (["learner.ranks=2", "learner.device=cpu"], gpus(card())),
        (["generator.gpu_memory_utilization=0.2"], gpus(card(), card(1, free=20))),
        (["generator.quantization=fp8"], gpus(card(), card(1))),
    ],
)
def test_gpus_that_can_do_it(
    make_config: Make, tmp_path: Path, overrides: list[str], machine: Hardware
) -> None:
    folder = write_model(tmp_path / "m")
    check_machine(
        make_config(f"model.path={folder}", "dashboard.enabled=false", *overrides), machine
    )


def test_a_generator_without_room_for_its_weights_is_named(
    make_config: Make, tmp_path: Path
) -> None:
    """A learner that fits, with next to nothing beside it."""
    folder = write_model(tmp_path / "m", parameters=1_000_000)
    config = make_config(f"model.path={folder}", "dashboard.enabled=false")
    need = gpu_memory(
        resolve_learner(config, on_gpu=True, bfloat16=False).config, model_shape(folder)
    ).total
    tight = Gpu(0, "tight", int(need / 0.91))
    with pytest.raises(UserError, match="not enough GPU memory: GPU 0 has"):
        check_machine(config, gpus(tight))
    check_machine(config, gpus(Gpu(0, "wide", int(need / 0.5))))


def test_hub_names_are_told_from_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_config: Make
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    assert is_hub_name("owner/name-1.5B")
    for path in ("models/none", "./owner/name", "/owner/name", "a/b/c", "name"):
        assert not is_hub_name(path)
    folder = make_config("model.path=models/none")
    assert with_local_model(folder, download=True) is folder


def test_a_hub_name_nobody_has_is_the_users_mistake(
    make_config: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    config = make_config("model.path=owner/not-there")
    assert with_local_model(config, download=False).model.path == "owner/not-there"
    with pytest.raises(
        UserError, match=r"no such model folder here, and the hub has no answer \(.+"
    ):
        with_local_model(config, download=True)
    with pytest.raises(UserError, match="not in the cache yet, and a run downloads it"):
        check_model(config)
