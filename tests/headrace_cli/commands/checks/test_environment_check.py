"""The environment of a recipe, made before anything starts."""

from pathlib import Path
from typing import Any

import pytest

from headrace.config.loading.recipe import load_recipe
from headrace.config.sections.run import RunConfig
from headrace.errors import UserError
from headrace_cli.commands.checks.preflight import check_environment
from headrace_cli.commands.checks.reward_check import policy_tokenizer
from tests.environments.misbehaviour import __file__ as FILE
from tests.integration.runs import REPOSITORY

CALCULATOR = REPOSITORY / "recipes" / "calculator.toml"
AGENTS = REPOSITORY / "tests" / "environments" / "agents.py"


SAYS = "{% for m in messages %}{{ m.content }}<eos>{% endfor %}"


def checked(*overrides: str) -> RunConfig:
    return check_environment(load_recipe(CALCULATOR, overrides))


def with_template(folder: Path, template: str) -> str:
    """The calculator's model, with a chat template."""
    model = CALCULATOR.parent / "models" / "products-cold"
    for file in model.iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "chat_template.jinja").write_text(template)
    return f"model.path={folder}"


def test_what_has_no_tools_stays_as_it_is() -> None:
    assert checked() == load_recipe(CALCULATOR, [])


def test_an_environment_that_cannot_be_made_ends_all_before_it_begins() -> None:
    with pytest.raises(UserError, match=r"no file nowhere\.py"):
        checked("environment.name=nowhere.py:Thing")


def test_rewards_beside_an_environment_have_to_be_asked_for() -> None:
    with pytest.raises(UserError, match=r"environment\.scored = true"):
        checked("reward.kind=exact")
    assert checked("reward.kind=exact", "environment.scored=true").is_scored
    assert not checked("reward.max_consecutive_failures=9").is_scored, "episodes fail, too"


def test_tools_need_a_chat() -> None:
    with pytest.raises(UserError, match=r'model\.chat_template = "always"'):
        checked(f"environment.name={FILE}:TOOLS")


@pytest.mark.parametrize(
    ("template", "form"),
    [
        (SAYS, "hermes"),
        ("{{ tools }}<tool_call>" + SAYS, "hermes"),
        ("<tool_call><function=NAME>" + SAYS, "qwen"),
        ('{{ tools }}{"name": x, "parameters": y}' + SAYS, "llama"),
    ],
)
def test_calls_are_written_as_the_template_says(tmp_path: Path, template: str, form: str) -> None:
    chat = ["model.chat_template=always", f"environment.name={FILE}:TOOLS"]
    environment = checked(with_template(tmp_path, template), *chat).environment
    assert environment is not None
    assert (environment.calls, environment.scored) == (form, True)
    assert [tool["function"]["name"] for tool in environment.tools] == ["double", "stuck"]
    kept = checked(f"model.path={tmp_path}", *chat, "environment.calls=llama").environment
    assert kept is not None
    assert kept.calls == "llama"


@pytest.mark.parametrize("chat", ["auto", "always"])
def test_an_agents_requests_are_a_chat_whatever_its_prompts_are(tmp_path: Path, chat: str) -> None:
    agent = [f"environment.name=agent:{AGENTS}:echo", f"model.chat_template={chat}"]
    asks = with_template(tmp_path, '{{ tools }}{"name": x, "parameters": y}' + SAYS)
    environment = checked(asks, *agent).environment
    assert environment is not None
    assert (environment.calls, environment.tools, environment.scored) == ("llama", [], False)
    (tmp_path / "chat_template.jinja").write_text("{{ messages[-1].content }}")
    with pytest.raises(UserError, match="changes earlier messages"):
        checked(asks, *agent)
    assert checked(agent[0]) == load_recipe(CALCULATOR, agent[:1]), "its model has no template"


def test_a_template_that_cannot_be_extended_ends_all_before_it_begins(tmp_path: Path) -> None:
    forgets = with_template(tmp_path, "{{ messages[-1].content }}")
    with pytest.raises(UserError, match="changes earlier messages"):
        checked(forgets, "model.chat_template=always")


def test_a_template_without_answers_of_tools_ends_all_before_it_begins(tmp_path: Path) -> None:
    """Else each call would end its episode, until too many in a row have ended the run."""
    deaf = with_template(tmp_path, SAYS.replace("in messages", "in messages if m.role != 'tool'"))
    with pytest.raises(UserError, match=r"drops some \(tool\)"):
        checked(deaf, "model.chat_template=always", f"environment.name={FILE}:TOOLS")
    assert checked(deaf, "model.chat_template=always").environment is not None


def test_a_model_without_a_tokenizer_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^model\.path = .*: no tokenizer: ") as caught:
        checked(f"model.path={tmp_path}", "model.chat_template=always")
    assert "\n" not in str(caught.value)


def test_an_agents_tokenizer_is_loaded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = list[str]()

    def load(config: RunConfig) -> Any:
        loads.append(config.model.path)
        return policy_tokenizer(config)

    monkeypatch.setattr("headrace_cli.commands.checks.preflight.policy_tokenizer", load)
    agent = [f"environment.name=agent:{AGENTS}:echo", "model.chat_template=auto"]
    environment = checked(with_template(tmp_path, SAYS), *agent).environment
    assert environment is not None
    assert (environment.calls, loads) == ("hermes", [str(tmp_path)])
