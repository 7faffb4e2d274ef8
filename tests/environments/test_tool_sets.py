"""The built-in tools, in real children: a search, and the sandbox's interpreter."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from environments.worker import EnvironmentPool, ready_of
from headrace.config.loading.recipe import load_recipe
from headrace.config.sections.environment import EnvironmentConfig
from headrace.errors import UserError
from headrace.protocol.messages.environments import PolicyTurn, StepAsk, StepReply

CORPUS = [
    {"title": "Rivers", "text": "A headrace leads water to a mill. " + "Other words follow. " * 90},
    {"title": "Mills", "text": "A mill grinds corn; mills need a headrace, or wind."},
    {"text": "Corn grows in fields."},
]


def called(name: str, calls: list[Any], **options: Any) -> list[StepReply]:
    """Replies to calls, or lists of them, each a turn of one episode."""

    async def whole() -> list[StepReply]:
        pool = EnvironmentPool(EnvironmentConfig(name=name, options=options, children=1))
        try:
            await pool.start()
            turns: list[PolicyTurn] = []
            replies = []
            for call in (None, *calls):
                if call is not None:
                    each = call if isinstance(call, list) else [call]
                    said = [json.dumps({"name": name, "arguments": one}) for one in each]
                    text = "".join(f"<tool_call>{one}</tool_call>" for one in said)
                    turns.append(PolicyTurn(text, 1))
                ask = StepAsk(
                    trajectory_id=0, turn=len(turns), turns=turns[-1:], known=[],
                    row=json.dumps({"prompt": "p", "answer": "a"}), seed=7,
                )  # fmt: skip
                replies.append(await pool.reply(ask))
            return replies[1:]
        finally:
            await pool.close()

    replies = asyncio.run(whole())
    assert {reply.status for reply in replies} <= {"ok"}, replies
    return replies


def answers(replies: list[StepReply]) -> list[Any]:
    return [json.loads(reply.step.messages[0].content) for reply in replies]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n".join(map(json.dumps, CORPUS)) + "\n\n")
    return path


def test_a_search_shows_the_best_documents_where_they_match(corpus: Path) -> None:
    asked = ["headrace mill", "corn", 'none" NEAR( *', "", "water AND NOT (x"]
    mill, corn, none, empty, syntax = answers(
        called("search", [{"query": query} for query in asked], path=str(corpus), results=2)
    )
    assert [found["title"] for found in mill] == ["Mills", "Rivers"]
    assert len(mill[1]["text"].split()) <= 65
    assert {found["title"] for found in corn} == {"Mills", ""}
    assert (none, empty) == ([], [])
    assert [found["title"] for found in syntax] == ["Rivers"]


def test_a_corpus_is_found_beside_its_recipe_and_one_that_is_none_is_one_line(
    corpus: Path,
) -> None:
    recipe = Path("recipes/calculator.toml").read_text()
    (corpus.parent / "r.toml").write_text(
        recipe.replace(
            'name = "calculator"\nmax', 'name = "search"\noptions = { path = "corpus.jsonl" }\nmax'
        )
    )
    config = load_recipe(corpus.parent / "r.toml").environment
    assert config is not None
    assert config.options == {"path": str(corpus)}
    ready = asyncio.run(ready_of(config))
    assert ([tool["function"]["name"] for tool in ready.tools], ready.pays) == (["search"], False)
    for text, words in (
        ("x", "JSONDecodeError"),
        ("{}", "KeyError: 'text'"),
        (None, "No such file"),
    ):
        corpus.unlink() if text is None else corpus.write_text(text)
        with pytest.raises(UserError, match=words) as found:
            asyncio.run(ready_of(config))
        assert "\n" not in str(found.value)


def test_a_program_runs_in_a_cell_of_its_own() -> None:
    codes = [
        "x = 6 * 7\nprint(x)", "print(x)", "while True: pass",
        "open('/etc/hostname', 'w')", "import socket; socket.create_connection(('127.0.0.1', 1))",
    ]  # fmt: skip
    replies = called("python", [{"code": code} for code in codes], seconds=1.0)
    assert replies[0].step.messages[0].content == "42\n"
    other, endless, file, network = answers(replies[1:])
    assert (other["status"], "NameError" in other["stderr"]) == ("failed", True)
    assert endless["status"] == "timeout"
    assert (file["status"], network["status"]) == ("failed", "failed")
    assert replies[2].step.metrics["seconds_python"] < 10.0


def test_programs_of_a_turn_share_its_seconds() -> None:
    """Sixteen endless ones would outlast the step's deadline, and keep all others waiting."""
    slow = {"code": "import time; time.sleep(2); print(1)"}
    both, next_turn = called("python", [[slow, slow], slow], seconds=3.5)
    first, second = (message.content for message in both.step.messages)
    assert (first, json.loads(second)["status"]) == ("1\n", "timeout")
    assert next_turn.step.messages[0].content == "1\n"
