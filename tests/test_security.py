"""What must hold in all of the source: no code in data, secrets masked, weights without code."""

from __future__ import annotations

import ast
import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from headrace.config.loading.hub import FILES
from headrace.config.loading.keys import models_of
from headrace.config.loading.recipe import load_recipe
from headrace.config.sections.process import mask_password
from headrace.config.sections.reward_model import RewardModelConfig
from headrace.config.sections.run import RunConfig
from headrace.protocol.messages import control as m
from headrace.run_files import run_folder
from headrace_cli.cli import main
from tests.coordinator.stage import GENERATOR, endless, staged
from tests.test_architecture import MODULES, ROOT, imports_of, name_of

CODE_IN_DATA = {
    "pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "jsonpickle", "yaml",
}  # fmt: skip
RUNS_TEXT = {"eval", "exec", "compile", "__import__"}
IN_A_CELL = {"sandbox/program_process.py", "sandbox/checker.py"}
"""They run inside the sandbox, and model-written code is what they are for."""
UNPICKLES = {
    "broadcast_object_list", "all_gather_object", "gather_object", "scatter_object_list",
    "send_pyobj", "recv_pyobj", "read_pickle", "to_pickle",
}  # fmt: skip
DATABASE = "postgresql+psycopg://headrace:hunter2@db.example/runs"


@functools.cache
def calls() -> list[tuple[Path, str, ast.Call]]:
    """Of all modules: file, place to name, call."""
    return [
        (path, f"{name_of(path)}, line {node.lineno}", node)
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
    ]


def called(call: ast.Call) -> str:
    """The last name of what is called."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def test_no_data_becomes_code() -> None:
    """No pickle, nothing that evaluates text, no torch.load, no arrays of objects."""
    for path in MODULES:
        imported = imports_of(path)
        assert not {name.split(".")[0] for name in imported} & CODE_IN_DATA, path
        assert not {name for name in imported if name.startswith("torch.serialization")}, path
    for path, place, call in calls():
        name = called(call)
        if isinstance(call.func, ast.Name) and name_of(path) not in IN_A_CELL:
            assert name not in RUNS_TEXT, f"{name} in {place}"
        assert name not in UNPICKLES, f"{name} in {place}"
        given = {word.arg: word.value for word in call.keywords}
        assert "allow_pickle" not in given, place
        if ast.unparse(call.func) in ("torch.load", "torch.save"):
            raise AssertionError(f"torch pickles in {place}")
        if ast.unparse(call.func).startswith("subprocess."):
            shell = given.get("shell")
            assert shell is None or ast.unparse(shell) == "False", f"a shell in {place}"


def all_models(root: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield root
    for field in root.model_fields.values():
        for model in models_of(field.annotation):
            yield from all_models(model)


@pytest.mark.parametrize("root", [RunConfig, RewardModelConfig])
def test_code_in_model_folders_is_off_unless_somebody_asks(root: type[BaseModel]) -> None:
    found = [model for model in all_models(root) if "trust_remote_code" in model.model_fields]
    assert found
    assert not any(model.model_fields["trust_remote_code"].default for model in found)
    recipes = (ROOT / "recipes").rglob("*.toml")
    assert not [path for path in recipes if "trust_remote_code" in path.read_text()]


def test_code_in_model_folders_is_asked_for_by_the_configuration_alone() -> None:
    for _, place, call in calls():
        for word in call.keywords:
            if word.arg == "trust_remote_code":
                assert ast.unparse(word.value) != "True", place


def test_weights_are_read_from_safetensors_alone() -> None:
    """Whoever loads weights with transformers, outside the makers of small models, says so."""
    for path, place, call in calls():
        if path.is_relative_to(ROOT / "tasks") or called(call) != "from_pretrained":
            continue
        given = {word.arg: ast.unparse(word.value) for word in call.keywords}
        loads = "dtype" in given or "Model" in ast.unparse(call.func)
        assert not loads or given.get("use_safetensors") == "True", place


def test_no_file_with_code_is_downloaded() -> None:
    assert FILES == ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]


# -- secrets ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (DATABASE, "postgresql+psycopg://headrace:***@db.example/runs"),
        ("postgresql+psycopg://a:b:c/d@host:5432/x", "postgresql+psycopg://a:***@host:5432/x"),
        ("postgresql+psycopg://host/x?user=a&password=b&port=1",
         "postgresql+psycopg://host/x?user=a&password=***&port=1"),
        ("postgresql+psycopg://a@host:5432/x", "postgresql+psycopg://a@host:5432/x"),
        ("postgresql+psycopg://host:5432/x", "postgresql+psycopg://host:5432/x"),
        ("postgresql+psycopg://a:b&c@host/x", "postgresql+psycopg://a:***@host/x"),
        ("postgresql+psycopg://me@corp:b@host/x", "postgresql+psycopg://me@corp:***@host/x"),
        ("postgresql+psycopg:///x?password=b@c&port=1",
         "postgresql+psycopg:///x?password=***&port=1"),
    ],
)  # fmt: skip
def test_passwords_are_masked(url: str, shown: str) -> None:
    assert mask_password(url) == shown


def with_password(config: RunConfig) -> RunConfig:
    storage = config.storage.model_copy(update={"database": DATABASE})
    return config.model_copy(update={"storage": storage})


def test_a_configuration_with_a_password_is_its_owners_alone(tmp_path: Path) -> None:
    config = endless().model_copy(update={"root": str(tmp_path)})
    before = os.umask(0o022)
    try:
        plain, private = map(run_folder.make_run_folder, (config, with_password(config)))
    finally:
        os.umask(before)
    assert (private / "resolved.json").stat().st_mode & 0o777 == 0o600
    assert (plain / "resolved.json").stat().st_mode & 0o044
    assert run_folder.read_config(private).storage.database == DATABASE


def test_a_recipe_is_shown_without_its_password(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = str(ROOT / "recipes" / "quickstart.toml")
    for form in ([], ["--json"]):
        assert main(["config", "show", recipe, *form, f"storage.database={DATABASE}"]) == 0
        shown = capsys.readouterr().out
        assert "hunter2" not in shown
        assert "headrace:***@db.example" in shown


async def test_other_processes_are_told_the_configuration_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    async with staged(endless(), tmp_path / "run") as stage:
        stage.hub.config = with_password(stage.hub.config)

        async def send(name: str, message: m.Message) -> bool:
            sent.append(message)
            return True

        monkeypatch.setattr(stage.hub.router, "send", send)
        stage.hub.peers.generators[GENERATOR].welcomed = 0.0
        hello = m.Hello(role="generator", name=GENERATOR, pid=1, host="here", capacity=8)
        await stage.say(GENERATOR, hello)
    (welcome,) = [message for message in sent if isinstance(message, m.Welcome)]
    assert "hunter2" not in welcome.config
    told = RunConfig.model_validate(json.loads(welcome.config))
    assert told.storage.database == mask_password(DATABASE)


def test_the_configuration_of_a_recipe_is_not_changed_by_masking() -> None:
    config = load_recipe(ROOT / "recipes" / "quickstart.toml")
    assert config.public() is config
