"""What a reward worker is asked: chats and token ids only where a function is to see them."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from coordinator.peers import RewardPeer
from coordinator.scoring import Scoring
from headrace.protocol.messages import Hello, ScoreItem, ScoreRequest
from headrace.protocol.records import GroupIssued
from tests.coordinator.world import World, make_config

CHAT = '[{"role": "user", "content": "p"}]'


class Front:
    """A hub with one worker; keeps what is sent."""

    def __init__(self, **reward: Any) -> None:
        self.world = World(make_config(reward=reward, schedule={"num_generations": 1}))
        hello = Hello(role="reward", name="reward-0", pid=1, host="here")
        self.config, self.account = self.world.config, self.world.account
        self.peers = SimpleNamespace(rewards={"reward-0": RewardPeer(hello)})
        self.sent: list[ScoreItem] = []
        prompts: Any = SimpleNamespace(decode=lambda ids: "".join(map(str, ids)))
        hub: Any = self
        self.scoring = Scoring(hub, prompts)

    async def send(self, name: str, message: ScoreRequest) -> None:
        self.sent += message.items

    def finish(self, *, info: str = "{}", messages: str = CHAT) -> None:
        """One more trajectory ends and waits for its score."""
        state = self.world.state
        number = state.next_trajectory
        self.world.note(
            GroupIssued(
                at=time.time(), group_id=state.next_group, prompt_id="p", position=state.position,
                purpose="train", prompt="user: p", answer="a", info=info, messages=messages,
                prompt_ids=np.array([1, 2], np.int32), trajectory_ids=[number], seeds=[number],
            )
        )  # fmt: skip
        trajectory = self.account.trajectories[number]
        self.world.lease(trajectory)
        self.world.chunk(trajectory, 3, finish="stop")
        self.scoring.add(trajectory)

    def dispatch(self) -> list[ScoreItem]:
        """What goes out now."""
        self.sent = []
        asyncio.run(self.scoring.dispatch())
        return self.sent


@pytest.mark.parametrize(
    ("reward", "messages", "ids"),
    [
        ({}, "", None),
        ({"kind": "function", "function": "m:f"}, CHAT, None),
        ({"kind": "function", "function": "m:f", "token_ids": True}, CHAT, [1, 2]),
    ],
)
def test_an_item_holds_what_its_function_asks_for(
    reward: dict[str, Any], messages: str, ids: list[int] | None
) -> None:
    front = Front(**reward)
    front.finish()
    (item,) = front.dispatch()
    assert (item.prompt, item.answer, item.finished) == ("user: p", "a", True)
    assert item.messages == messages
    if ids is None:
        assert item.prompt_ids is item.completion_ids is None
    else:
        assert item.prompt_ids is not None
        assert item.completion_ids is not None
        assert item.prompt_ids.tolist() == ids
        assert item.text == "".join(map(str, item.completion_ids))
