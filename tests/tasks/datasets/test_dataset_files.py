"""Dataset files as the field writes them, and what the user reads when one is wrong."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.errors import UserError
from tasks.datasets.answers import read_answers
from tasks.datasets.dataset_files import read_dataset
from tasks.rows import TaskRow

GSM8K_ROW = {"id": "gsm8k/train/0", "prompt": "48 and half as many?", "answer": "72", "level": 1}


def write_jsonl(path: Path, records: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return str(path)


def test_jsonl(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [GSM8K_ROW])
    assert read_dataset(path) == [
        TaskRow("gsm8k/train/0", "48 and half as many?", "72", {"answer": "72", "level": 1}),
    ]


def test_gzipped_jsonl(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8") as stream:
        stream.write(json.dumps(GSM8K_ROW) + "\n\n")
    assert [row.answer for row in read_dataset(str(path))] == ["72"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_a_mark_at_the_beginning_of_a_file_is_no_text(tmp_path: Path, name: str) -> None:
    path, text = tmp_path / name, json.dumps(GSM8K_ROW)
    path.write_text(f"[{text}]" if name == "a.json" else text, encoding="utf-8-sig")
    assert [row.answer for row in read_dataset(str(path))] == ["72"]


def test_parquet_of_verl_is_read_unchanged(tmp_path: Path) -> None:
    record = {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": "1 + 1?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "extra_info": {"split": "train", "index": 0, "answer": "1 + 1 = 2 #### 2"},
    }
    path = tmp_path / "train.parquet"
    pq.write_table(pa.Table.from_pylist([record]), path)
    (row,) = read_dataset(str(path))
    assert row.prompt == [{"role": "user", "content": "1 + 1?"}]
    assert row.answer == "2"
    assert row.id == "train.parquet:1"
    assert row.info == {key: value for key, value in record.items() if key != "prompt"}


@pytest.mark.parametrize(
    "key", ["answer", "ground_truth", "final_answer", "expected_answer", "solution", "label"]
)
def test_answer_aliases(tmp_path: Path, key: str) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"prompt": "p", key: "x"}])
    assert read_dataset(path)[0].answer == "x"


def test_answer_comes_before_solution(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"prompt": "p", "solution": "long", "answer": "x"}])
    assert read_dataset(path)[0] == TaskRow(
        "a.jsonl:1", "p", "x", {"solution": "long", "answer": "x"}
    )


def test_named_keys_reach_into_columns(tmp_path: Path) -> None:
    record = {"q": {"text": "p"}, "prompt": "not this", "gold": 7}
    path = write_jsonl(tmp_path / "a.jsonl", [record])
    (row,) = read_dataset(path, prompt_key="q.text", answer_key="gold")
    assert (row.prompt, row.answer) == ("p", "7")


def test_zero_and_false_are_answers(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [{"prompt": "p", "answer": value} for value in (0, False)]
    path = write_jsonl(tmp_path / "a.jsonl", records)
    assert [row.answer for row in read_dataset(path)] == ["0", "false"]


def test_template_wraps_text_and_the_last_user_message(tmp_path: Path) -> None:
    chat = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
    ]
    path = write_jsonl(
        tmp_path / "a.jsonl",
        [{"prompt": "{p}", "answer": "1"}, {"prompt": chat, "answer": "1"}],
    )
    text, messages = read_dataset(path, prompt_template="{prompt}\nUse \\boxed{{}}")
    assert text.prompt == "{p}\nUse \\boxed{}"
    assert messages.prompt == [chat[0], {"role": "user", "content": "u\nUse \\boxed{}"}]


def test_glob_and_limit(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write_jsonl(
            tmp_path / f"train-{name}.jsonl",
            [{"prompt": f"{name}{i}", "answer": "1"} for i in range(3)],
        )
    rows = read_dataset(str(tmp_path / "train-*.jsonl"), limit=4)
    assert [row.prompt for row in rows] == ["a0", "a1", "a2", "b0"]


def test_rows_without_answers_where_no_reward_reads_one(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", [{"prompt": "p"}, {"prompt": "q", "answer": "1"}])
    rows = read_dataset(str(tmp_path / "a.jsonl"), answer_key="")
    assert [(row.prompt, row.answer) for row in rows] == [("p", ""), ("q", "")]


def test_finished_answers_without_answers_where_no_reward_reads_one(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", [{"prompt": "p", "completion": "c", "answer": "1"}])
    path = str(tmp_path / "a.jsonl")
    assert [row.answer for row in read_answers(path)] == ["1"]
    assert [row.answer for row in read_answers(path, answer_key="")] == [""]


def test_finished_answers_of_an_export_have_its_names_whatever_the_data_set_calls_them(
    tmp_path: Path,
) -> None:
    own = {"q": "p", "prompt": "not this", "gold": "1", "answer": "nor this", "completion": "c"}
    exported = {"prompt": "p", "answer": "1", "response": "c", "info": '{"level": 2}'}
    path = write_jsonl(tmp_path / "a.jsonl", [own, exported])
    found = read_answers(path, prompt_key="q", answer_key="gold")
    assert [(row.prompt, row.answer) for row in found] == [("p", "1"), ("p", "1")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"prompt": "p", "answer": "1"}\n\n{"prompt": "p"}\n', r"a\.jsonl, row 3: no answer"),
        ('{"answer": "1"}\n', r"row 1: no prompt \(looked for prompt, question"),
        ('{"prompt": "", "answer": "1"}\n', "row 1: no prompt"),
        ('{"prompt": "p", "answer": null}\n', r'row 1: no answer .* \("": rows have none\)'),
        ('{"prompt": [], "answer": "1"}\n', "row 1: no prompt"),
        ('{"instruction": "Add.", "input": "7+5", "answer": "12"}\n', "row 1: write instruction"),
        (
            '{"prompt": [{"role": "user"}], "answer": "1"}\n',
            "row 1: a message of the prompt has no",
        ),
        ('{"prompt": 3, "answer": "1"}\n', "row 1: the prompt is neither"),
        ('{"prompt": "p", "answer": "1"}\n{"prompt"\n', "row 2: not JSON"),
        ("[1]\n", "row 1: expected a JSON object"),
        ("", "has no rows: name a file"),
    ],
)
def test_bad_rows_name_file_and_row(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        read_dataset(str(path))


def test_bad_files(tmp_path: Path) -> None:
    for path in (str(tmp_path / "none.jsonl"), "~nobody-of-this-name/none.jsonl"):
        with pytest.raises(UserError, match="does not exist"):
            read_dataset(path)
    with pytest.raises(UserError, match="is a folder"):
        read_dataset(str(tmp_path))
    for name, message in [
        ("a.csv", "expected a name ending in"),
        ("a.parquet", "not a Parquet file"),
        ("a.jsonl.gz", "cannot be read"),
        ("a.jsonl", "cannot be read"),
    ]:
        (tmp_path / name).write_bytes(b"\xff\xfe not what the name says")
        with pytest.raises(UserError, match=message):
            read_dataset(str(tmp_path / name))


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_a_number_of_thousands_of_digits_and_endless_brackets_are_told(
    tmp_path: Path, name: str
) -> None:
    for answer in ("7" * 5000, "[" * 100_000):
        (tmp_path / name).write_text('{"prompt": "p", "answer": ' + answer + "}\n")
        with pytest.raises(UserError, match="row 1: not JSON"):
            read_dataset(str(tmp_path / name))
        (tmp_path / name).write_text('[{"prompt": "p", "answer": ' + answer + "}]\n")
        with pytest.raises(UserError, match=r"not JSON|cannot be read"):
            read_dataset(str(tmp_path / name))


def test_parquet_text_that_is_no_utf8_is_told(tmp_path: Path) -> None:
    words = pa.array([b"\xff"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"prompt": words, "answer": ["1"]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match="not a Parquet file that can be read"):
        read_dataset(str(tmp_path / "a.parquet"))


@pytest.mark.parametrize(
    "template",
    [
        "no field", "{question}", "{prompt} \\boxed{}", "{prompt", "{prompt.text}",
        "{prompt[text]}", "{prompt[0]}",
    ],
)  # fmt: skip
def test_bad_templates(tmp_path: Path, template: str) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [GSM8K_ROW])
    with pytest.raises(UserError, match="prompt_template"):
        read_dataset(path, prompt_template=template)


def test_an_id_that_no_index_takes_is_the_place_of_its_row(tmp_path: Path) -> None:
    """PostgreSQL refuses to index a text of 2,700 bytes, and SQL would stay behind the journal."""
    rows = [GSM8K_ROW | {"id": name} for name in ("é" * 500, "é" * 501)]
    found = read_dataset(write_jsonl(tmp_path / "a.jsonl", rows))
    assert [row.id for row in found] == ["é" * 500, "a.jsonl:2"]


@pytest.mark.parametrize("column", ["prompt", "answer", "id"])
def test_half_a_character_is_told_with_its_row(tmp_path: Path, column: str) -> None:
    path = tmp_path / "a.jsonl"
    row = {"id": "1", "prompt": "hi", "answer": "x"} | {column: "\ud83d"}
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(UserError, match=r"row 1: half a character"):
        read_dataset(str(path))


@pytest.mark.parametrize("column", ["prompt", "answer", "completion"])
def test_half_a_character_of_a_finished_answer_is_told_with_its_row(
    tmp_path: Path, column: str
) -> None:
    row = {"prompt": "hi", "completion": "so x", "answer": "x"} | {column: "\ud83d"}
    path = write_jsonl(tmp_path / "a.jsonl", [row])
    with pytest.raises(UserError, match=r"row 1: half a character"):
        read_answers(path)


def test_a_damaged_archive_is_told(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(b'{"prompt": "a", "answer": "b"}\n' * 5000))
    packed[30:60] = bytes(30)
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(packed)
    with pytest.raises(UserError, match="cannot be read"):
        read_dataset(str(path))
