"""The command line as a user meets it: help, exit codes, one line for a mistake."""

import argparse
import contextlib
import errno
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from types import ModuleType

import pytest

from headrace.config.loading.recipe import load_recipe
from headrace.data.tokenizer import has_chat_template
from headrace.errors import UserError
from headrace.run_files import run_folder
from headrace_cli import command_table
from headrace_cli.cli import action, main, parse, parser
from headrace_cli.commands.run import generator
from headrace_cli.commands.run.generator import await_listener

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = [
    *("train", "launch", "generator", "stop", "eval", "dashboard", "runs", "show", "export"),
    *("replay", "sink", "config", "reward", "doctor", "sandbox", "keys", "bench"),
]


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The program in a process of its own."""
    command = [sys.executable, "-m", "headrace_cli.cli", *arguments]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a mistake prints."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    return captured.err


def test_help_teaches_and_is_light() -> None:
    code = (
        "import sys\nfrom headrace_cli.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print(*[name for name in ('torch', 'vllm', 'streamlit', 'pydantic', 'zmq', 'sqlalchemy',"
        " 'rich', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    *text, modules = done.stdout.splitlines()
    assert modules == ""
    for command in COMMANDS:
        assert any(line.strip().startswith(command) for line in text)
    assert "headrace train recipes/quickstart.toml" in done.stdout


def test_every_option_says_what_it_is() -> None:
    silent, left = [], [parser()]
    while left:
        one = left.pop()
        for option in one._actions:
            if isinstance(option, argparse._SubParsersAction):
                left += option.choices.values()
            elif not option.help:
                silent.append(f"{one.prog} {option.dest}")
    assert silent == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    assert f"headrace {command}" in capsys.readouterr().out


def leaves(one: argparse.ArgumentParser, words: str = "") -> Iterator[str]:
    """The words of every command below a parser."""
    inner = [each for each in one._actions if isinstance(each, argparse._SubParsersAction)]
    if not inner:
        yield words.strip()
    for choices in inner:
        for name, made in choices.choices.items():
            yield from leaves(made, f"{words} {name}")


def test_every_command_has_a_function() -> None:
    functions = {words for words, spec in command_table.COMMANDS.items() if spec.function}
    assert set(leaves(parser())) == functions
    found = []
    for words in functions:
        command, _, word = words.partition(" ")
        found.append(action(argparse.Namespace(command=command, action=word or None)))
    assert all(signature(function).return_annotation is int for function in found)
    names = {(function.__module__, function.__qualname__) for function in found}
    assert len(names) == len(functions)


def test_a_package_that_is_missing_is_one_line(
    recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_dir = run_folder.make_run_folder(load_recipe(recipe, [f'root="{tmp_path}/runs"']))
    monkeypatch.setitem(sys.modules, "storage.queries", None)  # as if it were not there
    line = fails(capsys, "show", str(run_dir))
    assert "storage.queries is not installed; run `headrace doctor`" in line


def test_a_third_party_that_is_missing_is_no_mistake_of_the_user(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(run_dir: Path) -> None:
        raise ModuleNotFoundError("No module named 'sqlalchemy'", name="sqlalchemy")

    run_dir = run_folder.make_run_folder(load_recipe(recipe, [f'root="{tmp_path}/runs"']))
    monkeypatch.setattr("storage.queries.run_summary", broken)
    with pytest.raises(ModuleNotFoundError, match="sqlalchemy"):
        main(["show", str(run_dir)])


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_file_that_may_not_be_touched_is_one_line(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], number: int,
) -> None:  # fmt: skip
    def refused(run_dir: Path) -> None:
        raise OSError(number, os.strerror(number), "/theirs/labels.jsonl.part")

    run_dir = run_folder.make_run_folder(load_recipe(recipe, [f'root="{tmp_path}/runs"']))
    monkeypatch.setattr("storage.queries.run_summary", refused)
    line = fails(capsys, "show", str(run_dir))
    assert line == f"error: /theirs/labels.jsonl.part: {os.strerror(number)}\n"


def test_a_disk_without_room_is_one_line(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """As where a run that the disk ended is resumed before there is room: a write names no file."""

    def full(run_dir: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    run_dir = run_folder.make_run_folder(load_recipe(recipe, [f'root="{tmp_path}/runs"']))
    monkeypatch.setattr("storage.queries.run_summary", full)
    assert main(["show", str(run_dir)]) == 1
    assert capsys.readouterr().err == f"error: {os.strerror(errno.ENOSPC)}\n"


def test_overrides_stand_anywhere() -> None:
    found = parse(["train", "r.toml", "a.b=1", "--plain", "c=2", "--root", "x", "d=3"])
    assert found.recipe == "r.toml"
    assert found.overrides == ["a.b=1", "c=2", "d=3"]
    assert found.plain
    assert found.root == Path("x")


@pytest.mark.parametrize(
    "arguments",
    [["trian"], ["train", "r.toml", "--plan-b"], ["doctor", "a=1"], ["export"], ["config"]],
)
def test_a_wrong_word_is_exit_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_mistakes_in_a_recipe_leave_nothing_behind(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    for override, expected in (
        ("learner.polcy.lr=1", "unknown key"),
        ("schedule.window=100", "does not divide"),
        ("model.path=/nowhere", "no such model folder"),
        ("generator.kv_cache_gib=100000", "not enough memory"),
    ):
        real = ["generator.engine=vllm", "--root", str(runs)]
        line = fails(capsys, "train", str(recipe), override, *real)
        assert expected in line
    assert "no recipe" in fails(capsys, "train", str(tmp_path / "none.toml"))
    assert "name a recipe" in fails(capsys, "train")
    assert not runs.exists()


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("verl", "needs `data_source`, which no column of the task gives (it has terms)"),
        ("stranger", "takes (question, output), and none of these is the response"),
        ("needs_level", "needs `level`, which no column of the task gives (it has terms)"),
        ("nothing", "has no function 'nothing'"),
    ],
)
def test_a_reward_function_is_looked_at_before_anything_starts(
    recipe: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], function: str, expected: str
) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(
        "def verl(data_source, solution_str, ground_truth, extra_info=None): return 0.0\n"
        "def stranger(question, output): return 0.0\n"
        "def needs_level(prompt, completion, answer, level): return 0.0\n"
    )
    runs = tmp_path / "runs"
    overrides = ["reward.kind=function", f"reward.function={mine}:{function}"]
    assert main(["train", str(recipe), *overrides, "--root", str(runs)]) == 2
    line = capfd.readouterr().err
    assert line.startswith(f"error: reward.function='{mine}:{function}'")
    assert line.count("\n") == 1
    assert expected in line
    assert not runs.exists()
    assert main(["config", "check", str(recipe), *overrides]) == 2
    assert expected in capfd.readouterr().out


def test_a_reward_function_that_cannot_be_imported_is_one_line(
    recipe: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("import os\nraise RuntimeError('no such luck')\n")
    overrides = ["reward.kind=function", f"reward.function={mine}:score"]
    assert main(["train", str(recipe), *overrides, "--root", str(tmp_path / "runs")]) == 2
    line = capfd.readouterr().err
    told = "RuntimeError: no such luck (mine.py, line 2)"
    assert line == f"error: reward.function='{mine}:score': {told}\n"
    mine.write_text("raise RuntimeError('\\x1b[2J')\n")
    assert main(["config", "check", str(recipe), *overrides]) == 2
    assert "RuntimeError: \\x1b[2J (mine.py, line 1)\n" in capfd.readouterr().out


def test_no_traceback_and_exit_code_2_from_the_program(recipe: Path) -> None:
    done = call("train", str(recipe), "schedule.windw=60")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "error: override 'schedule.windw=60': unknown key schedule.windw; did you mean "
        "schedule.window?\n"
    )


def test_config_commands(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", str(recipe)]) == 0
    assert "schedule.window = 60\n" in capsys.readouterr().out
    assert main(["config", "show", str(recipe), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schedule"]["window"] == 60
    assert main(["config", "check", str(recipe)]) == 0
    assert "nothing wrong" in capsys.readouterr().out
    wrong = ["schedule.window=100", "learner.offload_optimizer=true", "model.path=/nowhere"]
    assert main(["config", "check", str(recipe), *wrong, "--json"]) == 2
    assert len(json.loads(capsys.readouterr().out)["problems"]) == 3
    assert main(["config", "explain", str(recipe)]) == 0
    text = capsys.readouterr().out
    assert "tokens per update" in text
    assert "generators.run --connect" in text
    assert main(["config", "explain", str(recipe), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)["facts"]
    assert facts["tokens per update"] == 8 * 60
    assert facts["memory"] > 0


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.toml")), ids=lambda p: p.stem)
def test_recipes_load_and_keep_the_rules(path: Path) -> None:
    from headrace.config.preflight.checks import problems

    assert problems(load_recipe(path)) == []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        assert len(line) <= 110, f"{path.name}:{number}"


def test_unknown_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["show", "r1"], ["stop", "r1"], ["train", "--resume", "r1"]):
        assert "no run 'r1'" in fails(capsys, *command, "--root", str(tmp_path))
    out = str(tmp_path / "out.parquet")
    line = fails(capsys, "export", "latest", "tokens", "--out", out, "--root", str(tmp_path))
    assert "no run 'latest'" in line
    assert main(["runs", "--root", str(tmp_path)]) == 0
    assert "no runs" in capsys.readouterr().out


def test_an_export_target_that_exists_is_kept(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = load_recipe(recipe, [f'root="{tmp_path}/runs"'])
    run_dir = run_folder.make_run_folder(config)
    target = tmp_path / "out.jsonl"
    target.write_text("mine")
    line = fails(capsys, "export", str(run_dir), "metrics", "--out", str(target))
    assert "--force replaces it" in line
    assert target.read_text() == "mine"


def test_a_run_that_is_not_going_on_cannot_be_stopped(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = load_recipe(recipe, [f'root="{tmp_path}/runs"'])
    run_dir = run_folder.make_run_folder(config)
    assert "is not running" in fails(capsys, "stop", str(run_dir))


def test_a_resumed_run_changes_only_where_it_may(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = load_recipe(recipe, [f'root="{tmp_path}/runs"'])
    run_dir = run_folder.make_run_folder(config)
    resume = ["train", "--resume", str(run_dir)]
    assert "task.max_terms cannot change" in fails(capsys, *resume, "task.max_terms=5")
    assert "give only overrides" in fails(capsys, *resume, "recipe.toml")
    assert "evaluation.only cannot change" in fails(capsys, *resume, "evaluation.only=true")
    with run_folder.locked(run_dir):
        assert "is still going on" in fails(capsys, *resume, "stop.updates=9")
    assert run_folder.read_config(run_dir) == config


def test_joining_from_outside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "tcp://HOST:PORT" in fails(capsys, "generator", "--connect", "here")
    missing = ["--curve-keys", str(tmp_path / "none")]
    connect = ["generator", "--connect", "tcp://127.0.0.1:1"]
    assert "no such folder" in fails(capsys, *connect, *missing)
    folder = tmp_path / "keys"
    assert main(["keys", str(folder)]) == 0
    assert "headrace generator --connect" in capsys.readouterr().out
    assert (folder / "client.key_secret").stat().st_mode & 0o777 == 0o600
    assert "already holds keys" in fails(capsys, "keys", str(folder))


def test_a_generator_for_nobody_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        await_listener(f"tcp://127.0.0.1:{port}")
    with pytest.raises(UserError, match=rf"no run listens at tcp://127\.0\.0\.1:{port} "):
        await_listener(f"tcp://127.0.0.1:{port}", patience_s=0.0)
    with pytest.raises(UserError, match=r"no run listens at tcp://127\.0\.0\.1:99999 "):
        await_listener("tcp://127.0.0.1:99999", patience_s=0.0)


def test_who_joins_nobody_hears_it_at_once_and_waits_for_a_run_that_comes() -> None:
    """It tries less and less often, and is there when somebody listens at last."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        told: list[str] = []

        def begin(text: str) -> None:
            told.append(text)
            server.listen()

        await_listener(f"tcp://127.0.0.1:{port}", tell=begin)
    (text,) = told
    assert text.startswith(f"no run listens at tcp://127.0.0.1:{port} yet (")


def test_who_joins_somebody_that_does_not_even_refuse_hears_it_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As behind a firewall: nothing comes back from the address."""
    monkeypatch.setattr(generator, "_ATTEMPT_S", 0.1)
    told: list[str] = []
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):  # Nobody accepts them, and further ones are dropped.
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(UserError, match=r"no run listens at .* \(timed out\)"):
            await_listener(address, patience_s=1.0, tell=told.append)
    (text,) = told
    assert "yet (timed out): trying for" in text


def test_keys_into_a_bad_path_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    for path in ("file", "file/keys"):
        assert "cannot write keys into" in fails(capsys, "keys", str(tmp_path / path))


def test_a_page_that_cannot_be_served_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for port in ("99999", "-1"):
        line = fails(capsys, "dashboard", str(tmp_path), "--port", port)
        assert f"--port {port}: ports go from 1 to 65535" in line
    line = fails(capsys, "dashboard", "--root", str(tmp_path / "none"))
    assert f"no folder of runs at {tmp_path / 'none'}" in line
    (run := tmp_path / "run").mkdir()
    (run / "resolved.json").write_text("{}")
    assert f"no folder of runs at {run}" in fails(capsys, "dashboard", str(run))
    line = fails(capsys, "dashboard", str(tmp_path), "--host", "192.0.2.1")
    assert "192.0.2.1: no address of this machine" in line


def test_a_page_takes_the_next_free_port_and_says_so(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        page = ["dashboard.enabled=true", f"dashboard.port={taken}"]
        assert main(["config", "show", str(recipe), *page, "--json"]) == 0
    said = capsys.readouterr()
    port = json.loads(said.out)["dashboard"]["port"]
    assert taken < port <= 65535
    assert f"port {taken} is in use: the page is at port {port}" in said.err


def test_what_a_run_needs_is_looked_at_before_it_begins(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`config check` and `train` say the same, and no folder is left."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        "".join(
            json.dumps({"messages": [{"role": "user", "content": f"{i}?"}], "answer": "1"}) + "\n"
            for i in range(20)
        )
    )
    torn = tmp_path / "torn.jsonl"
    torn.write_text('{"prompt": "1?", "answer": "1"}\n{"prompt": "2?"}\n')
    text = recipe.read_text().replace('kind = "chain_sums"', 'kind = "dataset"')
    chat, missing = tmp_path / "chat.toml", tmp_path / "missing.toml"
    chat.write_text(text.replace("[task]", f'[task]\npath = "{rows}"'))
    missing.write_text(text.replace("[task]", f'[task]\npath = "{torn}"'))
    runs = tmp_path / "runs"
    for file, overrides, expected in (
        (chat, [], "its tokenizer has no chat template, but row rows.jsonl:"),
        (recipe, ["model.chat_template=always"], "model.chat_template is 'always'"),
        (missing, [], "torn.jsonl, row 2: no answer"),
        (recipe, ["generator.cpus=[99]"], "generator.cpus = [99], but this machine offers"),
        (recipe, ["storage.database=mysql://h/d"], "mysql is not supported"),
        (
            recipe,
            ["storage.database=postgresql://nobody@127.0.0.1:1/none"],
            "cannot reach postgresql://nobody@127.0.0.1:1/none",
        ),
        (
            recipe,
            ["storage.database=postgresql://nobody@127.0.0.1:1/none?ssl=true"],
            "cannot reach postgresql://nobody@127.0.0.1:1/none?ssl=true: invalid connection",
        ),
        (
            recipe,
            ["storage.database=postgresql://nobody:p@ss:word@127.0.0.1/none"],
            "storage.database is not a database URL",
        ),
    ):
        line = fails(capsys, "train", str(file), *overrides, "--root", str(runs))
        assert expected in line
        assert main(["config", "check", str(file), *overrides]) == 2
        assert expected in capsys.readouterr().out
    job = fails(capsys, "launch", str(missing), "--on", "slurm", "--root", str(runs))
    assert "torn.jsonl, row 2: no answer" in job, "not in the job, hours later"
    assert not runs.exists()


def test_a_chat_template_may_stand_in_any_of_its_files(tmp_path: Path) -> None:
    assert not has_chat_template(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": null}')
    assert not has_chat_template(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    assert has_chat_template(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert has_chat_template(tmp_path)


def test_benchmarks_are_named_with_hyphens_or_underscores(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["bench"]) == 0
    about = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert "against raw vLLM" in about["whole-path"]
    assert about["learner"].endswith("in loss tokens per second.")
    assert not any("_" in name for name in about)
    called: list[list[str]] = []

    def benchmark(options: list[str]) -> int:
        called.append(options)
        return 0

    stand_in = ModuleType("benchmarks.performance.whole_path")
    stand_in.main = benchmark  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, stand_in.__name__, stand_in)
    assert main(["bench", "whole-path", "--json"]) == 0
    assert main(["bench", "whole_path", "--json"]) == 0
    assert called == [["--json"]] * 2


def test_other_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no folder of runs" in fails(capsys, "dashboard", str(tmp_path / "none"))
    assert "no benchmark 'nothing'" in fails(capsys, "bench", "nothing")
    for model in ("/nowhere/at/all", "~nobody-of-this-name/model"):
        assert "no model folder" in fails(capsys, "eval", model, "--task", "r.toml")
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == "0.1.0"
