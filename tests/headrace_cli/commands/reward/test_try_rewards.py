"""`headrace reward try` as a user calls it, with the children of a run."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from headrace.data.media import data_url
from headrace_cli.cli import main
from tasks.procedural.shapes import DESCRIBE, draw
from tests.dashboard.scripted_run import write_tokenizer

FUNCTIONS = """\
import time

def score(completion, answer, level=1):
    if completion == "hang":
        time.sleep(3600)
    if completion == "fail":
        raise RuntimeError("no such luck")
    if completion == "none":
        return None
    return {"score": float(completion == answer), "level": level}

def says(completion):
    raise ValueError(completion)

def needs(completion, mood):
    return 1.0

def chat(prompts, completions, **columns):
    return [float(p[0]["role"] == "user" and c[0]["content"] == "7")
            for p, c in zip(prompts, completions)]

def ids(completion_ids, **kwargs):
    return [float(sum(ids)) for ids in completion_ids]
"""


def write(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def tried(
    capfd: pytest.CaptureFixture[str], recipe: Path, file: str, *overrides: str
) -> list[dict[str, Any]]:
    assert main(["reward", "try", str(recipe), file, *overrides, "--json"]) == 0
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


@pytest.fixture
def functions(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(FUNCTIONS)
    return path


def named(functions: Path, name: str = "score") -> tuple[str, ...]:
    return ("reward.kind=function", f"reward.function={functions}:{name}", "reward.timeout_s=1")


def test_every_answer_has_a_line_in_the_order_of_the_file(
    recipe: Path, tmp_path: Path, functions: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    texts = ("7", "hang", "fail", "none", "8", "7")
    rows = [{"prompt": "3+4", "completion": text, "answer": "7", "level": 2} for text in texts]
    lines = tried(capfd, recipe, write(tmp_path / "a.jsonl", *rows), *named(functions))
    assert [line["index"] for line in lines] == list(range(6))
    assert [line["status"] for line in lines] == [
        "ok", "timeout", "crashed", "invalid", "ok", "ok",
    ]  # fmt: skip
    assert [line["score"] for line in lines] == [1.0, None, None, None, 0.0, 1.0]
    assert [line["correct"] for line in lines] == [True, None, None, None, False, True]
    assert {line["source"] for line in lines} == {"default"}
    assert lines[0]["parts"] == {"level": 2.0}
    assert "no result within 1 s" in lines[1]["error"]
    assert lines[2]["error"] == "RuntimeError: no such luck (mine.py, line 7)"
    assert set(lines[0]) == {
        "index", "source", "status", "score", "correct", "parts", "seconds", "error",
    }  # fmt: skip


def test_people_see_a_table_and_a_summary(
    recipe: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = write(
        tmp_path / "a.jsonl",
        {"completion": "so #7", "answer": "7"},
        {"completion": "so #8", "answer": "7"},
        {"completion": "so #7", "answer": "7", "finished": False},
        {"completion": "so #7"},
    )
    assert main(["reward", "try", str(recipe), file, "reward.answer_marker='#'"]) == 0
    text = capfd.readouterr().out
    assert "answers   4 (3 ok, 1 crashed)" in text
    assert "correct   1 of 3" in text
    assert "the right answer is empty" in text


def test_an_error_with_a_models_words_moves_no_cursor(
    recipe: Path, tmp_path: Path, functions: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "a.jsonl", {"completion": "clear \x1b[2Jit", "answer": "7"})
    assert main(["reward", "try", str(recipe), file, *named(functions, "says")]) == 0
    text = capfd.readouterr().out
    assert "ValueError: clear \\x1b[2Jit" in text
    assert "\x1b" not in text


def test_a_chat_is_handed_over_as_messages(
    recipe: Path, tmp_path: Path, functions: Path, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(
        "headrace_cli.commands.reward.answers.policy_tokenizer", lambda config: Tokenizer()
    )
    row = {
        "messages": [{"role": "user", "content": "3+4"}],
        "completion": [{"role": "assistant", "content": "7"}],
    }
    file = write(tmp_path / "a.jsonl", row)
    assert tried(capfd, recipe, file, *named(functions, "chat"))[0]["score"] == 1.0
    # Its tokens are those of the text, where the file has none.
    assert tried(capfd, recipe, file, *named(functions, "ids"))[0]["score"] == 1.0
    file = write(tmp_path / "b.jsonl", {**row, "prompt_ids": [1], "completion_ids": [3, 4]})
    assert tried(capfd, recipe, file, *named(functions, "ids"))[0]["score"] == 7.0


def test_a_chat_without_a_template_is_told(
    recipe: Path, tmp_path: Path, functions: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    policy = tmp_path / "policy"
    write_tokenizer(policy)
    (policy / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    row = {"prompt": [{"role": "user", "content": "3+4"}], "completion": "7", "answer": "7"}
    overrides = [f"model.path={policy}", *named(functions)]
    file = write(tmp_path / "a.jsonl", row)
    assert main(["reward", "try", str(recipe), file, *overrides]) == 2
    line = capfd.readouterr().err.splitlines()[-1]
    assert line.startswith("error: answer 0: its prompt is a chat: ")
    (policy / "chat_template.jinja").write_text("{{ raise_exception('no system role') }}")
    assert main(["reward", "try", str(recipe), file, *overrides]) == 2
    assert "takes no such chat: no system role" in capfd.readouterr().err.splitlines()[-1]


class Tokenizer:
    """What is used of a tokenizer."""

    chat_template = "as it is"

    def apply_chat_template(self, prompt: Any, **settings: bool) -> str:
        return str(prompt[0]["content"])

    def __call__(self, text: str, *, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": [1] * len(text)}


def test_an_export_is_such_a_file(
    recipe: Path, tmp_path: Path, functions: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its columns are JSON as text in `info`; its `status` says which answers ended."""
    row = {"prompt": "3+4", "response": "7", "answer": "7", "info": '{"level": 3}'}
    cut = [{**row, "status": status} for status in ("finished", "truncated", "aborted")]
    lines = tried(capfd, recipe, write(tmp_path / "a.jsonl", row, *cut), *named(functions))
    assert lines[0]["parts"] == {"level": 3.0}
    assert [line["score"] for line in lines] == [1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("row", "name", "message"),
    [
        ({"prompt": "p", "answer": "1"}, "score", "row 1: no completion"),
        ({"completion": 3}, "score", "neither text nor a list of messages"),
        ({"completion": "7", "completion_ids": "7"}, "score", "token ids are a list"),
        ({"completion": "7"}, "needs", "needs `mood`"),
        ({"completion": "7"}, "nothing", "has no function 'nothing'"),
    ],
)
def test_mistakes_are_one_line(
    recipe: Path, tmp_path: Path, functions: Path, capfd: pytest.CaptureFixture[str],
    row: dict[str, Any], name: str, message: str,
) -> None:  # fmt: skip
    file = write(tmp_path / "a.jsonl", row)
    assert main(["reward", "try", str(recipe), file, *named(functions, name)]) == 2
    line = capfd.readouterr().err
    assert message in line
    assert line.count("\n") == 1


def test_a_recipe_whose_reward_is_wrong_is_told(
    recipe: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "a.jsonl", {"completion": "7"})
    assert main(["reward", "try", str(recipe), file, "reward.kind=function"]) == 2
    assert "reward.function: goes together" in capfd.readouterr().err


def test_each_answer_goes_to_its_source(
    recipe: Path, tmp_path: Path, functions: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = (
        recipe.read_text()
        + f"""
[reward.sources.sums]
kind = "exact"
[reward.sources.mine]
kind = "function"
function = "{functions}:score"
timeout_s = 1
[reward.route]
column = "of"
values = {{ sums = "sums" }}
default = "mine"
"""
    )
    recipe.write_text(text)
    rows = [
        {"completion": "7", "answer": "7", "of": "sums"},
        {"completion": "hang", "answer": "7", "of": "other"},
        {"completion": "8", "answer": "7", "of": "sums"},
        {"completion": "7", "answer": "7"},
    ]
    lines = tried(capfd, recipe, write(tmp_path / "a.jsonl", *rows))
    assert [(line["source"], line["status"], line["score"]) for line in lines] == [
        ("sums", "ok", 1.0), ("mine", "timeout", None), ("sums", "ok", 0.0), ("mine", "ok", 1.0),
    ]  # fmt: skip


def test_answers_to_prompts_with_images(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """An image as a part of a message, in a column, and as a data URL, in one file: sources that
    read no image and one whose model sees it."""
    file = tmp_path / "scene.png"
    file.write_bytes(draw({"red": (0, 0, 2, 2)}))

    def forms(text: str) -> list[dict[str, Any]]:
        parts = [
            [{"type": "image", "image": image}, {"type": "text", "text": text}]
            for image in (file.name, data_url(file.read_bytes()))
        ]
        asked = [{"prompt": [{"role": "user", "content": part}]} for part in parts]
        return [*asked, {"prompt": f"<image>{text}", "images": [file.name]}]

    box = {"completion": "1,1,3,3", "answer": "0,0,2,2", "question": "box"}
    said = {"answer": "", "question": "describe"}
    rows = [{**asked, **box} for asked in forms("box red")]
    for asked in forms(DESCRIBE):
        rows += [{**asked, **said, "completion": caption} for caption in ("rnw", "bse")]
    answers = write(tmp_path / "a.jsonl", *rows)
    lines = tried(capfd, write_recipe(tmp_path), answers)
    assert [line["source"] for line in lines] == ["box"] * 3 + ["captions"] * 6
    assert [line["score"] for line in lines[:3]] == pytest.approx([1 / 7] * 3)
    assert all(line["status"] == "ok" for line in lines)
    seen = [line["score"] for line in lines[3::2]]
    unseen = [line["score"] for line in lines[4::2]]
    assert seen == pytest.approx([seen[0]] * 3)
    assert all(0.0 < other < score for score, other in zip(seen, unseen, strict=True))
    file.unlink()
    assert main(["reward", "try", str(write_recipe(tmp_path)), answers]) == 2
    assert "answer 0: image " in capfd.readouterr().err


def write_recipe(folder: Path) -> Path:
    """One that needs no more of its policy than a tokenizer with a chat template."""
    write_tokenizer(folder / "policy")
    (folder / "policy" / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    template = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
    (folder / "policy" / "chat_template.jinja").write_text(template)
    recipe = Path(__file__).parents[4] / "recipes" / "shapes.toml"
    path = folder / "recipe.toml"
    text = recipe.read_text().replace("models/shapes-cold", str(folder / "policy"))
    captions = recipe.with_name("models") / "shapes-captions"
    path.write_text(text.replace("models/shapes-captions", str(captions)))
    return path


def test_no_page_is_announced(
    recipe: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A run beside it has the port of its page."""
    file = write(tmp_path / "a.jsonl", {"completion": "7", "answer": "7"})
    with socket.create_server(("127.0.0.1", 0)) as server:
        page = ("dashboard.enabled=true", f"dashboard.port={server.getsockname()[1]}")
        assert main(["reward", "try", str(recipe), file, *page]) == 0
    assert "the page is at port" not in capfd.readouterr().err
