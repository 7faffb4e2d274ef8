"""A reward model that sees: it learns from pairs with images, and scores alone as in a pack."""

import hashlib
import json
import os
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor

from headrace.config.loading.recipe import load_reward_model
from headrace.config.sections.reward_model import FileDataConfig, RewardModelConfig, TaskDataConfig
from headrace.data.media import MediaStore, open_rgb
from headrace.errors import UserError
from headrace.run_files.reward_model_run import StepLine, read_lines
from learner.models.loading import critic_class
from rewards.kinds.pairwise import Options, build
from rewards.models.scorer import ScoreScorer
from rewards.models.training.train import PackedTraining
from tasks.procedural.shapes import DESCRIBE, SHAPES, caption, draw, draw_scene
from tests.learner.models.pictures import lacks
from tests.rewards.items import item
from tests.rewards.models.small import MODELS, RECIPES, Silence, run

pytestmark = pytest.mark.skipif(bool(lacks()), reason=lacks())
SCENES = [draw_scene(Random(seed), 4) for seed in range(3)]


def asked(image: Any) -> list[dict[str, Any]]:
    parts = [{"type": "image", "image": image}, {"type": "text", "text": DESCRIBE}]
    return [{"role": "user", "content": parts}]


def small(root: Path, folder: Path, *overrides: str, steps: int = 2) -> RewardModelConfig:
    settings = [
        f"root={json.dumps(str(root / 'runs'))}",
        f"model.path={json.dumps(str(folder))}",
        f"training.steps={steps}",
        "training.batch=4",
        "training.warmup_steps=1",
        "data.examples=60",
        "data.eval_limit=6",
        "engine.micro_batch_tokens=120",
    ]
    return load_reward_model(RECIPES / "captions.toml", [*settings, *overrides])


@pytest.fixture(name="start", scope="module")
def _start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tasks.make_models.image_model import make

    folder = tmp_path_factory.mktemp("start")
    make(folder, characters=SHAPES.characters, max_length=96)
    return folder


@pytest.fixture(name="trained", scope="module")
def _trained(start: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    run_dir, outcome = run(small(tmp_path_factory.mktemp("captions"), start, steps=4))
    assert outcome.model is not None
    assert outcome.figures["examples"] == 6
    return run_dir, outcome.model


@pytest.fixture(name="store")
def _store(tmp_path: Path) -> MediaStore:
    return MediaStore(tmp_path / "media")


def test_scores_are_those_of_transformers_and_depend_on_the_image(
    trained: tuple[Path, Path], store: MediaStore
) -> None:
    _, folder = trained
    scorer = ScoreScorer(folder, read_image=store.read)
    shape = AutoConfig.from_pretrained(folder)
    model = critic_class(shape).from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa"
    )
    processor, found = AutoProcessor.from_pretrained(folder), []
    for scene in SCENES:
        digest = store.put(draw(scene))
        text = processor.apply_chat_template(asked(digest), add_generation_prompt=True)
        text += caption(SCENES[0]) + processor.tokenizer.eos_token
        inputs = processor(text=[text], images=[[open_rgb(draw(scene))]], return_tensors="pt")
        with torch.inference_mode():
            expected = model.eval()(**inputs).logits[0, -1, 0].item()
        found.append(scorer.score(asked(digest), caption(SCENES[0])))
        assert found[-1] == pytest.approx(expected, abs=1e-5)
    assert len(set(found)) == len(SCENES)


def test_scores_are_the_same_alone_and_in_a_pack(start: Path, tmp_path: Path) -> None:
    figures = []
    for budget in (1, 100_000):
        config = small(tmp_path, start, f"engine.micro_batch_tokens={budget}", "seed=3")
        training = PackedTraining(config, None)
        model: Any = training._model.pretrained
        torch.nn.init.normal_(model.score.weight, generator=torch.manual_seed(1))
        figures.append(training.evaluate()["mean_difference"])
    assert figures[0] != 0
    assert figures[0] == pytest.approx(figures[1], abs=1e-5)


@pytest.mark.parametrize(("frozen", "scratch"), [("true", False), ("false", False), ("true", True)])
def test_an_interrupted_training_goes_on_to_the_bit(
    start: Path, tmp_path: Path, frozen: str, scratch: bool
) -> None:
    kept = [f"model.freeze_vision={frozen}", f"training.from_scratch={str(scratch).lower()}"]
    whole, _ = run(small(tmp_path / "whole", start, *kept, steps=4))
    config, watch = small(tmp_path / "halves", start, *kept, steps=4), Silence()
    halves, outcome = run(config, watch=watch, should_stop=lambda: len(watch.steps) == 2)
    assert outcome.model is None
    run(config, halves)
    losses = [
        [line.loss for line in read_lines(folder) if isinstance(line, StepLine)]
        for folder in (whole, halves)
    ]
    assert losses[0] == losses[1]
    one, two = (load_file(folder / "model" / "model.safetensors") for folder in (whole, halves))
    assert all(torch.equal(tensor, two[name]) for name, tensor in one.items())
    first = load_file(start / "model.safetensors")
    moved = any(not torch.equal(one[n], x) for n, x in first.items() if ".visual." in n)
    assert moved == (frozen == "false" or scratch)


def test_pairs_in_files_name_images_by_path(start: Path, tmp_path: Path) -> None:
    rows = []
    for number in range(24):
        (tmp_path / f"{number}.png").write_bytes(draw(SCENES[number % 3]))
        pair = {"chosen": "bsw", "rejected": "rne", "images": [f"{number}.png"]}
        rows.append({"prompt": f"<image>{DESCRIBE}", **pair})
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = FileDataConfig(kind="file", path=str(path), eval_fraction=0.3)
    config = small(tmp_path, start).model_copy(update={"data": data})
    training = PackedTraining(config, None)
    digests = {run.digest for unit in training._training for row in unit.rows for run in row.media}
    assert digests <= {hashlib.sha256(draw(scene)).hexdigest() for scene in SCENES}
    os.remove(tmp_path / "7.png")
    with pytest.raises(UserError, match=r"row 8, image 1: image '.*7\.png' cannot be read"):
        PackedTraining(config, None)


ASKS = 'template="{question}{rule} {first} or {second}?",rule="which"'
WORDS = f'objective={{kind="pairwise",{ASKS},yes="a",no="b"}}'


def test_a_pairwise_model_sees_and_the_kind_asks_it(start: Path, store: MediaStore) -> None:
    """Its answer is that of transformers on the whole question, and another one for each image."""
    chat = 'model.chat_template="always"'
    config = small(store.folder.parent, start, WORDS, chat, "engine.micro_batch_tokens=400")
    _, outcome = run(config)
    assert outcome.model is not None
    assert outcome.figures["examples"] == 6
    verifier = build(Options(model=str(outcome.model), column="anchor"))
    model = AutoModelForImageTextToText.from_pretrained(outcome.model, dtype=torch.float32).eval()
    processor = AutoProcessor.from_pretrained(outcome.model)
    yes, no = processor.tokenizer.convert_tokens_to_ids(["a", "b"])
    found = []
    for scene in SCENES:
        picture, said = draw(scene), ("bsw", "rne")
        prompt, asks = asked(store.put(picture)), []
        for first, second in (said, said[::-1]):
            text = f"{DESCRIBE}which {first} or {second}?"
            parts = [{"type": "image"}, {"type": "text", "text": text}]
            shown = processor.apply_chat_template(
                [{"role": "user", "content": parts}], add_generation_prompt=True
            )
            inputs = processor(text=[shown], images=[[open_rgb(picture)]], return_tensors="pt")
            with torch.inference_mode():
                logits = model(**inputs).logits[0, -1]
            asks.append(torch.sigmoid(logits[yes] - logits[no]).item())
        score = replace(
            item("bsw"), messages=json.dumps(prompt), media=str(store.folder),
            info=json.dumps({"anchor": "rne"}),
        )  # fmt: skip
        found.append(verifier(score).reward)
        assert found[-1] == pytest.approx((asks[0] + 1 - asks[1]) / 2, abs=1e-5)
    assert len(set(found)) == len(SCENES)


def test_questions_about_images_need_a_chat(start: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"need model\.chat_template = 'always'"):
        PackedTraining(small(tmp_path, start, WORDS), None)


@pytest.mark.parametrize("name", ["bradley-terry", "pairwise"])
def test_a_model_of_text_refuses_images_in_one_line(name: str, tmp_path: Path) -> None:
    overrides = [f"root={json.dumps(str(tmp_path))}"]
    config = load_reward_model(RECIPES / f"{name}.toml", overrides)
    data = TaskDataConfig(kind="task", task="shapes", examples=60, min_terms=4)
    config = config.model_copy(update={"data": data})
    with pytest.raises(UserError, match="parts of type 'image', and text alone is read"):
        PackedTraining(config, None)
    assert (MODELS / "tracking-cold").is_dir()


def test_captions_have_no_lines(start: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="answers of shapes have no lines"):
        PackedTraining(small(tmp_path, start, 'objective={kind="lines"}'), None)
