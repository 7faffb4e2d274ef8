"""The kind `prm`: lines of an answer that goes on, scored by a line reward model."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from headrace.config.sections.reward import SourceConfig
from headrace.errors import UserError
from headrace.protocol.messages.control import ScoreItem
from rewards.build import build_verifier
from rewards.kinds.prm import Options, build
from rewards.models.scorer import LineScorer
from tasks.make_models.cold_start import build_model
from tasks.procedural.character_tokenizer import build_tokenizer
from tests.rewards.line_models import write_line_model

TOKENIZER = build_tokenizer("ab=1#\n`")
PROMPT = "ab="


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A line reward model with random weights, as reward training leaves one."""
    policy = tmp_path_factory.mktemp("policy")
    build_model(TOKENIZER, 0, mlp_width=64).save_pretrained(policy)
    TOKENIZER.save_pretrained(policy)
    return write_line_model(policy, tmp_path_factory.mktemp("prm"))


def item(text: str, ends: list[int], *, ids: bool = True) -> ScoreItem:
    tokens = [TOKENIZER.encode(PROMPT), TOKENIZER.encode(text)]
    prompt, response = (np.array(each, np.int32) for each in tokens)
    return ScoreItem(
        trajectory_id=0,
        prompt=PROMPT,
        text=text,
        answer="",
        finished=False,
        num_tokens=len(text),
        prompt_ids=prompt if ids else None,
        completion_ids=response if ids else None,
        unit="line",
        line_ends=ends,
    )


def test_lines_have_the_models_scores_and_neutral_ones_none(folder: Path) -> None:
    text = "a=1\n#b\n\nb=1\n"
    verifier = build(Options(model=str(folder)))
    scores = verifier(item(text, [3, 6, 7, 11])).lines
    tokens = [TOKENIZER.encode(PROMPT), TOKENIZER.encode(text)]
    expected = LineScorer(folder).lines(tokens[0], tokens[1], [3, 11])
    assert list(scores) == pytest.approx([expected[0], None, None, expected[1]])
    # Lines that were scored before are not asked for again, and what follows changes nothing.
    assert verifier(item(text, [11])).lines == pytest.approx((expected[1],))
    assert verifier(item(text[:7], [3])).lines == pytest.approx((expected[0],))
    assert verifier(item("#a\n", [2])).lines == (None,)


def test_an_end_token_has_no_text_whatever_names_it(tmp_path: Path) -> None:
    """Gemma 3's is special, and no name of its configuration."""
    tokenizer, end = build_tokenizer("ab=1#\n`"), "<end_of_turn>"
    tokenizer.backend_tokenizer.add_special_tokens([end])
    build_model(tokenizer, 0, mlp_width=64).save_pretrained(tmp_path / "policy")
    tokenizer.save_pretrained(tmp_path / "policy")
    verifier = build(Options(model=str(write_line_model(tmp_path / "policy", tmp_path / "prm"))))
    asked = item("a=1\nb=1", [3, 6])
    assert asked.completion_ids is not None
    ids = [*asked.completion_ids, tokenizer.convert_tokens_to_ids(end)]
    ended = replace(asked, completion_ids=np.array(ids, np.int32))
    assert None not in verifier(ended).lines
    assert verifier(ended) == verifier(asked)


def test_a_line_may_end_in_a_tag_that_is_a_special_token(tmp_path: Path) -> None:
    """A run takes it for text of the answer's last line, which ends there."""
    tokenizer = build_tokenizer("ab=1#\n`")
    tokenizer.backend_tokenizer.add_special_tokens(["[THINK]", "[/THINK]"])
    build_model(tokenizer, 0, mlp_width=64).save_pretrained(tmp_path / "policy")
    tokenizer.save_pretrained(tmp_path / "policy")
    verifier = build(Options(model=str(write_line_model(tmp_path / "policy", tmp_path / "prm"))))
    asked = item("a=1\nb=1", [3, 7])
    assert asked.completion_ids is not None
    ids = [*asked.completion_ids, tokenizer.convert_tokens_to_ids("[/THINK]")]
    assert None not in verifier(replace(asked, completion_ids=np.array(ids, np.int32))).lines


def test_prose_around_code_is_neutral_where_answers_are_fenced(folder: Path) -> None:
    text = "ab\n```\na=1\n"
    for fenced, count in ((False, 0), (True, 2)):
        verifier = build(Options(model=str(folder), fenced=fenced))
        lines = verifier(item(text, [2, 6, 10])).lines
        assert [line is None for line in lines].count(True) == count
        assert lines[2] is not None


def test_a_source_of_lines_is_built_from_its_table(folder: Path) -> None:
    source = SourceConfig(kind="prm", unit="line", options={"model": str(folder)})
    verifier = build_verifier(source)
    (score,) = verifier(item("a=1\n", [3])).lines
    assert score is not None
    with pytest.raises(ValueError, match="reads token ids"):
        verifier(item("a=1\n", [3], ids=False))


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"unit": "line"}, "kind 'prm' needs a line reward model"),
        ({"unit": "line", "options": {"model": "nowhere"}}, "no reward model at nowhere"),
        ({"options": {"model": "nowhere"}}, "has no unit"),
    ],
)
def test_mistakes(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=line):
        build_verifier(SourceConfig(kind="prm", **settings))
