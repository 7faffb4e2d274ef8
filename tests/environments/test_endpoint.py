"""Agents in real children, asking a real endpoint with the `openai` client; the policy is
scripted."""

import asyncio
import json
import os
import shutil
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from environments.endpoint import AgentPool
from environments.worker import ready_of
from headrace.config.sections.environment import EnvironmentConfig
from headrace.errors import UserError
from headrace.protocol.messages.environments import PolicyTurn, StepAsk, StepReply
from tests.environments.peers import PEERS, python_with
from tests.rewards.worker.test_pool import gone

FILE = str(Path(__file__).parent / "agents.py")
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>'
PROGRAM = """
import json, sys
from openai import OpenAI

row, client = json.load(sys.stdin), OpenAI()
print("some words", flush=True)
said = client.chat.completions.create(
    model="policy", messages=[{"role": "user", "content": row["prompt"]}]
).choices[0].message.content
print(json.dumps({"reward": float(said == row["answer"])}))
"""
STARTER = """
import json, os, subprocess, sys, time

name = f"{sys.argv[1]}/{json.load(sys.stdin)['prompt']}"
with open(f"{name}.new", "w") as file:
    print(subprocess.Popen(["sleep", "600"]).pid, file=file)
os.rename(f"{name}.new", name)
time.sleep(600)
"""


class Episode:
    """One that a coordinator plays."""

    def __init__(
        self, pool: AgentPool, key: int, prompt: str = "p", *, branch_of: int = -1
    ) -> None:
        self.pool, self.key, self.prompt, self.branch_of = pool, key, prompt, branch_of
        self.branches: list[int] = []
        self.turns: list[PolicyTurn] = []
        self.known: list[str] = []

    async def ask(self, *, fresh: bool = True) -> StepReply:
        ask = StepAsk(
            trajectory_id=self.key, turn=len(self.turns),
            turns=self.turns if fresh else self.turns[-1:], known=self.known if fresh else [],
            row=json.dumps({"prompt": self.prompt, "answer": "a"}), seed=7,
            branch_of=self.branch_of, branches=self.branches,
        )  # fmt: skip
        reply = await self.pool.reply(ask)
        if reply.status != "branched":
            self.known.append(reply.step.digest)
        return reply

    async def say(self, text: str, *, fresh: bool = False) -> StepReply:
        self.turns.append(PolicyTurn(text, 3, [7, 8, 9], [-0.5] * 3, 10))
        return await self.ask(fresh=fresh)


def play(
    name: str, story: Callable[[AgentPool], Awaitable[None]], *, timeout_s: float = 30.0,
    reset_timeout_s: float = 60.0, children: int = 1, rewritten: Any = "fail", file: str = FILE,
    python: str | None = None, **options: Any,
) -> None:  # fmt: skip
    config = EnvironmentConfig(
        name=name if name == "command" else f"agent:{file}:{name}", options=options, python=python,
        timeout_s=timeout_s, reset_timeout_s=reset_timeout_s, children=children,
        rewritten=rewritten,
    )  # fmt: skip

    async def whole() -> None:
        pool = AgentPool(config)
        try:
            await pool.start()
            await story(pool)
        finally:
            await pool.close()

    asyncio.run(whole())


def texts(reply: StepReply) -> list[str]:
    assert reply.status == "ok", reply
    return [message.content for message in reply.step.messages]


def test_each_request_is_a_turn_and_the_result_ends_the_episode() -> None:
    async def story(pool: AgentPool) -> None:
        episodes = [Episode(pool, key) for key in range(8)]
        begun = await asyncio.gather(*(e.ask() for e in episodes))
        assert [texts(reply) for reply in begun] == [["0:p"]] * 8
        said = await asyncio.gather(*(e.say(f"x{e.key}") for e in episodes))
        assert [texts(reply) for reply in said] == [[f"1:x{key}"] for key in range(8)]
        ended = await episodes[3].say("stop")
        assert (ended.step.done, ended.step.reward, ended.step.success) == (True, 0.5, True)
        assert ended.step.metrics == {"words": 2.0, "refused": 0.0, "wrong_calls": 0.0}
        # A coordinator that begins again asks for the whole; the agent goes on where it was.
        assert texts(await episodes[4].say("more", fresh=True)) == ["2:more"]
        # One that has other turns: the agent plays again.
        other = Episode(pool, 5)
        other.known, other.turns = episodes[5].known[:1], [PolicyTurn("y", 3, [7, 8, 9], [0.0] * 3)]
        assert texts(await other.ask()) == ["1:y"]

    play("echo", story, children=2)


def test_the_end_of_an_agent_that_was_not_recorded_is_said_again(tmp_path: Path) -> None:
    """A coordinator that died with it asks once more, and this agent cannot play again."""
    (tmp_path / "flag").touch()  # It does not end its process.

    async def story(pool: AgentPool) -> None:
        episode = Episode(pool, 0)
        await episode.ask()
        for number in range(3):
            ended = await episode.say(f"x{number}")
        assert (ended.status, ended.step.done, ended.step.reward) == ("ok", True, 1.0)
        episode.known.pop()
        again = await episode.ask()
        assert (again.status, again.step) == (ended.status, ended.step)
        pool.end([0])
        assert pool._sessions == {}

    play("fickle", story, flag=str(tmp_path / "flag"))


def test_a_trajectory_of_another_row_is_another_episode() -> None:
    """A coordinator that came back gives numbers again that it had not recorded."""

    async def story(pool: AgentPool) -> None:
        for prompt in "pq":
            assert texts(await Episode(pool, 0, prompt).ask()) == [f"0:{prompt}"]

    play("echo", story)


def test_tools_and_their_results_go_both_ways() -> None:
    async def story(pool: AgentPool) -> None:
        episode = Episode(pool, 0)
        (tool,) = (await episode.ask()).step.tools
        assert tool["function"]["name"] == "add"
        reply = await episode.say(CALL)
        assert [(m.role, m.content) for m in reply.step.messages] == [("tool", "4")]
        ended = await episode.say("4")
        assert (ended.status, ended.step.reward) == ("ok", 1.0), ended

    play("with_tools", story)


def test_a_streamed_reply_comes_in_one_event() -> None:
    async def story(pool: AgentPool) -> None:
        episode = Episode(pool, 0)
        await episode.ask()
        ended = await episode.say(CALL)
        assert (ended.status, ended.step.reward) == ("ok", 1.0), ended

    play("streams", story)


@pytest.mark.parametrize(("answer", "reward"), [("a", 1.0), ("b", 0.0)])
def test_an_agent_of_a_library_runs_unchanged(answer: str, reward: float) -> None:
    """One of the OpenAI Agents SDK, which works its tool out and says the last answer."""

    async def story(pool: AgentPool) -> None:
        episode = Episode(pool, 0, prompt="6*7?")
        begun = await episode.ask()
        assert texts(begun) == ["Use the tool.", "6*7?"]
        assert [tool["function"]["name"] for tool in begun.step.tools] == ["multiply"]
        call = '<tool_call>\n{"name": "multiply", "arguments": {"a": 6, "b": 7}}\n</tool_call>'
        assert texts(await episode.say(call)) == ["42"]
        ended = (await episode.say(answer)).step
        assert (ended.done, ended.reward, ended.metrics["refused"]) == (True, reward, 0.0)

    play("play", story, file=f"{PEERS}/for_agents.py", python=python_with("agents"))


@pytest.mark.parametrize(("letters", "reward"), [("aepgr", 1.0), ("gxzqwyv", 0.2)])
def test_a_task_set_of_verifiers_0_4_plays_its_own_loop(
    letters: str, reward: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TextArena's Hangman, which pays these letters so by itself; its word list is one that NLTK
    would download."""
    python = python_with("verifiers.v1.tasksets.textarena")
    (tmp_path / "corpora/words").mkdir(parents=True)
    for name in ("en", "en-basic"):
        (tmp_path / "corpora/words" / name).write_text("grape\n")
    monkeypatch.setenv("NLTK_DATA", str(tmp_path))
    monkeypatch.setenv("PATH", f"{Path(python).parent}:{os.environ['PATH']}")

    async def story(pool: AgentPool) -> None:
        episode = Episode(pool, 0, prompt="3")
        assert "Hangman" in texts(await episode.ask())[1]
        for letter in letters:
            reply = await episode.say(f"[{letter.upper()}]")
        assert reply.step.done, reply
        assert reply.step.reward == reward

    play("play", story, file=f"{PEERS}/for_verifiers_v1.py", python=python)


WRONG = {
    "rewritten": "message 0 is not what it was",
    "key": "this key names no episode",
    "no key": "this key names no episode",
    "long": "at most 2097152 bytes",
    "too long to send": "Expected `str` of length <= 1048576",
    "nothing": "nothing to answer",
    "image": "messages[2]: a part is image_url",
    "two": "n = 2 is not to be had",
    "guided_json": "unknown parameter 'guided_json'",
}


def test_what_may_not_be_asked_is_refused_and_changes_nothing() -> None:
    async def ask(pool: AgentPool, key: int, what: str) -> None:
        episode = Episode(pool, key, prompt=what)
        assert texts(await episode.ask()) == ["hello"]
        (said,) = texts(await episode.say("x"))
        assert WRONG[what] in said
        ended = await episode.say("y")
        assert (ended.step.done, ended.step.reward) == (True, 1.0)
        assert ended.step.metrics["refused"] == float(what == "rewritten")

    async def story(pool: AgentPool) -> None:
        await asyncio.gather(*(ask(pool, key, what) for key, what in enumerate(WRONG)))

    play("bad", story)


def test_what_cannot_be_read_is_refused_in_one_line() -> None:
    deep = "[" * 100_000
    call = {"function": {"name": "add", "arguments": deep}}
    said = json.dumps({"messages": [{"role": "assistant", "tool_calls": [call]}]})

    async def story(pool: AgentPool) -> None:
        await Episode(pool, 0).ask()
        key = pool._signed(f"0-{pool._sessions[0].attempt}").encode()
        async with httpx.AsyncClient(base_url=pool.base_url, trust_env=False) as client:
            for told, body, status in (
                (b"\xff", "", 401), (key, f'{{"messages": {deep}', 400), (key, said, 400),
            ):  # fmt: skip
                headers = {b"Authorization": b"Bearer " + told}
                answer = await client.post("/chat/completions", content=body, headers=headers)
                assert answer.status_code == status
                assert "\n" not in answer.json()["error"]["message"]

    play("echo", story)


def test_two_requests_at_once_are_one_turn(tmp_path: Path) -> None:
    refused = tmp_path / "refused"

    async def story(pool: AgentPool) -> None:
        episode = Episode(pool, 0, prompt="twice")
        await episode.ask()
        assert texts(await episode.say("x")) == ["one"]
        while not refused.exists():
            await asyncio.sleep(0.01)
        (said,) = texts(await episode.say("y"))
        assert "is under way" in said
        assert (await episode.say("z")).step.done

    play("bad", story, refused=str(refused))


@pytest.mark.parametrize(
    ("what", "status", "words"),
    [
        ("silent", "invalid", "has asked nothing"),
        ("text", "invalid", "the agent returned '1.0', which is no reward"),
        ("rewritten", "rewritten", "message 0 is not"),
        ("two", "crashed", "BadRequestError: "),
    ],
)
def test_an_agent_that_fails_says_why(what: str, status: str, words: str) -> None:
    async def story(pool: AgentPool) -> None:
        episode = Episode(pool, 0, prompt=what)
        reply = await episode.ask()
        if reply.status == "ok":
            reply = await episode.say("x")
        assert reply.status == status, reply
        assert words in reply.error

    play("bad", story, catches=False)


def test_an_agent_that_went_on_after_a_refusal_ends_by_what_it_raised() -> None:
    async def story(pool: AgentPool) -> None:
        episode = Episode(pool, 0, prompt="rewritten")
        await episode.ask()
        (said,) = texts(await episode.say("x"))
        assert "message 0 is not what it was" in said
        ended = await episode.say("y")
        assert ended.status == "crashed", ended
        assert "ValueError: it broke" in ended.error

    play("bad", story, breaks=True)


@pytest.mark.parametrize("hurt", ["", "agent", "worker"])
def test_a_rewritten_history_is_a_branch_that_shares_the_reward(hurt: str) -> None:
    async def story(pool: AgentPool) -> None:
        first, branch = Episode(pool, 0), Episode(pool, 1, branch_of=0)
        assert texts(await first.ask()) == ["a"]
        assert (await first.say("x")).status == "branched"
        # Whichever of the two is asked first.
        begun = asyncio.create_task(branch.ask())
        await asyncio.sleep(0.1)
        first.branches = [1]
        going = asyncio.create_task(first.ask(fresh=False))
        begin = await begun
        assert (texts(begin), len(begin.step.tools)) == (["b"], 1)
        waits = asyncio.create_task(branch.say(CALL))
        assert texts(await going) == ["c:add"]
        if hurt == "agent":
            await pool._children[0].kill()
        elif hurt == "worker":
            pool.end([0])
            assert (await waits).status == "lost"
            branch.known.pop()
            waits = asyncio.create_task(branch.ask())
            first.turns.append(PolicyTurn("y", 3, [7, 8, 9], [-0.5] * 3, 10))
            going = asyncio.create_task(first.ask())
        if hurt != "worker":
            going = asyncio.create_task(first.say("y"))
        assert texts(await waits) == ["d"]
        ended = await asyncio.gather(going, branch.say("z"))
        assert [(r.status, r.step.done, r.step.reward) for r in ended] == [("ok", True, 0.5)] * 2
        assert [r.trajectory_id for r in ended] == [0, 1]
        assert ended[0].step.metrics["branches"] == 1.0
        pool.end([0, 1])
        assert pool._sessions == {}

    play("rewrites", story, rewritten="branch")


def test_a_branch_may_begin_behind_the_policy_s_calls() -> None:
    """As a hand-over to another agent does, and a history that was cut at its front."""

    async def story(pool: AgentPool) -> None:
        first, said = Episode(pool, 0), f"I add.\n{CALL}"
        await first.ask()
        assert (await first.say(said)).status == "branched"
        first.branches = [1]
        going = asyncio.create_task(first.ask(fresh=False))
        step = (await Episode(pool, 1, branch_of=0).ask()).step
        told = [(one.role, one.content) for one in step.messages]
        assert told == [("user", "b"), ("assistant", said), ("tool", "4")]
        going.cancel()

    play("hands_over", story, rewritten="branch")


def test_a_branch_that_the_coordinator_does_not_know_begins_again() -> None:
    """It came back, and had not recorded the branch: the agent would wait there for ever."""

    async def story(pool: AgentPool) -> None:
        first = Episode(pool, 0)
        await first.ask()
        assert (await first.say("x")).status == "branched"
        first.branches = [1]
        before = asyncio.create_task(first.ask(fresh=False))
        assert texts(await Episode(pool, 1, branch_of=0).ask()) == ["b"]
        first.branches = []
        async with asyncio.timeout(60):
            assert (await first.ask()).status == "branched"
        assert (await before).status == "lost"
        first.branches = [2]
        going = asyncio.create_task(first.ask(fresh=False))
        assert texts(await Episode(pool, 2, branch_of=0).ask()) == ["b"]
        going.cancel()

    play("rewrites", story, rewritten="branch")


def test_an_agent_in_a_branch_has_a_deadline_and_the_policy_none() -> None:
    async def story(pool: AgentPool) -> None:
        first, branch = Episode(pool, 0), Episode(pool, 1, branch_of=0)
        await first.ask()
        assert (await first.say("x")).status == "branched"
        first.branches = [1]
        going = asyncio.create_task(first.ask(fresh=False))
        await branch.ask()
        await asyncio.sleep(2.0)
        assert not going.done()
        ended = await branch.say("no call")
        assert (ended.status, (await going).status) == ("crashed", "crashed")
        assert (await going).seconds < 1.0, "no time of the policy"
        assert "TypeError" in ended.error

    play("rewrites", story, rewritten="branch", timeout_s=1.0)


def test_who_asks_after_the_end_hears_that_it_is_over(tmp_path: Path) -> None:
    flag = tmp_path / "flag"

    async def story(pool: AgentPool) -> None:
        episode = Episode(pool, 0)
        await episode.ask()
        assert (await episode.say("x")).step.done
        while not flag.exists():
            await asyncio.sleep(0.1)
        assert "the episode of this key is over" in flag.read_text()

    play("late", story, flag=str(flag))


def test_an_agent_that_takes_too_long_ends_alone() -> None:
    async def story(pool: AgentPool) -> None:
        late, child = Episode(pool, 0), pool._children[0]
        await late.ask()
        began = time.monotonic()
        assert (await late.say("x")).status == "timeout"
        assert time.monotonic() - began < 2.5
        assert pool._children[0] is child
        assert texts(await Episode(pool, 1).ask()) == ["hello"]

    play("slow", story, timeout_s=1.5)


def test_an_agent_that_blocks_its_process_costs_those_nothing_that_wait(tmp_path: Path) -> None:
    async def story(pool: AgentPool) -> None:
        other, late, child = Episode(pool, 1), Episode(pool, 0), pool._children[0]
        assert texts(await other.ask()) == texts(await late.ask()) == ["hello"]
        (tmp_path / "flag").touch()
        assert (await late.say("x")).status == "timeout"
        while pool._children[0] is child:
            await asyncio.sleep(0.1)
        (tmp_path / "flag").unlink()
        assert (await other.say("y")).step.done

    play("blocking", story, timeout_s=2.0, flag=str(tmp_path / "flag"))


@pytest.mark.parametrize(
    ("name", "status"),
    [("deadly", "ok"), ("fickle", "lost"), ("otherwise", "diverged"), ("hasty", "diverged")],
)
def test_an_agent_whose_process_dies_plays_again(name: str, status: str, tmp_path: Path) -> None:
    async def story(pool: AgentPool) -> None:
        episode = Episode(pool, 0)
        reply = await episode.ask()
        for number in range(3):
            if reply.status != "ok":
                break
            assert texts(reply) == [str(number) if name != "otherwise" else "first"]
            reply = await episode.say(f"<tool_call>{number}")
        assert (reply.status, reply.step.done) == (status, status == "ok"), reply
        assert reply.step.metrics.get("wrong_calls", 3.0) == 3.0, "those of its last life"

    play(name, story, flag=str(tmp_path / "flag"))


def test_an_agent_whose_process_cannot_be_started_again_ends_its_worker(tmp_path: Path) -> None:
    own = shutil.copy(FILE, tmp_path / "own.py")

    async def story(pool: AgentPool) -> None:
        episode = Episode(pool, 0)
        assert texts(await episode.ask()) == ["hello"]
        with pytest.raises(UserError, match="there is no file"):
            await asyncio.wait_for(episode.say("x"), 60.0)

    play("vanishing", story, file=str(own), own=str(own))


def test_a_program_may_be_an_agent(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)

    async def story(pool: AgentPool) -> None:
        for key, (said, reward) in enumerate((("a", 1.0), ("b", 0.0))):
            episode = Episode(pool, key)
            assert texts(await episode.ask()) == ["p"]
            ended = await episode.say(said)
            assert (ended.step.done, ended.step.reward) == (True, reward)

    play("command", story, run=[sys.executable, str(path)])


def test_what_a_program_has_started_ends_with_its_episode(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(STARTER)

    async def story(pool: AgentPool) -> None:
        asks = [asyncio.create_task(Episode(pool, key, str(key)).ask()) for key in range(2)]
        async with asyncio.timeout(60):
            while not all((tmp_path / name).exists() for name in "01"):
                await asyncio.sleep(0.01)
        pool.end([0])
        assert (await asks[0]).status == "lost"
        await gone(int((tmp_path / "0").read_text()))

    play("command", story, run=[sys.executable, str(path), str(tmp_path)])
    asyncio.run(gone(int((tmp_path / "1").read_text())))


def test_what_is_no_agent_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def play(row, **_): ...\nasync def odd(row): ...\n")
    for thing, words in (("play", "no coroutine"), ("odd", "unexpected keyword")):
        with pytest.raises(UserError, match=words):
            asyncio.run(ready_of(EnvironmentConfig(name=f"agent:{path}:{thing}")))
