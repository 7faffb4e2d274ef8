"""Texts of responses, of their turns and of single tokens."""

from pathlib import Path

import numpy as np

from storage.text.detokenize import TextDecoder
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
