"""What reward functions, scoring children and judges answer: read, or refused by the error that
makes it a failed scoring and never a score."""

import json
import math

import msgspec
from hypothesis import event, given
from hypothesis import strategies as st

from rewards.functions.arguments import InvalidRewardError
from rewards.functions.results import Form, read_result
from rewards.judging.options import Options
from rewards.judging.readings import number, yes_probability
from rewards.judging.wire import read_reply
from tests.fuzz.damage import BYTES, TEXT, WILD, damaged

FORMS: tuple[Form, ...] = ("one", "list", "first")
NAMES = st.sampled_from(("score", "reward", "correct", "acc", "parts")) | TEXT
GIVEN = st.floats() | WILD
RETURNED = GIVEN | st.dictionaries(NAMES, GIVEN, max_size=3) | st.lists(GIVEN, max_size=2)
REPLIES = {
    "chat": {
        "choices": [{
            "message": {"content": "yes, score: 7"},
            "logprobs": {"content": [{
                "token": "yes", "logprob": -0.1, "top_logprobs": [{"token": "no", "logprob": -2.3}],
            }]},
        }],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1},
    },
    "completions": {
        "choices": [{
            "text": "yes, score: 7",
            "logprobs": {
                "tokens": ["yes"], "token_logprobs": [-0.1], "top_logprobs": [{"no": -2.3}],
            },
        }],
    },
}  # fmt: skip
SCALARS = st.sampled_from(("null", "0", "1e999", '"no"', '"score: 11"', "[]", "{}", "true", "-5"))


@given(RETURNED, st.sampled_from(FORMS))
def test_a_returned_value_is_a_finite_score_or_an_invalid_reward(
    returned: object, form: Form
) -> None:
    try:
        result = read_result(returned, form)
    except InvalidRewardError:
        event("refused")
        return
    event("taken")
    assert result is None or math.isfinite(result.score)


@given(st.data())
def test_a_judges_answer_is_a_score_between_0_and_1_or_an_error(data: st.DataObject) -> None:
    api = data.draw(st.sampled_from(sorted(REPLIES)))
    options = Options.model_validate({"url": "http://127.0.0.1", "model": "m", "api": api})
    whole = json.dumps(REPLIES[api])
    body = data.draw(st.one_of(
        st.just(whole.encode()),
        damaged(whole, SCALARS).map(str.encode),
        damaged(whole.encode(), BYTES),
    ))  # fmt: skip
    try:
        reply = read_reply(body, options)
        scores = [
            yes_probability(reply, options.yes, options.no),
            number(reply, options.pattern, options.scale_min, options.scale_max),
        ]
    except (msgspec.MsgspecError, ValueError, InvalidRewardError):
        event("refused")
        assert body != whole.encode()
        return
    event("taken")
    assert all(0.0 <= score <= 1.0 for score in scores)
