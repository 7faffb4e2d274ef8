"""Options that cannot work are one line before anything is asked."""

from typing import Any

import pytest

from headrace.config.sections.reward import SourceConfig
from headrace.errors import UserError
from rewards.build import build_verifier

URL: dict[str, Any] = {"url": "http://127.0.0.1:8000/v1", "model": "m"}


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({}, "name either a url or a judge of the run"),
        ({**URL, "judge": "one"}, "name either a url or a judge of the run"),
        ({"url": "http://h/v1"}, "option model of kind 'judge': name the model"),
        ({"judge": "one", "model": "m"}, "belongs to url"),
        ({"judge": "one", "api_key_env": "K"}, "belongs to url"),
        ({**URL, "url": "localhost:8000"}, "write http://host:port/v1"),
        ({**URL, "url": "https://me:secret@h/v1"}, "named by api_key_env"),
        ({**URL, "url": "https://h/v1?key=secret"}, "named by api_key_env"),
        ({**URL, "api_key_env": "NO_SUCH_VARIABLE"}, "there is no variable NO_SUCH_VARIABLE"),
        ({**URL, "yes": "No "}, "is the same word as yes"),
        ({**URL, "scale_min": 10.0}, "is not above scale_min"),
        ({**URL, "pattern": "("}, "is no regular expression"),
        ({**URL, "pattern": r"(\d+)"}, "has no group (?P<score>...)"),
        ({**URL, "images": True, "api": "completions"}, "option images of kind"),
        ({**URL, "prompt": "Is {answer} right?"}, "it shows no {response} to judge"),
        ({**URL, "prompt": "{first}?", "mode": "pairwise"}, "judge': it shows no {second}"),
        ({**URL, "mode": "both"}, "option mode of kind 'judge'"),
        ({**URL, "attempts": 0}, "option attempts of kind 'judge'"),
    ],
)
def test_what_cannot_work_is_one_line(options: dict[str, Any], line: str) -> None:
    source = SourceConfig.model_validate({"kind": "judge", "options": options})
    with pytest.raises(UserError) as caught:
        build_verifier(source)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("key", ["secret\nof two lines", "secret\u2026", " "])
def test_what_no_header_holds_is_no_key(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", key)
    options = {**URL, "api_key_env": "JUDGE_KEY"}
    with pytest.raises(UserError, match="there is no variable JUDGE_KEY with a key") as caught:
        build_verifier(SourceConfig.model_validate({"kind": "judge", "options": options}))
    assert "secret" not in str(caught.value)


def test_a_source_says_how_many_at_a_time() -> None:
    judge = {"kind": "judge", "options": URL}
    assert build_verifier(SourceConfig.model_validate(judge)).concurrency == 32
    told = {**judge, "concurrency": 5}
    assert build_verifier(SourceConfig.model_validate(told)).concurrency == 5
    for kind in ("math", "exact"):
        with pytest.raises(UserError, match=f"concurrency = 2: {kind} scores one response"):
            build_verifier(SourceConfig.model_validate({"kind": kind, "concurrency": 2}))
