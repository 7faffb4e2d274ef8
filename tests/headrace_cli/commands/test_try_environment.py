"""`headrace try-environment` as a person plays."""

import io
import json
from pathlib import Path

import numpy as np
import pytest

from headrace.config.loading.recipe import load_recipe
from headrace.protocol.messages.environments import InsertedMessage, Step
from headrace_cli.cli import main
from headrace_cli.commands.checks.reward_check import policy_tokenizer
from headrace_cli.commands.run.try_environment import ModelPlayer
from tasks.datasets.source import build_source
from tests.integration.runs import REPOSITORY

RECIPES = REPOSITORY / "recipes"


def played(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], lines: str, *words: str
) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    code = main(["try-environment", *words])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_an_episode_is_played(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = str(RECIPES / "calculator.toml")
    code, out, _ = played(monkeypatch, capsys, "[12*12]\n144\n[1*1]\n", recipe, "--episodes=2")
    assert code == 0
    assert "tool      >144>" in out
    assert "over      reward 0, lost" in out
    assert out.count("prompt ") == 2, "the second one ends with the lines"


def test_limits_and_rewards_are_those_of_a_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = str(RECIPES / "calculator.toml")
    _, out, _ = played(monkeypatch, capsys, "[2*3]\n[4*5]\n", recipe)
    assert "truncated reward 0, lost" in out
    prompt = out.splitlines()[0].split()[1]
    left, right = prompt[:-1].split("*")
    _, out, _ = played(monkeypatch, capsys, f"{int(left) * int(right)}\n", recipe)
    assert "over      reward 1, won" in out


def test_a_recipe_without_one_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = played(monkeypatch, capsys, "", str(RECIPES / "quickstart.toml"))
    assert (code, "has no [environment]" in err) == (2, True)
    recipe = str(RECIPES / "calculator.toml")
    code, _, err = played(monkeypatch, capsys, "", recipe, "environment.name=nothing")
    assert (code, "no environment 'nothing'" in err) == (2, True)


def test_a_model_plays(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = str(RECIPES / "calculator.toml")
    code, out, err = played(monkeypatch, capsys, "", recipe, "--policy", "--episodes=12")
    assert (code, out.count("prompt "), out.count(" reward ")) == (0, 12, 12), err
    called = [line for line in out.splitlines() if line.startswith("turn 1") and "[" in line]
    assert len(called) == out.count("tool      >"), "what it asks for is answered"
    assert called, "about three answers in ten are calls"


def test_an_environment_that_fails_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = str(RECIPES / "calculator.toml")
    thing = f"environment.name={REPOSITORY}/tests/environments/misbehaviour.py:Echo"
    code, _, err = played(monkeypatch, capsys, "RAISE\n", recipe, thing, "environment.options={}")
    assert (code, "environment_crashed: ValueError: it broke" in err) == (2, True), err


def test_an_agent_that_branches_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At a terminal one trajectory is played."""
    agent = f"environment.name=agent:{REPOSITORY}/tests/environments/agents.py:rewrites"
    words = (str(RECIPES / "agent.toml"), agent, "environment.rewritten=branch")
    code, out, err = played(monkeypatch, capsys, "x\n", *words)
    assert (code, "user      a" in out) == (2, True), out + err
    assert "environment_branched: its agent rewrote its history" in err


def test_a_column_called_answer_is_not_the_answer_of_another_key(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = [{"question": f"{i}*2=", "gold": "right", "answer": "a hint"} for i in range(20)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "shows.py").write_text(
        "class Shows:\n    def reset(self, row, seed): return row['answer']\n"
        "    def step(self, turn): return {'done': True}\n"
    )
    code, out, err = played(
        monkeypatch, capsys, "x\n", str(RECIPES / "calculator.toml"), "environment.options={}",
        f"environment.name={tmp_path}/shows.py:Shows", "task.kind=dataset",
        f"task.path={tmp_path}/rows.jsonl", "task.prompt_key=question", "task.answer_key=gold",
    )  # fmt: skip
    assert (code, "user      right" in out) == (0, True), out + err


def test_a_model_reads_an_agents_requests_as_in_a_run(tmp_path: Path) -> None:
    for file in (RECIPES / "models" / "products-cold").iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "chat_template.jinja").write_text(
        "{% for m in messages %}[{{ m.content }}]<eos>{% endfor %}"
        "{% if add_generation_prompt %}={% endif %}"
    )
    config = load_recipe(RECIPES / "agent.toml", [f"model.path={tmp_path}"])
    row = build_source(config.task, config.seed).row_at(0)
    player, end = ModelPlayer(config), policy_tokenizer(config).eos_token_id
    player.start_episode(row, Step(messages=[InsertedMessage("user", "2*3")]))
    assert player._prompts.decode(np.array(player._ids, np.int32)) == "[2*3]="
    player._ids.append(end)
    player.observe(Step(messages=[InsertedMessage("tool", "6")]))
    assert player._prompts.decode(np.array(player._ids, np.int32)) == "[2*3]=[6]="
