"""Token ids, line ends, and the words of a pairwise model in their place."""

from pathlib import Path

import pytest
from transformers import GenerationConfig, LlamaConfig, PreTrainedTokenizerFast

from headrace.config.sections.model import ModelConfig
from headrace.config.sections.reward_model import PairwiseConfig
from headrace.data.tokenizer import chat_text
from headrace.errors import UserError
from rewards.models.card import fingerprint
from rewards.models.encoding import (
    Prompt,
    encode,
    line_ends,
    plain_text,
    prompt_ids,
    rendered_prompt,
    split_lines,
)
from rewards.models.pairwise_prompt import fill_template, yes_no_tokens
from rewards.models.training.examples import Demonstration
from rewards.models.training.objectives import SftObjective, end_of_turn
from tasks.procedural.chain_sums import CHAIN_SUMS
from tasks.procedural.character_tokenizer import build_tokenizer
from tests.byte_tokenizer import train_tokenizer

CHARACTERS = build_tokenizer(CHAIN_SUMS.characters)
TEXT = ["is the first answer better than the second one? yes\n\n", "no\n"] * 30


@pytest.fixture(scope="module")
def pieces() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with tokens of several characters."""
    return train_tokenizer(iter(TEXT), vocab_size=420, max_length=512)


def test_a_response_ends_with_the_end_token() -> None:
    found = encode(CHARACTERS, "a3=", "#3", "auto")
    assert found.response[-1] == CHARACTERS.eos_token_id
    assert found.ids[:3] == CHARACTERS("a3=")["input_ids"]
    assert encode(CHARACTERS, "a3=", "#3", "auto", ended=False).ids == found.ids[:-1]


def test_chat_messages_need_a_template() -> None:
    chat = [{"role": "user", "content": "a3="}]
    assert plain_text(chat) == "a3="
    with pytest.raises(UserError, match="no chat template"):
        prompt_ids(CHARACTERS, chat, "auto")
    with pytest.raises(UserError, match="'never'"):
        prompt_ids(CHARACTERS, chat, "never")


def test_line_ends_are_tokens(pieces: PreTrainedTokenizerFast) -> None:
    ids, ends = line_ends(CHARACTERS, ["a3+0=3;", "#3"])
    assert ends == [6, 8]
    assert len(ids) == 9
    ids, ends = line_ends(pieces, ["is the first\n", "\n", "no"])
    text = pieces.decode(ids[: ends[0] + 1])
    assert "\n" in text
    assert ends[-1] == len(ids) - 1
    assert ends == sorted(ends)


def test_two_line_ends_may_share_a_token(pieces: PreTrainedTokenizerFast) -> None:
    ids, ends = line_ends(pieces, ["yes\n", "\n"])
    assert pieces.decode(ids[-1:]) == "\n\n"
    assert ends == [len(ids) - 1] * 2


def test_lines_keep_their_separators() -> None:
    assert split_lines("a;b;#1", ";") == ["a;", "b;", "#1"]
    assert split_lines("a\n", "\n") == ["a\n"]
    assert split_lines("", "\n") == []


def test_braces_in_answers_mean_nothing() -> None:
    found = fill_template(
        "{question}|{first}|{second}", question="{first}", rule="", first="x", second="{}"
    )
    assert found == "{first}|x|{}"


def test_answers_have_no_control_tokens() -> None:
    texts = {"question": "q", "rule": "", "first": "a<|im_end|>\n<|im_start|>", "second": "b"}
    assert fill_template("{first}|{second}", **texts) == "a< |im_end|>\n< |im_start|>|b"


def words(tokenizer: PreTrainedTokenizerFast, yes: str, no: str) -> tuple[int, int]:
    config = PairwiseConfig(
        kind="pairwise", template="{question}A{first}B{second}=", rule="", yes=yes, no=no
    )
    return yes_no_tokens(tokenizer, config, chat=False)


def test_words_are_single_tokens_in_their_place() -> None:
    assert words(CHARACTERS, "Y", "N") == (
        CHARACTERS.convert_tokens_to_ids("Y"),
        CHARACTERS.convert_tokens_to_ids("N"),
    )


@pytest.mark.parametrize(
    ("yes", "no", "message"),
    [
        ("yes", "N", "objective.yes = 'yes' is 3 tokens behind the template"),
        ("Y", "no", "objective.no = 'no' is 2 tokens"),
        ("Y", "Y", "are the same token"),
        ("Y", "?", "objective.no = '\\?' is not in the tokenizer's vocabulary"),
    ],
)
def test_words_that_do_not_serve(yes: str, no: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        words(CHARACTERS, yes, no)


def test_tokenizers_have_fingerprints(pieces: PreTrainedTokenizerFast) -> None:
    same = build_tokenizer(CHAIN_SUMS.characters, 64)
    assert fingerprint(CHARACTERS) == fingerprint(same)
    assert fingerprint(CHARACTERS) != fingerprint(pieces)


def test_prompts_with_images_are_not_read_as_texts() -> None:
    parts = [{"type": "image", "image": "x"}, {"type": "text", "text": "7+5="}]
    prompt = [{"role": "user", "content": parts}]
    assert plain_text(prompt) == "7+5="
    with pytest.raises(UserError, match="parts of type 'image', and text alone"):
        rendered_prompt(None, prompt, "auto")


def test_tools_are_shown_as_a_run_shows_them(
    pieces: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here by a system message: the template knows no tools."""
    said = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    monkeypatch.setattr(pieces, "chat_template", said)
    chat = [{"role": "user", "content": "is the first better?"}]
    tools = [{"type": "function", "function": {"name": "compare"}}]
    example = Demonstration(chat, "yes", tools=tools)
    (row,) = SftObjective(pieces, "auto").unit(example, training=True).rows
    shown = chat_text(pieces, chat, begins_answer=True, tools=tools)
    assert "compare" in shown
    before = pieces(shown, add_special_tokens=False)["input_ids"]
    assert row.ids == [*before, *row.targets]
    assert row.places[0] == len(before) - 1


def test_an_answer_ends_as_the_models_turns_do(
    pieces: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Gemma's and Phi's do not end with the tokenizer's end token."""
    said = "{% for m in messages %}{{ m.role }}: {{ m.content }}<pad>\n{% endfor %}"
    monkeypatch.setattr(pieces, "chat_template", said)
    pad, eos = pieces.pad_token_id, pieces.eos_token_id
    LlamaConfig().save_pretrained(tmp_path)
    pieces.save_pretrained(tmp_path)
    GenerationConfig(eos_token_id=[eos, pad]).save_pretrained(tmp_path)
    end = end_of_turn(pieces, ModelConfig(path=str(tmp_path)))
    objective = SftObjective(pieces, "auto", turn_end=end)
    chat: Prompt = [{"role": "user", "content": "first?"}]
    for prompt, last in ((chat, pad), ("first?", eos)):
        (row,) = objective.unit(Demonstration(prompt, "yes"), training=True).rows
        assert row.ids[-1] == row.targets[-1] == last
    GenerationConfig(eos_token_id=eos).save_pretrained(tmp_path)
    assert end_of_turn(pieces, ModelConfig(path=str(tmp_path))) is None, "no generator would stop"
    monkeypatch.setattr(pieces, "chat_template", "{{ raise_exception('no chats of two') }}")
    assert end_of_turn(pieces, ModelConfig(path=str(tmp_path))) is None, "for plain texts alone"
