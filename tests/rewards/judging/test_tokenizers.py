"""The tokenizer of a judge that does not serve yet is looked at."""

from pathlib import Path
from typing import Any

import pytest

from headrace.config.sections.model import JudgeConfig
from headrace.config.sections.reward import RewardConfig
from headrace.errors import UserError
from rewards.judging.options import Options
from rewards.judging.selftest import check_tokenizer
from rewards.preflight import check_sources

MODEL = Path(__file__).parents[3] / "recipes" / "models" / "chain-sums-cold"


def checked(judge: dict[str, Any] | None = None, **options: Any) -> None:
    told = Options.model_validate({"judge": "fair", **options})
    check_tokenizer(told, JudgeConfig.model_validate({"path": str(MODEL), **(judge or {})}))


def test_words_have_to_be_one_token_each() -> None:
    checked(api="completions", yes="1", no="2")
    checked(api="completions", logprobs=False)
    checked(api="completions", mode="free")
    with pytest.raises(UserError, match="'yes' is 3 tokens for the judge 'fair'"):
        checked(api="completions")
    with pytest.raises(UserError, match="'12' is 2 tokens"):
        checked(api="completions", yes="1", no="12")


def test_a_chat_takes_a_template() -> None:
    with pytest.raises(UserError, match="the judge 'fair' has no chat template"):
        checked(yes="1", no="2")
    checked({"chat_template": "chat.jinja"}, yes="1", no="2")


def test_a_folder_without_a_tokenizer_is_one_line(tmp_path: Path) -> None:
    told = r"^reward\.judges\.fair\.path = .*: no tokenizer: "
    with pytest.raises(UserError, match=told) as caught:
        checked({"path": str(tmp_path)}, yes="1", no="2")
    assert "\n" not in str(caught.value)


def test_a_run_is_checked_that_way() -> None:
    options = {"judge": "fair", "api": "completions"}
    section = {"kind": "judge", "options": options, "judges": {"fair": {"path": str(MODEL)}}}
    with pytest.raises(UserError, match="'yes' is 3 tokens"):
        check_sources(RewardConfig.model_validate(section), list)
    options |= {"yes": "1", "no": "2"}
    config = RewardConfig.model_validate(section)
    assert check_sources(config, list) == config
