"""One character, one token, through the files that transformers and vLLM load."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from tasks.procedural.chain_sums import CHAIN_SUMS, LABELS, write_fine, write_prompt
from tasks.procedural.character_tokenizer import build_tokenizer, vocabulary

VOCABULARY = vocabulary(CHAIN_SUMS.characters)
TOKENIZER = build_tokenizer(CHAIN_SUMS.characters)
digit_lists = st.lists(st.integers(1, 9), min_size=1, max_size=len(LABELS))


def test_the_vocabulary_has_every_letter_once() -> None:
    assert len(VOCABULARY) == len(set(VOCABULARY)) == len(TOKENIZER) == 70
    assert (TOKENIZER.pad_token_id, TOKENIZER.bos_token_id, TOKENIZER.eos_token_id) == (0, 1, 2)


@given(digit_lists)
def test_one_token_a_character_and_back(digits: list[int]) -> None:
    text = write_prompt(digits) + write_fine(digits)
    ids = TOKENIZER.encode(text)
    assert len(ids) == len(text)
    assert TOKENIZER.unk_token_id not in ids
    assert TOKENIZER.decode(ids) == text
    # A prompt's tokens are the beginning of the whole text's tokens.
    assert TOKENIZER.encode(write_prompt(digits)) == ids[: 2 * len(digits) + 1]


def test_saved_files_load_as_the_same_tokenizer(tmp_path: Path) -> None:
    TOKENIZER.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.encode("a3b5=") == TOKENIZER.encode("a3b5=")
    assert loaded.decode([*loaded.encode("#8"), loaded.eos_token_id]) == "#8<eos>"
    assert loaded.decode([*loaded.encode("#8"), 2], skip_special_tokens=True) == "#8"
    assert loaded.vocab_size == 70
