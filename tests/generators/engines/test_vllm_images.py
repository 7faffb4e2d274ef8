"""The real engine and the learner see the same images: logprobs of what was sampled agree, across
loads of other weights for all parts, for each family of vision-language models.

One engine a family answers all requests, in `asked`; the tests look at what came."""

import asyncio
import importlib.util
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from generators.engine import GenerationRequest, RequestError, TokenDelta
from generators.engines.model_files import read_config, weight_layout
from generators.engines.vllm_engine import VllmEngine, VllmSettings
from headrace.config.sections.model import ModelConfig
from headrace.data.image_processor import ImageProcessor, placeholder_ids
from headrace.data.media import MediaStore, open_rgb
from headrace.protocol.token_spans import MediaRun
from learner.batching.token_reads import TokenReads
from learner.device import RankContext
from learner.models.deepspeed_engine import StepLog
from learner.models.forward import PolicyNetwork
from learner.models.images import ImageInputs, VisionTower
from learner.models.inference import infer
from learner.models.loading import load_policy
from tests.learner.models.pictures import CPU, folder_of, lacks, store

pytestmark = [
    pytest.mark.slow,
    pytest.mark.vllm,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
    pytest.mark.skipif(bool(lacks()), reason=lacks()),
]
FAMILIES = ("qwen3_vl", "qwen2_5_vl", "idefics3")
SHOWN: list[list[int]] = [[0], [1, 2], [], [2, 0, 2]]
"""The pictures of each prompt."""
EACH, TOKENS, LONG = 5, 20, 120
"""Answers to a prompt; tokens of one, and of one during which weights come."""
Figures = np.ndarray[Any, Any]
Media = Sequence[tuple[MediaRun, ...]]
Prompt = tuple[list[int], list[MediaRun]]
AGREE, WORST = 1e-4, 1e-3
"""Largest difference in nats at the 99th percentile, and of all."""


@dataclass
class Answer:
    """One request, and what came of it."""

    prompt: int
    opening: list[int]
    """The prompt's tokens."""
    media: Sequence[MediaRun]
    before: list[int]
    """Earlier tokens of the answer."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    error: str = ""

    @property
    def mixed(self) -> bool:
        return len(set(self.versions)) > 1


@dataclass
class Asked:
    """All answers of a family's engine, by what was asked."""

    folders: list[Path]
    store: MediaStore
    banned: list[int]
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    reference: dict[int, tuple[PolicyNetwork, ImageInputs]] = field(default_factory=dict)

    def learner(self, version: int) -> tuple[PolicyNetwork, ImageInputs]:
        """The learner's policy with the weights of a version."""
        if version not in self.reference:
            folder = str(self.folders[version])
            model = load_policy(ModelConfig(path=folder), dtype=torch.float32, device=CPU)
            network = PolicyNetwork(model)
            processor = ImageProcessor(folder)._processor
            inputs = ImageInputs(self.store.read, processor, model)
            network.vision = VisionTower(model, inputs)
            self.reference[version] = network, inputs
        return self.reference[version]

    @torch.no_grad()
    def scored(self, version: int, answers: Sequence[Answer], media: Media = ()) -> Figures:
        """[tokens] The learner's logprobs, packed as in an update, of the answers' tokens.
        `media`: other images than theirs."""
        network, inputs = self.learner(version)
        ids = [np.array(a.opening + a.before + a.tokens, np.int32) for a in answers]
        begins = [len(a.opening) + len(a.before) for a in answers]
        reads = TokenReads(
            trajectories=list(range(len(ids))),
            token_ids=ids,
            sequence_of=np.repeat(np.arange(len(ids)), [len(a.tokens) for a in answers]),
            position_of=np.concatenate(
                [np.arange(n, x.size) for x, n in zip(ids, begins, strict=True)]
            ),
            targets=np.concatenate([x[n:] for x, n in zip(ids, begins, strict=True)]).astype(
                np.int64
            ),
            openings=[len(a.opening) for a in answers],
            media=list(media) or [tuple(a.media) for a in answers],
        )
        place = RankContext(device=CPU, images=inputs, budget=1024)
        found = infer(network, reads, range(len(ids)), place, log=StepLog())
        return np.asarray(found.numpy())

    def differences(self, version: int, *names: str, whole: bool = True) -> Figures:
        """Between learner and sampler, of tokens that were sampled under this version. `whole`:
        answers of one version alone."""
        answers = [a for name in names for a in self.answers[name] if not (whole and a.mixed)]
        sampled = np.concatenate([a.logprobs for a in answers])
        mine = np.concatenate([a.versions for a in answers]) == version
        assert not [a.error for a in answers if a.error]
        assert mine.sum() > 100
        return np.abs(self.scored(version, answers) - sampled)[mine]


def check(what: str, found: Figures) -> None:
    p99 = np.quantile(found, 0.99)
    print(f"{what}: {p99:.1e} at the 99th percentile, {found.max():.1e} of {found.size} at most")
    assert p99 <= AGREE
    assert found.max() <= WORST


def widened(folder: Path) -> Path:
    """Matrices enlarged, so that answers depend on what is seen, and on the weights."""
    file = folder / "model.safetensors"
    save_file(
        {k: x * 3.0 if x.ndim > 1 else x for k, x in load_file(file).items()}, file,
        metadata={"format": "pt"},
    )  # fmt: skip
    return folder


async def answer(engine: VllmEngine, name: str, asked: Answer, tokens: int, seed: int) -> Answer:
    request = GenerationRequest(
        name, asked.opening + asked.before, max_tokens=tokens, seed=seed,
        position=len(asked.before), media=asked.media,
    )  # fmt: skip
    try:
        async for delta in engine.generate(request):
            take(asked, delta)
    except RequestError as error:
        asked.error = str(error)
    return asked


def take(asked: Answer, delta: TokenDelta) -> None:
    asked.tokens += delta.token_ids
    asked.logprobs += delta.logprobs
    asked.versions += [delta.version] * len(delta.token_ids)


async def ask(engine: VllmEngine, found: Asked, prompts: list[Prompt]) -> None:
    weights = [folder / "model.safetensors" for folder in found.folders]

    async def several(
        name: str, tokens: int = TOKENS, each: int = EACH, before: Sequence[Answer] = ()
    ) -> None:
        asked = [
            Answer(number, list(ids), media, [])
            for number, (ids, media) in enumerate(prompts)
            for _ in range(each)
        ]
        for one, earlier in zip(asked, before, strict=False):
            one.before = earlier.tokens[:7]
        found.answers[name] = asked
        await asyncio.gather(
            *(answer(engine, f"{name}-{seed}", one, tokens, seed) for seed, one in enumerate(asked))
        )

    async def in_flight(name: str, version: int) -> None:
        """Load while every answer is in the middle, and others are asked for."""
        live = asyncio.create_task(several(name, LONG))
        await asyncio.sleep(0)
        while not (live.done() or all(a.tokens for a in found.answers[name])):
            await asyncio.sleep(0.005)
        load = asyncio.create_task(engine.load_weights(weights[version], version))
        while engine._open.is_set() and not load.done():
            await asyncio.sleep(0.001)
        await asyncio.gather(load, several(f"{name}-late", each=2))
        await live

    await engine.load_weights(weights[0], 0)
    await several("first")
    await in_flight("kept", 1)
    await several("again")
    await several("resumed", before=found.answers["again"])
    engine.recompute_on_update = True
    await in_flight("recomputed", 0)
    engine.recompute_on_update = False
    await several("back")

    found.answers["stopped"] = [Answer(0, list(prompts[0][0]), prompts[0][1], [])]
    stopped = answer(engine, "stopped", found.answers["stopped"][0], LONG, 1)
    task = asyncio.create_task(stopped)
    while not (engine._submitting or task.done()):
        await asyncio.sleep(0)
    await engine.abort("stopped")
    await task

    ids, media = prompts[1]
    run = media[0]
    longer = [*ids[: run.end], ids[run.start], *ids[run.end :]]
    moved = [MediaRun(r.digest, r.start + 1, r.end + 1) for r in media[1:]]
    missing = [MediaRun("0" * 64, run.start, run.end), *media[1:]]
    damaged = [MediaRun("1" * 64, run.start, run.end), *media[1:]]
    found.store.path("1" * 64).write_bytes(b"no image")
    bad = {
        "longer": Answer(1, longer, [MediaRun(run.digest, run.start, run.end + 1), *moved], []),
        "missing": Answer(1, list(ids), missing, []),
        "damaged": Answer(1, list(ids), damaged, []),
    }
    for name, one in bad.items():
        found.answers[name] = [await answer(engine, name, one, TOKENS, 1)]
    await several("after", each=2)


@pytest.fixture(scope="module", params=FAMILIES)
def asked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Asked:
    root = tmp_path_factory.mktemp(request.param)
    folders = [
        widened(folder_of(request.param, root / f"v{seed}", seed=seed)) for seed in (0, 1)
    ]  # fmt: skip
    media, model = MediaStore(root / "media"), str(folders[0])
    digests = [media.put(data) for data in store().values()]
    config = read_config(model)
    found = Asked(folders, media, placeholder_ids(config))
    processor = ImageProcessor(model)
    tokenizer, prompts = processor._processor.tokenizer, []
    for shown in SHOWN:
        parts = [*[{"type": "image"}] * len(shown), {"type": "text", "text": "how many?"}]
        chat = [{"role": "user", "content": parts}]
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        expanded, runs = processor.expand(
            ids, [digests[i] for i in shown], lambda digest: open_rgb(media.read(digest))
        )
        prompts.append((expanded.tolist(), runs))
    settings = VllmSettings(
        model, 256, (), max_num_seqs=48, kv_cache_gib=0.125, media=media.folder, max_images=3,
        banned_ids=tuple(found.banned), stream_interval=4,
    )  # fmt: skip
    engine = VllmEngine(settings, weight_layout(model, config))

    async def play() -> None:
        try:
            await engine.start()
            await ask(engine, found, prompts)
        finally:
            await engine.stop()

    asyncio.run(play())
    return found


def test_behaviour_logprobs_are_the_learners(asked: Asked) -> None:
    """Before any update in flight, after two of them, and in answers that went on from a prefix, as
    they do after a lease that was given again."""
    assert all(len(a.before) == 7 for a in asked.answers["resumed"])
    check("first", asked.differences(0, "first"))
    check("again", asked.differences(1, "again"))
    check("resumed", asked.differences(1, "resumed"))
    check("back", asked.differences(0, "back", "after"))


def test_weights_and_images_both_matter_here(asked: Asked) -> None:
    """Or agreement would say nothing."""
    answers = [a for a in asked.answers["first"] if a.media]
    sampled = np.concatenate([a.logprobs for a in answers])
    assert np.abs(asked.scored(1, answers) - sampled).mean() > 0.05
    digests = sorted({run.digest for a in answers for run in a.media})
    ids = [a for a in answers if a.prompt == 0]
    own = np.concatenate([a.logprobs for a in ids])
    facts = asked.learner(0)[1]
    run = ids[0].media[0]
    (other,) = [
        digest
        for digest in digests
        if digest != run.digest and facts.tokens(digest) == facts.tokens(run.digest)
    ][:1]
    media = [(MediaRun(other, run.start, run.end),) for _ in ids]
    assert np.abs(asked.scored(0, ids, media=media) - own).mean() > 0.005


def test_live_answers_are_cut_at_the_version(asked: Asked) -> None:
    """Weights of all parts came in the middle: what stands before the cut is of the old ones, what
    waited for the load of the new ones alone. Where keys are computed again, the image is, too, and
    what stands behind the cut is of the new ones alone."""
    for name, old, new in (("kept", 0, 1), ("recomputed", 1, 0)):
        live = asked.answers[name]
        assert sum(a.mixed for a in live) > len(live) // 2
        assert {version for a in live for version in a.versions} == {old, new}
        assert all(sorted(a.versions, reverse=old > new) == a.versions for a in live)
        assert all(len(a.tokens) == LONG for a in live)
        assert {v for a in asked.answers[f"{name}-late"] for v in a.versions} == {new}
        check(f"{name}, before the cut", asked.differences(old, name, whole=False))
        check(f"{name}, late", asked.differences(new, f"{name}-late"))
    check("recomputed, behind the cut", asked.differences(0, "recomputed", whole=False))
    with pytest.raises(AssertionError):  # Keys that were kept are of the old weights.
        check("kept, behind the cut", asked.differences(1, "kept", whole=False))


def test_no_placeholder_is_sampled(asked: Asked) -> None:
    """Without a ban, one token of thirty or so would be one."""
    sampled = Counter(t for found in asked.answers.values() for a in found for t in a.tokens)
    assert sampled.total() > 4000
    assert not set(asked.banned) & set(sampled)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("longer", "vLLM's image processor makes [0-9]+ tokens of a prompt for which"),
        ("missing", "image .*/0{64} cannot be read"),
        ("damaged", "image .*/1{64} is damaged"),
    ],
)
def test_images_that_cannot_be_the_prompts_end_its_request_alone(
    asked: Asked, name: str, reason: str
) -> None:
    (bad,) = asked.answers[name]
    assert re.search(reason, bad.error)
    assert "\n" not in bad.error
    assert bad.tokens == []
    assert not any(a.error for a in asked.answers["after"])


def test_a_request_ends_that_is_stopped_while_its_images_are_prepared(asked: Asked) -> None:
    """By a thread, and vLLM does not know it before: it would have been sampled to its end."""
    (stopped,) = asked.answers["stopped"]
    assert stopped.error == ""
    assert len(stopped.tokens) < LONG
