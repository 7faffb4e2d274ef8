"""Random models of real shapes: what they weigh, and a tokenizer that loses nothing."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from tasks.make_models.shape_model import SHAPES, main

TEXT = "How many clips did Natalia sell altogether in April and May?\n" * 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    out = tmp_path / "model"
    main(["--out", str(out), "--like", "tiny", "--text", str(tmp_path / "text.txt")])
    return out


def test_the_folder_loads_and_every_id_has_a_text(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.dtype == torch.bfloat16
    assert len(tokenizer) == model.config.vocab_size == 512
    assert model.config.eos_token_id == tokenizer.eos_token_id == 2
    assert all(tokenizer.convert_ids_to_tokens(i) is not None for i in range(512))
    logits = model(torch.tensor([tokenizer.encode("April and May")])).logits
    assert bool(logits.isfinite().all())


@pytest.mark.parametrize(
    "text", ["Natalia sold 48/2 = 24 clips.", " two  spaces\n", "5 \u20ac \u4e2d"]
)
def test_any_text_round_trips(folder: Path, text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_shape_of_smollm2_135m() -> None:
    shape = LlamaConfig(**SHAPES["smollm2-135m"], tie_word_embeddings=True)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(shape)
    assert model.num_parameters() == 134_515_008


def test_a_missing_text_is_the_users_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--out", str(tmp_path / "m"), "--text", str(tmp_path / "none.txt")])
    assert stopped.value.code == 2
    assert "does not exist" in capsys.readouterr().err
