"""Environments that come with Headrace."""

import asyncio
import json
import os
import re
import signal
from collections.abc import Mapping, Sequence
from functools import cache
from random import Random
from typing import Any

from headrace.host.process_reaper import ProcessReaper, signal_groups
from headrace.protocol.messages.environments import InsertedMessage, PolicyTurn, Step

_reaper = cache(ProcessReaper)
"""It ends programs of agents, and what these have started, when this process is gone."""


class Calculator:
    """A product of two numbers, and a calculator that can be asked for it.

    The row's `answer` is the product. A turn that is `[A*B]` is a call: the policy reads `>RESULT>`
    and goes on. Any other turn is its answer, which earns 1 where it is right. `blank` answers
    calls with `>>`, to see whether a policy needs the result.
    """

    def __init__(self, *, blank: bool = False) -> None:
        self._blank = blank
        self._answer = ""

    def reset(self, row: Mapping[str, Any], seed: int) -> None:
        """Begin with a problem."""
        self._answer = str(row["answer"])

    def step(self, turn: PolicyTurn) -> Step:
        """Calculate, or judge the answer."""
        text = turn.text.strip()
        if call := re.fullmatch(r"\[(\d{1,9})\*(\d{1,9})\]", text):
            result = "" if self._blank else str(int(call[1]) * int(call[2]))
            said = InsertedMessage("tool", f">{result}>")
            return Step(messages=[said], metrics={"calls": 1.0})
        right = text == self._answer
        return Step(reward=float(right), done=True, success=right)


class Guess:
    """A hidden letter, drawn by the seed of the prompt, that the policy has to guess.

    A turn names one, and reads `<` where the hidden letter comes before it, `>` where it comes
    after. Naming it earns 1. With `fresh` another letter is hidden at each turn, so that the
    answers are of no use."""

    def __init__(self, *, letters: str = "abcdefg", tries: int = 3, fresh: bool = False) -> None:
        self._letters, self._left, self._fresh = letters, tries, fresh
        self._draw, self._hidden = Random(), ""

    def reset(self, row: Mapping[str, Any], seed: int) -> None:
        """Hide a letter."""
        self._draw = Random(seed)
        self._hidden = self._draw.choice(self._letters)

    def step(self, turn: PolicyTurn) -> Step:
        """Compare a guess; one that is no letter is wrong and ends the episode."""
        named, self._left = turn.text.strip(), self._left - 1
        right = named == self._hidden
        if right or not self._left or named not in set(self._letters):
            return Step(reward=float(right), done=True, success=right)
        said = "<" if self._hidden < named else ">"
        if self._fresh:
            self._hidden = self._draw.choice(self._letters)
        return Step(messages=[InsertedMessage("user", said)])


ANSWER, VERDICT = 0, 1
"""Acts of PAG: attempts and revisions are the same one."""


class Pag:
    """Attempt, verify, revise (PAG, arXiv 2506.10406).

    The policy answers, says whether that is right, and answers again where it says `wrong`; a
    verdict that is neither word ends the episode. An answer earns 1 where it is the row's `answer`,
    a verdict 1 where it is true, a revision `alpha` times what it has won over the attempt besides
    (Eq. of section 3.2: 2, 1, 0 or -1). Where an episode is cut its last whole answer decides. With
    probability `given` a random one of `candidates` is inserted as the attempt, so that there are
    wrong ones to judge. `always`: every verdict is followed by a revision, for comparison.
    """

    def __init__(
        self, *, verify: str = "V", revise: str = "R", right: str = "+", wrong: str = "-",
        alpha: float = 1.0, given: float = 0.0, candidates: str = "0123456789",
        always: bool = False,
    ) -> None:  # fmt: skip
        self._verify, self._revise, self._words = verify, revise, (right, wrong)
        self._alpha, self._given, self._candidates = alpha, given, candidates
        self._always = always
        self._answer, self._attempt = "", ""
        self._next = "attempt"

    def reset(self, row: Mapping[str, Any], seed: int) -> Step:
        """Ask for an attempt, or give one and ask for the verdict."""
        draw = Random(seed)
        self._answer = str(row["answer"])
        if draw.random() >= self._given:
            return Step(act=ANSWER)
        self._attempt, self._next = draw.choice(self._candidates), "verdict"
        return Step(messages=[InsertedMessage("user", self._attempt + self._verify)], act=VERDICT)

    def step(self, turn: PolicyTurn) -> Step:
        """Judge an attempt, a verdict or a revision."""
        said, act = turn.text.strip(), self._next
        if act == "attempt":
            self._attempt, self._next = said, "verdict"
            right = float(said == self._answer)
            return _ask(self._verify, right, VERDICT, success=bool(right), first_right=right)
        was_right = self._attempt == self._answer
        if act == "verdict":
            right_word, wrong = self._words
            true = float(said == (right_word if was_right else wrong))
            recall = {"right_recall" if was_right else "wrong_recall": true}
            if said == wrong or (self._always and said == right_word):
                self._next = "revision"
                return _ask(self._revise, true, ANSWER, success=was_right, revised=1.0, **recall)
            metrics = {"revised": 0.0, **recall}
            return Step(reward=true, done=True, success=was_right, metrics=metrics)
        is_right = said == self._answer
        gain = float(is_right - was_right)
        return Step(
            reward=is_right + self._alpha * gain,
            done=True,
            success=is_right,
            metrics={"revision_gain": gain, "changed": float(said != self._attempt)},
        )


def _ask(text: str, reward: float, act: int, *, success: bool, **metrics: float) -> Step:
    said = [InsertedMessage("user", text)]
    return Step(messages=said, reward=reward, act=act, success=success, metrics=metrics)


async def command(
    row: Mapping[str, Any], *, base_url: str, api_key: str, run: Sequence[str]
) -> Any:
    """Run a program as an agent.

    It reads the row as JSON on stdin, finds the endpoint in OPENAI_BASE_URL and OPENAI_API_KEY, and
    prints its result as JSON in the last line: a number, or an object with the fields of a Step."""
    told = {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": api_key}
    process = await asyncio.create_subprocess_exec(
        *run, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **told}, start_new_session=True,
    )  # fmt: skip
    _reaper().register(process.pid)
    try:
        said, _ = await process.communicate(json.dumps(row).encode())
    finally:
        signal_groups({process.pid}, signal.SIGKILL)
        _reaper().unregister(process.pid)
        await process.wait()
    if process.returncode:
        raise RuntimeError(f"{run[0]} ended with exit code {process.returncode}")
    try:
        return json.loads(b"".join(said.splitlines()[-1:]))
    except ValueError as error:
        raise RuntimeError(f"the last line that {run[0]} printed is no JSON: {error}") from error
