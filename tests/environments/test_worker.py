"""The children of a worker, real processes: order, deadlines, deaths, replays."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from environments.protocol import InvalidStepError, answer, maker_of
from environments.worker import EnvironmentPool, ready_of, serve
from headrace.config.sections.environment import EnvironmentConfig
from headrace.errors import UserError
from headrace.protocol.messages.control import Message, StepReplies, StepRequest
from headrace.protocol.messages.environments import (
    InsertedMessage,
    PolicyTurn,
    Step,
    StepAsk,
    StepReply,
)
from tests.rewards.environments import make_environment

FILE = str(Path(__file__).parent / "misbehaviour.py")


@asynccontextmanager
async def pool(
    thing: str,
    *,
    children: int = 1,
    timeout_s: float = 1.0,
    reset_timeout_s: float | None = None,
    python: str | None = None,
    **options: Any,
) -> AsyncIterator[EnvironmentPool]:
    config = EnvironmentConfig(
        name=f"{FILE}:{thing}", options=options, children=children, timeout_s=timeout_s,
        reset_timeout_s=reset_timeout_s, python=python,
    )  # fmt: skip
    made = EnvironmentPool(config)
    try:
        await made.start()
        yield made
    finally:
        await made.close()


@pytest.mark.parametrize(
    ("kept", "told"),
    [("", "(',127.0.0.1', ',127.0.0.1')"), ("*", "(None, '*')")],
    ids=["none", "all"],
)
def test_a_child_reaches_this_host_past_a_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: str, told: str
) -> None:
    """The clients of agents take the proxy of their environment."""
    path = tmp_path / "says.py"
    names = "os.environ.get('no_proxy'), os.environ.get('NO_PROXY')"
    path.write_text(f"import os\n\n\ndef make():\n    raise ValueError({names})\n")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("NO_PROXY", kept)
    with pytest.raises(UserError) as caught:
        asyncio.run(ready_of(EnvironmentConfig(name=f"{path}:make")))
    assert f"ValueError: {told}" in str(caught.value)


class Player:
    """Plays episodes as the coordinator would ask for them."""

    def __init__(self, pool: EnvironmentPool) -> None:
        self.pool = pool
        self.prompt = "p"
        self.turns: dict[int, list[PolicyTurn]] = {}
        self.known: dict[int, list[str]] = {}

    async def begin(self, key: int) -> StepReply:
        self.turns[key], self.known[key] = [], []
        return await self._ask(key, fresh=True)

    async def say(self, key: int, text: str, *, fresh: bool = False) -> StepReply:
        self.turns[key].append(PolicyTurn(text, len(text)))
        return await self._ask(key, fresh=fresh)

    async def _ask(self, key: int, *, fresh: bool) -> StepReply:
        turns = self.turns[key]
        reply = await self.pool.reply(
            StepAsk(
                trajectory_id=key,
                turn=len(turns),
                turns=turns if fresh else turns[-1:],
                known=self.known[key] if fresh else [],
                row=json.dumps({"prompt": self.prompt, "answer": "a"}),
                seed=7,
            )
        )
        self.known[key].append(reply.step.digest)
        return reply


def play(thing: str, story: Callable[[Player], Awaitable[None]], **options: Any) -> None:
    async def whole() -> None:
        async with pool(thing, **options) as made:
            await story(Player(made))

    asyncio.run(whole())


def texts(reply: StepReply) -> list[str]:
    assert reply.status == "ok", reply
    return [message.content for message in reply.step.messages]


@pytest.mark.parametrize("thing", ["Echo", "Patient"])
def test_episodes_keep_their_state_apart(thing: str) -> None:
    async def story(player: Player) -> None:
        begun = await asyncio.gather(*map(player.begin, range(8)))
        assert [texts(reply) for reply in begun] == [["hello"]] * 8
        for number in (1, 2):
            said = await asyncio.gather(*(player.say(i, f"x{i}") for i in range(8)))
            assert [texts(reply) for reply in said] == [[f"{number}:x{i}"] for i in range(8)]
            assert said[0].step.metrics == {"words": 1.0}
        ended = await player.say(3, "STOP")
        assert (ended.step.reward, ended.step.done, ended.step.success) == (1.0, True, True)

    play(thing, story, children=2, opening="hello")


def test_the_one_whose_attributes_are_told_plays_the_first_episode() -> None:
    """Nothing else would close it."""

    async def story(player: Player) -> None:
        said = [texts(await player.begin(number)) for number in range(2)]
        assert said == [["1 open"], ["2 open"]]

    play("Counted", story)


def test_coroutines_wait_together() -> None:
    async def story(player: Player) -> None:
        await asyncio.gather(*map(player.begin, range(30)))
        said = await asyncio.gather(*(player.say(i, "x") for i in range(30)))
        assert [texts(reply) for reply in said] == [["1:x"]] * 30

    play("Together", story, timeout_s=10.0, steps=30)


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        ("RAISE", "crashed", "ValueError: it broke (misbehaviour.py, line 26)"),
        ("DIE", "crashed", "process ended"),
    ],
)
def test_what_an_environment_does_ends_its_episode_alone(
    text: str, status: str, words: str
) -> None:
    async def story(player: Player) -> None:
        await player.begin(1)
        await player.begin(2)
        assert texts(await player.say(2, "a")) == ["1:a"]
        reply = await player.say(1, text)
        assert (reply.status, reply.turn) == (status, 1)
        assert words in reply.error
        assert texts(await player.say(2, "b")) == ["2:b"]

    play("Echo", story)


def test_who_was_never_asked_is_no_failure() -> None:
    """Two neighbours hang one after the other; the third waits behind them."""

    async def story(player: Player) -> None:
        for key in (1, 2, 3):
            await player.begin(key)
        texts_ = {1: "HANG", 2: "HANG", 3: "a"}
        replies = await asyncio.gather(*(player.say(key, text) for key, text in texts_.items()))
        assert [reply.status for reply in replies] == ["timeout", "timeout", "ok"]

    play("Echo", story)


def test_a_request_that_comes_twice_is_answered_once() -> None:
    """A coordinator that came back repeats what was not answered."""

    async def story(player: Player) -> None:
        await player.begin(1)
        first = asyncio.create_task(player.say(1, "x"))
        await asyncio.sleep(0.01)
        again = await player._ask(1, fresh=True)
        assert texts(await first) == texts(again) == ["1:x"]
        assert texts(await player.say(1, "y")) == ["2:y"]

    play("Patient", story)


def test_a_turn_that_another_worker_answered_is_over_before_the_next() -> None:
    """A worker that was silent still works on it when the other one is gone, too."""

    async def story(player: Player) -> None:
        await player.begin(1)
        late = asyncio.create_task(player.say(1, "x"))
        await asyncio.sleep(0.01)
        after = Player(player.pool)
        answered = Step(messages=[InsertedMessage("user", "1:x")])
        after.turns[1], after.known[1] = player.turns[1][:], [*player.known[1], answered.digest]
        assert texts(await after.say(1, "y", fresh=True)) == ["2:y"]
        assert texts(await late) == ["1:x"]

    play("Patient", story)


def test_an_answer_that_was_not_recorded_is_given_again() -> None:
    """A coordinator that died with it asks once more, of one that cannot be built again."""

    async def story(player: Player) -> None:
        await player.begin(1)
        for text in ("a", "STOP"):
            said = await player.say(1, text)
            player.known[1].pop()
            assert await player._ask(1, fresh=True) == said
        assert said.step.done
        player.pool.end([1])
        assert player.pool._episodes == {}

    play("Mortal", story)


def test_one_that_has_heard_what_was_not_recorded_begins_again() -> None:
    """A coordinator that came back gives its numbers to other rows, and other turns to workers."""

    async def story(player: Player) -> None:
        assert texts(await player.begin(1)) == ["p"]
        player.prompt = "q"
        assert texts(await player.begin(1)) == ["q"]
        assert texts(await player.say(1, "a")) == ["qa"]
        player.turns[1], player.known[1] = [], player.known[1][:1]
        async with pool("Mindful") as other:
            player.pool, own = other, player.pool
            assert texts(await player.say(1, "b", fresh=True)) == ["qb"]
        player.pool = own
        assert texts(await player.say(1, "c", fresh=True)) == ["qbc"]

    play("Mindful", story)


def test_of_two_rows_that_had_one_number_the_newest_is_answered() -> None:
    """A coordinator that came back gave it anew, while the episode of the first row began."""
    sent: list[StepReply] = []

    async def send(message: StepReplies) -> None:
        sent.extend(message.replies)

    async def requests() -> AsyncIterator[Message]:
        for prompt in "pq":
            row = json.dumps({"prompt": prompt, "answer": "a"})
            ask = StepAsk(trajectory_id=1, turn=0, turns=[], known=[], row=row, seed=7)
            yield StepRequest(asks=[ask])
            await asyncio.sleep(0.1)
        async with asyncio.timeout(60):
            while not sent or texts(sent[-1]) != ["q"]:
                await asyncio.sleep(0.01)

    dealer: Any = SimpleNamespace(send=send)
    config = EnvironmentConfig(
        name=f"{FILE}:Mindful", options={"takes": 0.5}, children=1, timeout_s=20.0
    )
    asyncio.run(serve(dealer, EnvironmentPool(config), requests()))
    assert [texts(reply) for reply in sent] == [["q"]]


def test_one_that_hangs_is_given_up_and_its_neighbours_are_built_again() -> None:
    async def story(player: Player) -> None:
        await player.begin(1)
        await player.begin(2)
        assert texts(await player.say(2, "a")) == ["1:a"]
        reply = await player.say(1, "HANG")
        assert (reply.status, reply.step.done) == ("timeout", False)
        assert texts(await player.say(2, "b")) == ["2:b"]

    play("Echo", story)


def test_who_waits_for_another_one_to_close_is_no_failure() -> None:
    async def story(player: Player) -> None:
        await player.begin(1)
        await player.begin(2)
        player.pool.end([1])
        assert texts(await player.say(2, "a")) == ["1:a"]

    play("Lingering", story, timeout_s=0.5)


def test_a_child_that_dies_once_costs_nothing(tmp_path: Path) -> None:
    async def story(player: Player) -> None:
        await player.begin(1)
        assert texts(await player.say(1, "a")) == ["1:a"]
        assert texts(await player.say(1, "DIE")) == ["2:DIE"]

    play("Echo", story, mark=str(tmp_path / "mark"))


def test_another_worker_builds_an_episode_from_its_turns() -> None:
    async def story(player: Player) -> None:
        await player.begin(1)
        await player.say(1, "a")
        async with pool("Echo") as other:
            player.pool = other
            assert texts(await player.say(1, "b", fresh=True)) == ["2:b"]

    play("Echo", story)


def test_an_episode_stays_with_its_child_when_all_of_it_is_said_again() -> None:
    """As a coordinator that came back does; elsewhere it would have to be built again."""

    async def story(player: Player) -> None:
        for key in (1, 2, 3):
            await player.begin(key)
        player.pool.end([2])
        assert texts(await player.say(1, "a", fresh=True)) == ["1:a"]
        assert texts(await player.say(1, "b")) == ["2:b"]

    play("Mortal", story, children=2)


def test_turns_that_are_played_again_take_no_time_of_the_episode() -> None:
    """Its limit is on its own steps, and whoever made it begin again is another one."""

    async def story(player: Player) -> None:
        await player.begin(1)
        for text in "abc":
            await player.say(1, text)
        async with pool("Steady") as other:
            player.pool = other
            reply = await player.say(1, "d", fresh=True)
        assert texts(reply) == ["4:d"]
        assert 0.3 <= reply.seconds < 0.9, "one turn of four"

    play("Steady", story)


@pytest.mark.parametrize(("thing", "status"), [("Fickle", "diverged"), ("Mortal", "lost")])
def test_an_episode_that_cannot_be_built_again(thing: str, status: str) -> None:
    async def story(player: Player) -> None:
        await player.begin(1)
        await player.say(1, "a")
        async with pool(thing) as other:
            player.pool = other
            reply = await player.say(1, "b", fresh=True)
            assert reply.status == status, reply
            assert "built again" in reply.error

    play(thing, story)


@pytest.mark.parametrize("text", ["bytes", "list", "field", "type", "none"])
def test_what_is_no_step_is_invalid(text: str) -> None:
    async def story(player: Player) -> None:
        await player.begin(1)
        assert (await player.say(1, text)).status == "invalid"

    play("Odd", story)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing", "no environment 'nothing'"),
        (f"{FILE}:Nothing", "has no Nothing"),
        (f"{FILE}:Half", "has no method step"),
        ("nowhere.py:Echo", "there is no file nowhere.py"),
        ("json:loads", "TypeError"),
    ],
)
def test_a_name_without_an_environment_is_one_line(name: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as found:
        maker_of(name, {})
    assert "\n" not in str(found.value)


def test_a_file_with_postponed_annotations_and_a_dataclass(tmp_path: Path) -> None:
    file = tmp_path / "later.py"
    file.write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Later:\n    size: int = 3\n"
        "    def reset(self, row, seed): return None\n    def step(self, turn): return None\n"
    )
    maker_of(f"{file}:Later", {})


def test_a_child_that_cannot_load_it_says_why() -> None:
    async def start() -> None:
        async with pool("Half"):
            pass

    with pytest.raises(UserError, match="has no method step"):
        asyncio.run(start())


def test_one_that_keeps_nothing_is_not_built_again() -> None:
    async def story(player: Player) -> None:
        await player.begin(1)
        before = texts(await player.say(1, "a"))
        async with pool("Forgetful") as other:
            player.pool = other
            assert texts(await player.say(1, "b", fresh=True)) != before

    play("Forgetful", story)


def test_a_reset_has_a_deadline_of_its_own() -> None:
    async def story(player: Player) -> None:
        assert (await player.begin(1)).status == "ok"
        assert texts(await player.say(1, "a")) == ["1:a"]

    play("Slow", story, reset_timeout_s=20.0)


def test_a_text_that_cannot_be_sent_is_invalid_and_its_child_lives() -> None:
    async def story(player: Player) -> None:
        await player.begin(1)
        reply = await player.say(1, "a")
        assert (reply.status, "surrogates" in reply.error) == ("invalid", True)
        child = player.pool._children[0]
        await player.begin(2)
        assert player.pool._children[0] is child

    play("Torn", story)


def test_an_answer_that_is_too_long_ends_its_episode_alone() -> None:
    async def story(player: Player) -> None:
        await player.begin(1)
        reply = await asyncio.wait_for(player.say(1, "a"), 60.0)
        assert (reply.status, "ChildGoneError" in reply.error) == ("crashed", True)
        assert (await player.begin(2)).status == "ok"

    play("Long", story, timeout_s=20.0)


def test_tools_are_called_in_a_child_and_one_that_hangs_ends_its_episode_alone() -> None:
    async def story(player: Player) -> None:
        await player.begin(1)
        await player.begin(2)
        said = '<tool_call>{"name": "double", "arguments": {"number": 21}}</tool_call>'
        assert texts(await player.say(2, said)) == ["42"]
        reply = await player.say(1, '<tool_call>{"name": "stuck"}</tool_call>')
        assert (reply.status, reply.error) == ("timeout", "no answer before the deadline")
        assert texts(await player.say(2, said)) == ["42"]
        assert (await player.say(2, "42")).step.done

    play("TOOLS", story)
    found = asyncio.run(ready_of(EnvironmentConfig(name=f"{FILE}:TOOLS")))
    assert [tool["function"]["name"] for tool in found.tools] == ["double", "stuck"]


def test_an_environment_runs_in_a_python_that_has_msgspec_alone(tmp_path: Path) -> None:
    """And its own packages, one of which we have in another version."""
    file = tmp_path / "theirs.py"
    file.write_text(
        "import numpy, sys\n"
        "class Theirs:\n"
        "    def reset(self, row, seed): return numpy.__version__\n"
        "    def step(self, turn): return {'text': ' '.join(sorted(sys.modules))}\n"
    )
    python = make_environment(
        tmp_path / "venv", needed=("msgspec",), numpy="__version__ = 'theirs'"
    )

    async def story(player: Player) -> None:
        assert texts(await player.begin(1)) == ["theirs"]
        (modules,) = texts(await player.say(1, "a"))
        assert not {"zmq", "torch", "pydantic", "pyarrow"} & set(modules.split())

    async def whole() -> None:
        config = EnvironmentConfig(name=f"{file}:Theirs", children=1, python=python)
        made = EnvironmentPool(config)
        try:
            await made.start()
            await story(Player(made))
        finally:
            await made.close()

    asyncio.run(whole())


@pytest.mark.parametrize(
    ("program", "words"), [("/no/such/python", "cannot be started"), ("/bin/true", "needs msgspec")]
)
def test_a_python_that_is_none_is_one_line(program: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as found:
        asyncio.run(ready_of(EnvironmentConfig(name="guess", python=program)))
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(("times", "starts"), [(2, True), (3, False)])
def test_a_child_killed_as_it_starts_is_started_again(
    tmp_path: Path, times: int, starts: bool
) -> None:
    (tmp_path / "dies.py").write_text(
        "import os, pathlib, signal\n"
        f"log = pathlib.Path({str(tmp_path / 'log')!r})\n"
        "log.open('a').write('x')\n"
        f"if len(log.read_text()) <= {times}: os.kill(os.getpid(), signal.SIGKILL)\n"
        "class Game:\n    def reset(self, row, seed): ...\n    def step(self, turn): ...\n"
    )
    config = EnvironmentConfig(name=f"{tmp_path}/dies.py:Game")
    if starts:
        assert asyncio.run(ready_of(config)).pays
    else:
        with pytest.raises(UserError, match="was not loaded: its process ended"):
            asyncio.run(ready_of(config))
    assert len((tmp_path / "log").read_text()) == 3


def test_a_coroutine_that_blocks_its_child_ends_alone() -> None:
    """Those beside it miss their deadlines as well, and are asked once more."""

    async def story(player: Player) -> None:
        for key in (1, 2, 3):
            await player.begin(key)
        found = await asyncio.gather(player.say(1, "HANG"), player.say(2, "a"), player.say(3, "b"))
        assert [reply.status for reply in found] == ["timeout", "ok", "ok"]

    play("Patient", story, timeout_s=0.5, reset_timeout_s=20.0)


@pytest.mark.parametrize("as_in_a_run", [False, True])
def test_what_lies_beside_it_is_found_and_hides_nothing_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_in_a_run: bool
) -> None:
    """A file's neighbours, then the working folder. Roles run with PYTHONSAFEPATH, the checks
    before a run without."""
    games, ours = tmp_path / "games", tmp_path / "environments"
    games.mkdir()
    ours.mkdir()
    (ours / "__init__.py").write_text("raise RuntimeError('not ours')\n")
    (tmp_path / "own_words.py").write_text("raise RuntimeError('not its neighbour')\n")
    (games / "own_words.py").write_text("HELLO = 'hello'\n")
    (tmp_path / "own_game.py").write_text(
        "class Game:\n    def reset(self, row, seed): ...\n    def step(self, turn): ...\n"
    )
    (games / "one.py").write_text("from own_game import Game\nfrom own_words import HELLO\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    if as_in_a_run:
        monkeypatch.setenv("PYTHONSAFEPATH", "1")
    for place in ("own_game", f"{games}/one.py"):
        assert asyncio.run(ready_of(EnvironmentConfig(name=f"{place}:Game"))).pays


class Says:
    """Answers every turn alike."""

    def __init__(self, said: Any) -> None:
        self.said = said

    def reset(self, row: Any, seed: int) -> None: ...

    def step(self, turn: PolicyTurn) -> Any:
        return self.said


NUMBER: Any = 4


def answered(step: Any) -> Step:
    return asyncio.run(answer(Says(step), PolicyTurn("", 0)))


def test_a_dict_has_messages_of_a_chat_and_scalars_of_any_kind() -> None:
    given = {
        "messages": [{"role": "tool", "content": "4", "tool_call_id": "call_1"}],
        "text": "go on", "reward": np.float32(0.5), "success": np.bool_(True),
        "metrics": {"words": np.int64(2)},
    }  # fmt: skip
    messages = [InsertedMessage("tool", "4"), InsertedMessage("user", "go on")]
    expected = Step(messages=messages, reward=0.5, success=True, metrics={"words": 2.0})
    assert answered(given) == expected
    assert answered({"reward": np.bool_(True), "done": True}) == Step(reward=1.0, done=True)
    assert answered({"reward": False, "done": True}) == Step(done=True)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"messages": [{"role": "tool"}]}, "Expected `str`, got `null`"),
        ({"messages": [InsertedMessage("user", NUMBER)]}, "Expected `str`, got `int`"),
        ({"text": b"bytes"}, "Expected `str`, got `bytes`"),
        ({"reward": object()}, "a object is no value of a Step"),
        ({"reward": "1.0"}, "Expected `float`, got `str`"),
        ({"reward": np.ones(2)}, "array of size 1"),
    ],
)
def test_what_is_no_field_of_a_step_is_named(given: Any, words: str) -> None:
    with pytest.raises(InvalidStepError, match=words):
        answered(given)
