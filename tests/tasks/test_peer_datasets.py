"""Files of other systems are read as they are: tiny ones in the schema of each."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.data.media import data_url
from headrace.errors import UserError
from headrace_cli.commands.data.prompt_scores import _record
from tasks.datasets.dataset_files import read_dataset
from tasks.rows import TaskRow, files_of, images_in, other_than_text, prompt_hash, with_images

USER = {"role": "user", "content": "1 + 1?"}
PNG: dict[str, Any] = {"bytes": b"\x89PNG", "path": "a.png"}


def write(path: Path, records: list[Any]) -> str:
    """A file of the kind that its name says."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(records, indent=1))
    else:
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


PEERS: dict[str, tuple[str, Any]] = {
    "trl": ("a.parquet", {"prompt": [USER], "solution": "2", "task": "math"}),
    "verl": (
        "a.parquet",
        {
            "data_source": "sums", "prompt": [USER], "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": "2"}, "extra_info": {"index": 0},
        },
    ),
    "openrlhf": ("a.jsonl", {"input": "1 + 1?", "label": "2"}),
    "openrlhf, a list": ("a.json", {"context_messages": [USER], "label": "2"}),
    "areal": ("a.jsonl", {"messages": [USER], "answer": "2"}),
    "areal, boba": (
        "a.jsonl", {"prompt": "1 + 1?", "task": "math", "query_id": "x", "solutions": ["2"]},
    ),
    "orz": (
        "a.json",
        [
            {"from": "human", "value": "1 + 1?"},
            {"from": "assistant", "ground_truth": {"value": "2"}},
        ],
    ),
    "orz, lines": (
        "a.jsonl",
        [
            {"from": "human", "value": "1 + 1?"},
            {"from": "assistant", "ground_truth": {"value": "2"}},
        ],
    ),
    "orz, held out": (
        "a.json", {"prompt": [{"from": "user", "value": "1 + 1?"}], "final_answer": "2"},
    ),
    "open-instruct": ("a.parquet", {"messages": [USER], "ground_truth": "2", "dataset": "sums"}),
    "slime": ("a.jsonl", {"prompt": [USER], "label": "2", "metadata": {"k": 1}}),
    "skyrl": (
        "a.parquet",
        {"prompt": [USER], "env_class": "sums", "reward_spec": {"ground_truth": "2"}},
    ),
    "verifiers": ("a.jsonl", {"question": "1 + 1?", "answer": "2", "info": {"k": 1}}),
    "deepscaler": ("a.json", {"problem": "1 + 1?", "answer": "2", "solution": "1 + 1 = 2"}),
    "nemo": ("a.jsonl", {"problem": "1 + 1?", "expected_answer": "2"}),
}  # fmt: skip


@pytest.mark.parametrize("peer", PEERS)
def test_a_peers_file_is_read_unchanged(peer: str, tmp_path: Path) -> None:
    name, record = PEERS[peer]
    (row,) = read_dataset(write(tmp_path / name, [record]))
    assert row.answer == "2"
    assert row.prompt in ("1 + 1?", [USER])
    if isinstance(record, dict):
        kept = {key: value for key, value in record.items() if key in row.info}
        assert kept.items() <= row.info.items()
        assert len(record.keys() - row.info.keys()) == 1


def test_lines_in_a_json_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('\n{"prompt": "p", "answer": "1"}\n{"prompt": "q", "answer": "2"}\n')
    assert [row.prompt for row in read_dataset(str(path))] == ["p", "q"]
    path.write_text('[{"from": "human", "value": "p"}, {"from": "gpt", "ground_truth": "1"}]\n' * 2)
    assert [row.answer for row in read_dataset(str(path))] == ["1", "1"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"prompt": "p", "answer": "1"}, 3]', r"a\.json, row 2: expected a JSON object"),
        ('[{"prompt": "p"\n, "answer": }]', r"a\.json, line 2: not JSON"),
        ("[]", "has no rows"),
        ('[{"prompt": "p"}]', "row 1: no answer"),
    ],
)
def test_bad_lists_name_file_and_row(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        read_dataset(str(path))


def test_several_accepted_answers_stay_a_list(tmp_path: Path) -> None:
    (row,) = read_dataset(write(tmp_path / "a.jsonl", [{"prompt": "p", "solutions": ["2", "two"]}]))
    assert row.answer == '["2", "two"]'
    assert row.info["solutions"] == ["2", "two"]


def of_images(prompt: Any, images: Any, tmp_path: Path) -> TaskRow:
    record = {"prompt": prompt, "answer": "2", "images": images}
    (row,) = read_dataset(write(tmp_path / "a.parquet", [record]))
    return row


@pytest.mark.parametrize(
    "prompt",
    [
        "<image>Which angle?",
        [{"role": "user", "content": "<image>Which angle?"}],
        [
            {
                "role": "user",
                "content": [
                    {"type": "image", "text": None},
                    {"type": "text", "text": "Which angle?"},
                ],
            }
        ],
    ],
    ids=["text", "verl", "trl"],
)
def test_images_are_parts_in_their_place(prompt: Any, tmp_path: Path) -> None:
    row = of_images(prompt, [PNG], tmp_path)
    parts = [{"type": "image", "image": PNG}, {"type": "text", "text": "Which angle?"}]
    assert row.prompt == [{"role": "user", "content": parts}]
    assert other_than_text(row.prompt) == "image"
    other = of_images(prompt, [{"bytes": b"another", "path": "b.png"}], tmp_path)
    assert prompt_hash(other.prompt) != prompt_hash(row.prompt)


def test_images_of_messages_without_a_place_come_first(tmp_path: Path) -> None:
    """TRL's data sets; a single one may stand in the column `image`."""
    system = {"role": "system", "content": "Be brief."}
    row = of_images([system, USER], [PNG, PNG], tmp_path)
    image, words = {"type": "image", "image": PNG}, {"type": "text", "text": USER["content"]}
    assert row.prompt == [system, {"role": "user", "content": [image, image, words]}]
    record = {"prompt": [USER], "answer": "2", "image": PNG}
    (one,) = read_dataset(write(tmp_path / "b.parquet", [record]))
    assert one.prompt == [{"role": "user", "content": [image, words]}]
    assert set(one.info) == {"answer"}, "image files are no columns"


def test_one_image_by_its_path(tmp_path: Path) -> None:
    row = of_images("<image>Which angle?", "angles/1.png", tmp_path)
    assert images_in(row.prompt) == ["angles/1.png"]
    assert row.folder == str(tmp_path)


def test_images_are_replaced_in_their_order(tmp_path: Path) -> None:
    row = of_images("<image> or <image>?", [PNG, {"bytes": b"b", "path": None}], tmp_path)
    assert json.loads(json.dumps(with_images(row.prompt, ["1" * 64, "2" * 64]))) == [
        {
            "role": "user",
            "content": [
                {"type": "image", "image": "1" * 64},
                {"type": "text", "text": " or "},
                {"type": "image", "image": "2" * 64},
                {"type": "text", "text": "?"},
            ],
        }
    ]
    assert with_images("text", []) == "text"
    with pytest.raises(ValueError, match="1 images for a prompt with 2"):
        with_images(row.prompt, ["1" * 64])


def test_parts_with_their_own_image_and_a_template(tmp_path: Path) -> None:
    content = [{"type": "text", "text": "See "}, {"type": "image_url", "image_url": {"url": "u"}}]
    path = write(
        tmp_path / "a.jsonl",
        [{"messages": [{"role": "user", "content": content}], "answer": "2"}],
    )
    (row,) = read_dataset(path, prompt_template="{prompt}\nBe brief.")
    parts = [content[0], {"type": "image", "image": "u"}, {"type": "text", "text": "\nBe brief."}]
    assert row.prompt == [{"role": "user", "content": parts}]


def test_parts_that_are_all_text_are_a_text(tmp_path: Path) -> None:
    content = [{"type": "text", "text": "1 + "}, "1?"]
    path = write(
        tmp_path / "a.jsonl", [{"messages": [{"role": "user", "content": content}], "answer": "2"}]
    )
    (row,) = read_dataset(path)
    assert row.prompt == [USER]
    assert other_than_text(row.prompt) is None


@pytest.mark.parametrize(
    ("prompt", "images", "message"),
    [
        ("<image> and <image>", [PNG], "more images than the row"),
        ("<image>", [PNG, PNG], "the row has more images"),
        ([{"role": "user", "content": [{"text": "no type"}]}], [], "has no type"),
        ([{"role": "user", "content": [{"type": "text"}]}], [], "has no text"),
        ([{"content": "who?"}], [], "has no role"),
    ],
)
def test_bad_prompts_name_file_and_row(
    prompt: Any, images: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=f"row 1: .*{message}"):
        of_images(prompt, images, tmp_path)


@pytest.mark.parametrize("image", [{}, {"detail": "low"}, {"url": None, "detail": "low"}])
def test_a_part_without_its_url_is_an_image_that_cannot_be_had(tmp_path: Path, image: Any) -> None:
    content = [{"type": "image_url", "image_url": image}]
    path = write(
        tmp_path / "a.jsonl", [{"messages": [{"role": "user", "content": content}], "answer": "2"}]
    )
    (row,) = read_dataset(path)
    with pytest.raises(UserError, match=r"^row 1, image 1: no image but NoneType"):
        files_of(row.prompt, tmp_path, "row 1")


def test_an_image_is_the_same_one_in_each_form() -> None:
    """What is held out goes by the prompt, however a file holds its image."""
    forms = (PNG["bytes"], PNG, data_url(PNG["bytes"]), {"url": data_url(PNG["bytes"])})
    prompts = [[{"role": "user", "content": [{"type": "image", "image": i}]}] for i in forms]
    assert len({prompt_hash(prompt) for prompt in prompts}) == 1
    broken = [{"role": "user", "content": [{"type": "image", "image": "data:;base64,?"}]}]
    assert prompt_hash(broken) != prompt_hash(prompts[0])


@pytest.mark.parametrize(
    ("image", "written"),
    [(b"\x89PNG", data_url(b"\x89PNG")), ("a.png", "a.png"), ("/b/a.png", "/b/a.png")],
)
def test_a_selected_row_keeps_its_image(tmp_path: Path, image: Any, written: str) -> None:
    prompt = [{"role": "user", "content": [{"type": "image", "image": image}]}]
    row = TaskRow("r", prompt, "2", {}, folder=str(tmp_path))
    found = json.loads(json.dumps(_record(row, tmp_path)))
    assert images_in(found["prompt"]) == [written]
    assert prompt_hash(found["prompt"]) == prompt_hash(prompt)
    if image == "a.png":
        with pytest.raises(UserError, match="put --out there"):
            _record(row, tmp_path.parent)
