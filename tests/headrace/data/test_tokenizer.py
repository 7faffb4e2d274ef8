"""A tokenizer that its folder describes is the one that transformers' AutoTokenizer gives, and
takes neither torch nor the classes of models."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoTokenizer

from headrace.data.tokenizer import (
    GENERIC_CLASS,
    describes_itself,
    load_tokenizer,
    silent_tokens,
    vocabulary_size,
)
from headrace.errors import UserError
from headrace.host.install import ROOT

# No policy is an encoder, and one that reads images needs the classes of its family anyway.
MODELS = sorted(
    folder
    for folder in (ROOT / "recipes" / "models").iterdir()
    if not folder.name.startswith(("sessions-", "shapes-"))
)


@pytest.mark.parametrize("folder", MODELS, ids=lambda folder: str(folder.name))
def test_it_is_the_one_that_transformers_gives(folder: Path) -> None:
    assert describes_itself(folder)
    mine, theirs = load_tokenizer(str(folder)), AutoTokenizer.from_pretrained(folder)
    assert type(mine) is type(theirs)
    assert (mine.init_kwargs, mine.get_vocab()) == (theirs.init_kwargs, theirs.get_vocab())
    text = theirs.decode(range(len(theirs)))
    assert mine(text)["input_ids"] == theirs(text)["input_ids"]
    assert mine.decode(range(len(mine))) == text


@pytest.mark.parametrize("folder", MODELS, ids=lambda folder: str(folder.name))
def test_the_vocabulary_is_what_the_model_has(folder: Path) -> None:
    assert vocabulary_size(str(folder)) == AutoConfig.from_pretrained(folder).vocab_size > 0


def test_a_vocabulary_that_a_part_of_the_model_has_is_found_by_transformers(tmp_path: Path) -> None:
    text = {"model_type": "qwen2", "vocab_size": 77}
    said = {"model_type": "llava", "vocab_size": 5, "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(said), encoding="utf-8")
    assert vocabulary_size(str(tmp_path)) == 77


def test_neither_torch_nor_models_are_imported() -> None:
    code = (
        "import sys; from headrace.data.tokenizer import load_tokenizer, vocabulary_size; "
        f"load_tokenizer({str(MODELS[0])!r}); vocabulary_size({str(MODELS[0])!r}); "
        "print([name for name in sys.modules if name == 'torch' or '.modeling_' in name])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("config.json", {"model_type": "qwen2"}),
        ("tokenizer_config.json", {"tokenizer_class": "LlamaTokenizer"}),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["mine.Tokenizer", None]}}),
    ],
)
def test_where_more_is_to_be_known_transformers_decides(
    file: str, change: dict[str, object], tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(MODELS[0], folder)
    said = json.loads((folder / file).read_text(encoding="utf-8"))
    (folder / file).write_text(json.dumps(said | change), encoding="utf-8")
    assert not describes_itself(folder)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "tokenizer.json", "config.json"])
def test_a_folder_that_lacks_a_part_or_has_a_damaged_one(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(MODELS[0], folder)
    assert (
        json.loads((folder / "tokenizer_config.json").read_text())["tokenizer_class"]
        == GENERIC_CLASS
    )
    if name != "tokenizer.json":
        (folder / name).write_text("[1, 2", encoding="utf-8")
        assert not describes_itself(folder)
    (folder / name).unlink()
    assert not describes_itself(folder)


def test_where_there_is_none() -> None:
    with pytest.raises(UserError, match=r"^model\.path = .*: no tokenizer: "):
        load_tokenizer(str(ROOT / "docs"))


def test_a_package_that_a_tokenizer_lacks_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As tiktoken, which a tokenizer of a folder's own code may import."""

    def lacking(*_: object, **__: object) -> None:
        raise ImportError("This tokenizer requires tiktoken: run `pip install tiktoken`")

    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lacking)
    with pytest.raises(UserError, match=r"no tokenizer: This tokenizer requires tiktoken"):
        load_tokenizer(str(tmp_path), trust_remote_code=True)


def test_special_tokens_of_mistrals_own_tokenizers_are_silent() -> None:
    """AutoTokenizer takes mistral-common's where that is installed, and a folder has its file."""

    class Tekken:
        all_special_tokens = ("<unk>", "<s>", "</s>", "[THINK]", "[/THINK]")
        all_special_ids = (0, 1, 2, 34, 35)

        @property
        def added_tokens_decoder(self) -> dict[int, Any]:
            raise NotImplementedError

    assert silent_tokens(Tekken()) == {0, 1, 2}
