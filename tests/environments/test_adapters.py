"""Environments for other libraries, unchanged: they pay what they pay in their own loop.

Those that need a library run where one of the Pythons in HEADRACE_PEERS (paths, separated by `:`)
has it; what needs none runs everywhere, in a Python that has msgspec alone.
"""

import asyncio
import json
import os
import random
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from environments.worker import EnvironmentPool, ready_of
from headrace.config.sections.environment import EnvironmentConfig
from headrace.errors import UserError
from headrace.protocol.messages.environments import PolicyTurn, StepAsk, StepReply
from tests.environments.peers import PEERS, python_with
from tests.rewards.environments import make_environment

TRL, VERIFIERS, GYMNASIUM = (f"{PEERS}/for_{name}.py" for name in ("trl", "verifiers", "gymnasium"))
Turn = tuple[str, list[tuple[str, dict[str, Any]]]]
"""Text, and calls by name with their arguments."""


def say(text: str, *calls: tuple[str, dict[str, Any]]) -> Turn:
    return text, list(calls)


def written(turn: Turn) -> str:
    text, calls = turn
    made = [json.dumps({"name": name, "arguments": given}) for name, given in calls]
    return "\n".join([text, *(f"<tool_call>\n{call}\n</tool_call>" for call in made)]).strip("\n")


def case(thing: str, *turns: Turn, seed: int = 7, **row: Any) -> dict[str, Any]:
    return {"thing": thing, "turns": turns, "seed": seed, "row": {"answer": "42", **row}}


def own_rewards(library: str, cases: list[dict[str, Any]]) -> list[Any]:
    """What the library's own loop pays."""
    run = subprocess.run(
        [python_with(library), str(PEERS / "own_loop.py"), library],
        input=json.dumps(cases), capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )  # fmt: skip
    assert not run.returncode, run.stderr
    found: list[Any] = json.loads(run.stdout)
    return found


async def episode(pool: EnvironmentPool, key: int, case: dict[str, Any]) -> list[StepReply]:
    """All replies, the reset's first, until it ends or the script does."""
    row = {"id": str(key), "prompt": "q", **case["row"]}
    turns: list[PolicyTurn] = []
    replies: list[StepReply] = []
    for turn in (None, *case["turns"]):
        if turn is not None:
            turns.append(PolicyTurn(written(turn), 1))
        ask = StepAsk(
            trajectory_id=key, turn=len(turns), turns=turns[-1:], known=[], row=json.dumps(row),
            seed=case["seed"],
        )  # fmt: skip
        replies.append(await pool.reply(ask))
        if replies[-1].status != "ok" or replies[-1].step.done:
            pool.end([key])
            break
    return replies


def played(
    name: str, cases: list[dict[str, Any]], *, together: bool = True, python: str | None = None,
    story: Callable[[EnvironmentPool], Any] | None = None, **options: Any,
) -> list[list[StepReply]]:  # fmt: skip
    """Episodes of one environment, in one child."""

    async def whole() -> list[list[StepReply]]:
        pool = EnvironmentPool(
            EnvironmentConfig(name=name, options=options, children=1, python=python, timeout_s=20)
        )
        try:
            await pool.start()
            other = asyncio.create_task(story(pool)) if story else None
            each = [episode(pool, *numbered) for numbered in enumerate(cases)]
            replies = await asyncio.gather(*each) if together else [await one for one in each]
            if other is not None:
                other.cancel()
            return list(replies)
        finally:
            await pool.close()

    return asyncio.run(whole())


def paid(replies: list[StepReply]) -> float:
    assert {reply.status for reply in replies} == {"ok"}, replies
    assert replies[-1].step.done
    return sum(reply.step.reward for reply in replies)


def texts(reply: StepReply) -> list[str]:
    assert reply.status == "ok", reply
    return [message.content for message in reply.step.messages]


# -- TRL --------------------------------------------------------------------------------------

COUNTS = [
    case(f"{TRL}:Counter", *turns, target=5)
    for turns in (
        [say("", ("increment", {"step": 2})), say("", ("increment", {"step": 3})), say("5")],
        [say("", ("increment", {"step": 2}), ("increment", {"step": 9})), say("done")],
        [say("", ("increment", {"step": -1}), ("nothing", {})), say("none")],
        [say("at once")],
    )
]
CODES = [
    case(f"{TRL}:Vault", say("", ("enter", {"code": code})), say("well"), answer="4711")
    for code in ("4711", "1234", "4711")
]
CALLS = case(
    f"{TRL}:TOOLS",
    say("I ask", ("multiply", {"a": 6, "b": 7}), ("evaluate", {"expression": "2**10"})),
    say("", ("lookup", {"word": "two"}), ("lookup", {"word": "three"})),
    say("", ("evaluate", {"expression": "[0 for _ in iter(int, 1)]"})),
    say("42"),
)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python that has msgspec and nothing else."""
    return make_environment(tmp_path_factory.mktemp("bare") / "venv", needed=("msgspec",))


def test_tools_of_trl_sync_and_async_and_with_an_alarm(bare: str) -> None:
    """A tool that signals needs the main thread; in a Python with msgspec alone."""
    (replies,) = played("trl", [CALLS], python=bare, tools=f"{TRL}:TOOLS")
    said = [texts(reply) for reply in replies]
    assert said[:3] == [[], ["42", "1024"], ["2", "3"]]
    assert json.loads(said[3][0]) == {"error": "TimeoutError: too slow"}
    assert replies[-1].step.done


@pytest.mark.parametrize(
    ("thing", "cases", "rewards"),
    [("Counter", COUNTS, [1.0, -0.6, -0.5, -0.5]), ("Vault", CODES, [1.0, 0.0, 1.0])],
)
def test_a_factory_of_trl(
    bare: str, thing: str, cases: list[dict[str, Any]], rewards: list[float]
) -> None:
    factory = f"{TRL}:{thing}"
    found = played("trl", cases, python=bare, environment_factory=factory)
    assert [paid(replies) for replies in found] == rewards
    assert texts(found[0][0]) == ([" Count to 5."] if thing == "Counter" else [])
    row = played("trl", cases, python=bare, together=False, environment_factory=factory)
    assert [paid(replies) for replies in row] == rewards
    if thing == "Vault":
        assert [texts(replies[1]) for replies in row] == [
            ["open, one of 1"], ["closed, one of 1"], ["open, one of 1"],
        ]  # fmt: skip


def test_factories_of_trl_by_a_row_s_column(bare: str) -> None:
    """And their limit of calls: the last turn stands as it is, and the reward is asked for."""
    rows = [{**COUNTS[0]}, {**CODES[0]}, {**COUNTS[0]}]
    for row, name in zip(rows, ("count", "vault", "nowhere"), strict=True):
        row["row"] = {**row["row"], "environment": name}
    factories = {"count": f"{TRL}:Counter", "vault": f"{TRL}:Vault"}
    options: dict[str, Any] = {"environment_factory": factories, "tools": f"{TRL}:TOOLS"}
    first, second, third = played(
        "trl", rows, python=bare, max_tool_calling_iterations=1, **options
    )
    assert (paid(first), paid(second)) == (-0.3, 1.0)
    assert (third[0].status, "not of count, vault" in third[0].error) == ("crashed", True)
    ready = asyncio.run(ready_of(EnvironmentConfig(name="trl", options=options)))
    names = [tool["function"]["name"] for tool in ready.tools]
    assert names == ["multiply", "lookup", "evaluate", "increment", "enter"]
    assert ready.pays
    alone = EnvironmentConfig(name="trl", options={"tools": f"{TRL}:TOOLS"})
    assert not asyncio.run(ready_of(alone)).pays


def test_trl_s_own_loop_pays_the_same() -> None:
    own = own_rewards("trl", [*COUNTS, *CODES, CALLS])
    ours = [
        *played("trl", COUNTS, environment_factory=f"{TRL}:Counter"),
        *played("trl", CODES, environment_factory=f"{TRL}:Vault"),
    ]
    assert [paid(replies) for replies in ours] == pytest.approx(own[:-1])
    assert own[-1] == ["42", "1024", "2", "3", "{'error': 'too slow'}"]


# -- verifiers --------------------------------------------------------------------------------

PLAYS = {
    "load_tools": [
        [say("I ask", ("multiply", {"a": 6, "b": 7})), say("42")],
        [say("", ("multiply", {"a": "x"}), ("nothing", {})), say("41")],
        [say("", ("multiply", {"a": i, "b": 1})) for i in range(4)],
    ],
    "load_cart": [
        [say("", ("put", {"item": "egg"}), ("put", {"item": "milk"})),
         say("", ("put", {"item": "egg"})), say("done")],
        [say("nothing")],
    ],
    "load_higher": [
        [say("7"), say("99"), say("42")],
        [say("40")] * 4,
        [say("1"), say("42")],
    ],
}  # fmt: skip


@pytest.mark.parametrize("load", PLAYS)
def test_verifiers_own_loop_pays_the_same(load: str) -> None:
    cases = [case(f"{VERIFIERS}:{load}", *turns) for turns in PLAYS[load]]
    if load == "load_higher":
        for each in cases:
            each["row"]["messages"] = [
                {"role": "system", "content": "Guess."}, {"role": "user", "content": "q"},
            ]  # fmt: skip
    found = played("verifiers", cases, python=python_with("verifiers"), id=cases[0]["thing"])
    assert [paid(replies) for replies in found] == pytest.approx(own_rewards("verifiers", cases))
    if load == "load_higher":
        assert [texts(reply) for reply in found[0][:3]] == [[], ["higher"], ["lower"]]
        assert found[0][-1].step.metrics["near"] == 0.0


def test_a_rollout_of_verifiers_that_breaks_or_rewrites_is_no_reward_of_0() -> None:
    cases = [case(VERIFIERS, say("1"), say(word), say("42")) for word in ("raise", "rewrite")]
    options: dict[str, Any] = {"id": f"{VERIFIERS}:load_higher"}
    broken, rewritten = played("verifiers", cases, python=python_with("verifiers"), **options)
    assert (broken[-1].status, "it broke" in broken[-1].error) == ("crashed", True)
    assert rewritten[-1].status == "invalid"
    assert "message 0" in rewritten[-1].error


# -- games ------------------------------------------------------------------------------------


@pytest.mark.parametrize("thing", ["Reverse", "Ladder"])
def test_gymnasium_s_own_loop_pays_the_same(thing: str) -> None:
    turns = [[say(word)] * 5 for word in ("up", "abcd", "jump")]
    cases = [case(f"{GYMNASIUM}:{thing}", *each, seed=seed) for seed in (1, 2) for each in turns]
    found = played("gymnasium", cases, python=python_with("gymnasium"), id=cases[0]["thing"])
    assert [paid(replies) for replies in found] == pytest.approx(own_rewards("gymnasium", cases))


GAMES = {
    "GuessTheNumber-v0": [str(number) for number in range(1, 15)],
    "Mastermind-v0": ["1 2 3 4", "5 6 1 4", "3 5 2 6", "5 4 3 2"] * 6,
    "TowerOfHanoi-v0": [*["A C", "A B", "C B", "A C", "B A", "B C", "A C"]],
    "Blackjack-v0": ["hit", "stand", "hit", "hit", "stand", "stand", "stand", "stand"] * 3,
}  # fmt: skip


@pytest.mark.parametrize("game", GAMES)
def test_textarena_s_own_loop_pays_the_same(game: str) -> None:
    """Several at once in one child, though they draw from Python's global dice."""
    moves = [say(f"[{word}]") for word in GAMES[game]]
    cases = [case(game, *moves, seed=seed) for seed in range(6)]
    found = played("textarena", cases, python=python_with("textarena"), id=game)
    assert [paid(replies) for replies in found] == pytest.approx(own_rewards("textarena", cases))
    assert all(texts(replies[0])[0] for replies in found)


# -- what goes wrong --------------------------------------------------------------------------

BAD = {
    "raises": ("raise RuntimeError('one\\nline')", "RuntimeError: one line"),
    "ends": ("raise SystemExit(3)", "SystemExit: 3"),
    "pins": ("try: pass\nexcept* ValueError, TypeError: pass", "SyntaxError"),
    "lacks": ("import no_such_package", "ModuleNotFoundError: No module named 'no_such_package'"),
    "loads": ("open('/no/such/data')", "FileNotFoundError"),
}


@pytest.mark.parametrize(("text", "words"), BAD.values(), ids=BAD)
def test_a_package_that_cannot_be_had_is_one_line(
    bare: str, tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "bad.py").write_text(text + "\nclass Game: pass\n")
    options = {"id": f"{tmp_path}/bad.py:Game"}
    with pytest.raises(UserError, match=words) as found:
        asyncio.run(ready_of(EnvironmentConfig(name="gymnasium", options=options, python=bare)))
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("library", "thing", "words"),
    [("gymnasium", "FrozenLake-v1", "space Discrete"), ("textarena", "Nim-v9", "not found")],
)
def test_a_game_that_is_none_is_one_line(library: str, thing: str, words: str) -> None:
    config = EnvironmentConfig(name=library, options={"id": thing}, python=python_with(library))
    with pytest.raises(UserError, match=words) as found:
        asyncio.run(ready_of(config))
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("game", "words"), [("Wordle-v0", "nltk"), ("TicTacToe-v0", "number of players")]
)
def test_a_game_that_needs_more_than_there_is_says_so(game: str, words: str) -> None:
    """A download; another player."""
    ((reply,),) = played("textarena", [case(game)], python=python_with("textarena"), id=game)
    assert (reply.status, words in reply.error, "\n" in reply.error) == ("crashed", True, False)


def test_a_child_without_msgspec_is_one_line(tmp_path: Path) -> None:
    python = make_environment(tmp_path / "venv", needed=())
    config = EnvironmentConfig(name="trl", options={"tools": f"{TRL}:TOOLS"}, python=python)
    with pytest.raises(UserError, match=r"3\.10 or newer, and needs msgspec") as found:
        asyncio.run(ready_of(config))
    assert "\n" not in str(found.value)


def test_one_that_prints_disturbs_nothing(bare: str, tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(
        "import os, sys\nprint('import'); os.write(1, b'raw')\n"
        "class Loud:\n"
        "    def reset(self, **row): print('reset'); sys.__stdout__.write('reset')\n"
        "    def get_reward(self): os.system('echo child'); return 1.0\n"
        "    def input(self) -> str:\n        'Read.'\n        return sys.stdin.read()\n"
    )
    cases = [case("", say("", ("input", {})), say("x"))] * 2
    options: dict[str, Any] = {"environment_factory": f"{tmp_path}/loud.py:Loud"}
    assert list(map(paid, played("trl", cases, python=bare, **options))) == [1.0, 1.0]


def test_kills_of_a_child_at_random_moments_change_nothing(bare: str) -> None:
    """Ended children are replaced, and their episodes built again from seeds and turns."""
    dice = random.Random(5)
    killed: list[int] = []
    turns = [say("", ("increment", {"step": 1}))] * 6
    cases = [case("", *turns, say("over"), target=number % 9) for number in range(60)]

    async def kill(pool: EnvironmentPool) -> None:
        while True:
            await asyncio.sleep(dice.uniform(0.0, 0.02))
            child = pool._children[0]
            if not child.is_gone and len(killed) < 12:
                killed.append(child._process.pid)
                os.kill(child._process.pid, signal.SIGKILL)

    options: dict[str, Any] = {"environment_factory": f"{TRL}:Counter"}
    found = played("trl", cases, together=False, python=bare, story=kill, **options)
    expected = [1.0 if n % 9 == 6 else -abs(n % 9 - 6) / 10 for n in range(60)]
    ended = [replies[-1] for replies in found]
    assert all(reply.step.done or reply.error for reply in ended)
    assert [r.step.reward for r in ended if r.status == "ok"] == [
        reward for reward, r in zip(expected, ended, strict=True) if r.status == "ok"
    ]
    assert {reply.status for reply in ended} <= {"ok", "crashed"}
    assert len(killed) >= 3
