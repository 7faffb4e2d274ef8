"""Things to score, and what runs them."""

from headrace.config.reward import RewardConfig
from headrace.protocol.messages import ScoreItem

BEHAVE = "tests.rewards.misbehaviour:behave"


def item(
    text: str, *, answer: str = "7", trajectory_id: int = 0, finished: bool = True, info: str = "{}"
) -> ScoreItem:
    return ScoreItem(
        trajectory_id=trajectory_id,
        prompt="3+4",
        text=text,
        answer=answer,
        finished=finished,
        num_tokens=len(text),
        info=info,
    )


def user_function(**settings: object) -> RewardConfig:
    return RewardConfig.model_validate(
        {"kind": "function", "function": BEHAVE, "timeout_s": 1.0, **settings}
    )
