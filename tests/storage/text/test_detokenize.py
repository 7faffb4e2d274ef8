"""Texts of responses, of their turns and of single tokens."""

from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from tokenizers.decoders import ByteFallback, Fuse, Replace, Sequence, Strip
from tokenizers.models import WordLevel

from headrace.data.tokenizer import decoded
from storage.text.detokenize import BLANK, TextDecoder
from tests.byte_tokenizer import EOS, train_tokenizer

SAID = "π ≥ 3: 🎉\n"


def test_turns_have_the_characters_that_are_several_tokens(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(iter(["a few words"]), vocab_size=300, max_length=64)
    tokenizer.save_pretrained(tmp_path)
    decoder = TextDecoder(tmp_path / "tokenizer.json")
    ids = np.array(tokenizer(SAID + EOS, add_special_tokens=False)["input_ids"], np.int32)
    assert "\ufffd" in "".join(decoder.pieces(ids))
    twice, borders = np.append(ids, ids), np.array([0, len(ids), 2 * len(ids)])
    assert decoder.texts(twice, borders, special=True) == [SAID + EOS] * 2
    assert decoder.texts(twice, borders) == [SAID] * 2
    assert decoder.texts(ids[:0], borders[:1]) == []


def test_a_token_has_the_blanks_that_a_text_would_lose(tmp_path: Path) -> None:
    """Llama 2's and Mistral's decoders take one from the beginning of what they are given."""
    names = ["<unk>", "<0x0A>", f"{BLANK}The", BLANK * 4, "m", BLANK, "</s>"]
    tokenizer = Tokenizer(WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    tokenizer.decoder = Sequence(
        [Replace(BLANK, " "), ByteFallback(), Fuse(), Strip(content=" ", left=1, right=0)]
    )
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    decoder = TextDecoder(tmp_path / "tokenizer.json")
    ids = np.array([2, 4, 1, 3, 5, 6, 99], np.int32)
    assert decoder.text(ids) == "Them\n     "
    assert decoder.pieces(ids) == [" The", "m", "\n", "    ", " ", "</s>", ""]


def test_tags_stay_and_other_special_tokens_do_not(tmp_path: Path) -> None:
    """Magistral's `[THINK]`, which formats and verifiers look for, is a special token."""
    tokenizer = train_tokenizer(iter(["a few words"]), vocab_size=300, max_length=64)
    added = ["[THINK]", "[/THINK]", "<s>", "</s>", "[IMG]", "[/END]"]
    tokenizer.add_special_tokens({"additional_special_tokens": added})
    tokenizer.save_pretrained(tmp_path)
    decoder, said = TextDecoder(tmp_path / "tokenizer.json"), "[THINK]a few[/THINK] words"
    ids = tokenizer(f"<s>{said}[IMG][/END]</s>{EOS}", add_special_tokens=False)["input_ids"]
    assert decoded(tokenizer, ids) == said
    assert decoder.text(np.array(ids, np.int32)) == said
