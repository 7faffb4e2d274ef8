"""Preferences and right answers: which are chosen, in which forms they come, and that TRL's
trainers take them as they are."""

import base64
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from benchmarks.versus_trl.trl_arms import trl_python
from headrace.data.media import MediaStore
from headrace.data.tokenizer import chat_text
from headrace.errors import UserError
from headrace.protocol.records.record_types import (
    EvaluationDone,
    Record,
    RewardArrived,
    TrajectoryEnded,
)
from headrace.protocol.token_spans import EnvironmentStep, MediaRun, Piece, Streams
from headrace.run_files.run_folder import MEDIA
from learner.run import TORCHRUN
from rewards.models.training.data_files import read_pair
from storage.database.reader import open_run
from storage.exports import export
from storage.exports.training_answers import SftRows
from storage.queries import group_answers, prompt_scores, score_summary
from storage.run_store import RunStore
from tasks.procedural.chain_sums import CHAIN_SUMS
from tasks.procedural.character_tokenizer import build_tokenizer, vocabulary
from tests.storage.samples import chunk, group, run_config, write_run
from tests.storage.test_exports import rows_of

WORDS = vocabulary(CHAIN_SUMS.characters)
CHAT = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1 + 1"}]
Told = tuple[int, str, float | None, bool | None]
"""An answer: its one token's id, how it ended, its reward, and whether it is right."""


def answers(number: int, *told: Told, purpose: str = "train", chat: bool = False) -> list[Record]:
    """A group with these answers."""
    issued = group(number, at=50.0, purpose=purpose, size=len(told))
    messages = json.dumps(CHAT) if chat else ""
    issued = msgspec.structs.replace(issued, prompt_id=f"row-{number}", messages=messages)
    records: list[Record] = [issued]
    for member, (token, status, reward, correct) in enumerate(told):
        key = 10 * number + member
        made = chunk(key, 0, 1, at=51.0, finish="stop" if status == "finished" else "length")
        records.append(msgspec.structs.replace(made, token_ids=np.array([token], np.int32)))
        ended: Any = status
        records.append(TrajectoryEnded(at=52.0, trajectory_id=key, status=ended, length=1))
        if reward is not None:
            records.append(
                RewardArrived(
                    at=53.0, trajectory_id=key, status="ok", reward=reward, correct=correct,
                    seconds=0.1,
                )
            )  # fmt: skip
    return records


def run_of(root: Path, *groups: list[Record], **sections: Any) -> Path:
    """A finished run with these groups."""
    build_tokenizer(CHAIN_SUMS.characters).save_pretrained(root / "model")
    run_dir = root / "runs" / "chosen-1"
    config = run_config(model={"path": str(root / "model")}, **sections)
    store = RunStore.create(run_dir, run_dir.name, config)
    for records in groups:
        store.append(records)
    store.close()
    return run_dir


PLAIN = (
    answers(
        10, (4, "finished", 0.5, True), (5, "finished", 1.0, True), (6, "truncated", 0.0, False),
        (7, "finished", 0.0, False), (8, "finished", 1.0, True),
    ),
    answers(11, (4, "finished", 1.0, True), (4, "finished", 1.0, True)),
    answers(12, (4, "truncated", 1.0, False), (5, "truncated", 0.0, False)),
    answers(13, (4, "finished", 1.0, True), (5, "finished", None, None)),
    answers(
        14, (4, "truncated", 1.0, False), (5, "finished", 0.5, False),
        (6, "finished", 0.25, False),
    ),
    answers(15, (4, "finished", 1.0, True), (5, "finished", 0.0, False), purpose="eval"),
)  # fmt: skip


def exported(run_dir: Path, kind: str, **options: Any) -> list[dict[str, Any]]:
    out = run_dir.parent / f"{kind}.jsonl"
    export(run_dir, kind, None, out, force=True, **options)
    return rows_of(out)


def test_preferences_are_the_best_and_the_worst_of_a_group(tmp_path: Path) -> None:
    rows = exported(run_of(tmp_path, *PLAIN), "preferences")
    found = {row["group_id"]: (row["chosen_id"], row["rejected_id"], row["margin"]) for row in rows}
    assert found == {10: (101, 102, 1.0), 14: (141, 142, 0.25)}
    first = next(row for row in rows if row["group_id"] == 10)
    assert (first["chosen"], first["rejected"]) == (WORDS[5], WORDS[6])
    assert (first["prompt"], first["answer"]) == ("10 + 1 =", "11")


def test_a_reward_model_reads_the_chat_of_a_native_pair(tmp_path: Path) -> None:
    """Its own template frames it: what the policy saw would be framed twice."""
    told: list[Told] = [(4, "finished", 1.0, True), (5, "finished", 0.0, False)]
    issued, *others = answers(21, *told, chat=True)
    framed = msgspec.structs.replace(issued, prompt="<u>1 + 1<a>")
    (row,) = exported(run_of(tmp_path, [framed, *others]), "preferences")
    assert row["prompt"] == "<u>1 + 1<a>"
    assert read_pair("", row).prompt == CHAT


def test_right_answers_come_once(tmp_path: Path) -> None:
    run_dir = run_of(tmp_path, *PLAIN)
    rows = exported(run_dir, "sft")
    assert sorted(row["trajectory_id"] for row in rows) == [100, 101, 104, 110, 130]
    assert rows[0]["messages"] == [
        {"role": "user", "content": rows[0]["prompt"]},
        {"role": "assistant", "content": rows[0]["response"]},
    ]
    rows = exported(run_dir, "sft", where="reward > 0.5", columns=["trajectory_id"])
    assert sorted(row["trajectory_id"] for row in rows) == [101, 104, 110, 130]


@pytest.mark.parametrize("chat", [False, True])
def test_forms_for_trainers(tmp_path: Path, chat: bool) -> None:
    pair = answers(20, (4, "finished", 1.0, True), (5, "finished", 0.0, False), chat=chat)
    run_dir = run_of(tmp_path, pair)
    (pairs,) = exported(run_dir, "preferences", schema="trl")
    (told,) = exported(run_dir, "sft", schema="trl")
    (messages,) = exported(run_dir, "sft", schema="verl")
    right, wrong = WORDS[4], WORDS[5]
    prompt = CHAT if chat else [{"role": "user", "content": "20 + 1 ="}]
    said = {text: [{"role": "assistant", "content": text}] for text in (right, wrong)}
    assert messages == {"messages": [*prompt, *said[right]]}
    if chat:
        assert pairs == {"prompt": prompt, "chosen": said[right], "rejected": said[wrong]}
        assert told == {"prompt": prompt, "completion": said[right]}
    else:
        assert pairs == {"prompt": "20 + 1 =", "chosen": right, "rejected": wrong}
        assert told == {"prompt": "20 + 1 =", "completion": right}


Pieces = list[tuple[Any, Any, int]]
CALL: Pieces = [
    ("policy", "assistant", 0), ("policy", "assistant", 0), ("template", "tool", 1),
    ("tool", "tool", 1), ("template", "assistant", 1), ("policy", "assistant", 1),
]  # fmt: skip
OPENED: Pieces = [
    ("environment", "user", 0), ("template", "assistant", 0), ("policy", "assistant", 0),
    ("template", "user", 1), ("environment", "user", 1), ("policy", "assistant", 1),
]  # fmt: skip
SILENT: Pieces = [
    ("policy", "assistant", 0), ("policy", "assistant", 0), ("template", "tool", 1),
    ("template", "assistant", 1), ("policy", "assistant", 1), ("policy", "assistant", 1),
]  # fmt: skip


def episode(key: int, *tokens: int, reward: float, sources: Pieces = CALL) -> list[Record]:
    """An answer of three turns: the policy, a template's frame around a tool's result, the policy.
    Each has one token but the first, which has two, in two chunks. Or one of other pieces."""
    records: list[Record] = []
    for at, ((source, role, turn), token) in enumerate(zip(sources, tokens, strict=True)):
        made = chunk(key, at, at + 1, at=51.0 + at / 10, index=at)
        own = source == "policy"
        records.append(
            msgspec.structs.replace(
                made,
                token_ids=np.array([token], np.int32),
                spans=made.spans if own else [],
                streams=Streams(pieces=[Piece(source, role, turn, at, at + 1)]),
            )
        )
    status: Any = "finished"
    records.append(TrajectoryEnded(at=52.0, trajectory_id=key, status=status, length=6))
    records.append(
        RewardArrived(
            at=53.0, trajectory_id=key, status="ok", reward=reward, correct=reward > 0, seconds=0.1
        )
    )
    return records


def test_turns_of_an_episode_are_messages(tmp_path: Path) -> None:
    """What a template wrote is no message; each turn of the policy can be a row of its own."""
    issued = msgspec.structs.replace(group(20, at=50.0, size=2), prompt_id="row-20")
    right = episode(200, 4, 5, 6, 7, 8, 9, reward=1.0)
    wrong = episode(201, 9, 5, 6, 7, 8, 4, reward=0.0)
    run_dir = run_of(tmp_path, [issued, *right], wrong, environment={"name": "guess"})
    prompt = [{"role": "user", "content": "20 + 1 ="}]
    texts = [WORDS[token] for token in range(10)]
    ask = {"role": "assistant", "content": "".join(texts[4:6])}
    result = {"role": "tool", "content": texts[7]}
    end = {"role": "assistant", "content": texts[9]}
    (native,) = exported(run_dir, "sft")
    assert native["messages"] == [*prompt, ask, result, end]
    (told,) = exported(run_dir, "sft", schema="trl")
    assert told == {"prompt": prompt, "completion": [ask, result, end]}
    (pair,) = exported(run_dir, "preferences", schema="trl")
    assert pair["chosen"] == [ask, result, end]
    assert [message["role"] for message in pair["rejected"]] == ["assistant", "tool", "assistant"]
    first, second = exported(run_dir, "sft", schema="turns")
    assert (first["turn"], first["prompt"], first["completion"]) == (0, prompt, [ask])
    assert (second["turn"], second["completion"]) == (1, [end])
    assert second["prompt"] == [*prompt, ask, result]


@pytest.mark.parametrize("agent", [False, True])
def test_what_is_said_before_the_policys_first_turn_is_prompt(tmp_path: Path, agent: bool) -> None:
    """An agent's request, or what an environment says at first: nobody is to be trained on it."""
    issued = msgspec.structs.replace(group(20, at=50.0, size=2), prompt_id="row-20")
    row = [{"role": "user", "content": "20 + 1 ="}]
    if agent:
        issued, row = msgspec.structs.replace(issued, prompt_ids=np.zeros(0, np.int32)), []
    right = episode(200, 4, 5, 6, 7, 8, 9, reward=1.0, sources=OPENED)
    wrong = episode(201, 4, 5, 9, 7, 8, 6, reward=0.0, sources=OPENED)
    run_dir = run_of(tmp_path, [issued, *right], wrong, environment={"name": "guess"})
    prompt = [*row, {"role": "user", "content": WORDS[4]}]
    chosen, rejected = (
        [
            {"role": "assistant", "content": WORDS[guess]},
            {"role": "user", "content": WORDS[8]},
            {"role": "assistant", "content": WORDS[last]},
        ]
        for guess, last in ((6, 9), (9, 6))
    )
    assert exported(run_dir, "sft", schema="trl") == [{"prompt": prompt, "completion": chosen}]
    (pair,) = exported(run_dir, "preferences", schema="trl")
    assert pair == {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def test_a_tools_empty_result_is_a_message(tmp_path: Path) -> None:
    """The policy read its frame, and a trainer's template would not write that without it."""
    issued = msgspec.structs.replace(group(20, at=50.0, size=2), prompt_id="row-20")
    told = episode(200, 4, 5, 6, 7, 8, 9, reward=1.0, sources=SILENT)
    run_dir = run_of(tmp_path, [issued, *told], environment={"name": "guess"})
    ask, end = ({"role": "assistant", "content": WORDS[i] + WORDS[i + 1]} for i in (4, 8))
    (native,) = exported(run_dir, "sft")
    assert native["messages"][1:] == [ask, {"role": "tool", "content": ""}, end]
    _, second = exported(run_dir, "sft", schema="turns")
    assert (second["prompt"][1:], second["completion"]) == (native["messages"][1:3], [end])


def test_a_template_makes_of_chat_and_tools_what_the_policy_read(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "double", "description": "Doubles."}}]
    tokenizer = build_tokenizer(CHAIN_SUMS.characters)
    said = "{% for m in messages %}{{ m.content }}{% endfor %}"
    tokenizer.chat_template = "{{ tools | tojson }}" + said
    read = chat_text(tokenizer, CHAT, begins_answer=True, tools=tools)
    issued = msgspec.structs.replace(
        group(20, at=50.0, size=2), prompt_id="row-20", prompt=read, messages=json.dumps(CHAT)
    )
    right = episode(200, 4, 5, 6, 7, 8, 9, reward=1.0)
    wrong = episode(201, 9, 5, 6, 7, 8, 4, reward=0.0)
    environment = {"name": "guess", "tools": tools}
    run_dir = run_of(tmp_path, [issued, *right], wrong, environment=environment)
    for kind, schema in (("sft", "trl"), ("sft", "turns"), ("preferences", "trl")):
        row = exported(run_dir, kind, schema=schema)[0]
        told = json.loads(row["tools"])
        assert chat_text(tokenizer, row["prompt"], begins_answer=True, tools=told) == read
    (native,) = exported(run_dir, "sft")
    assert (native["messages"][:2], json.loads(native["tools"])) == (CHAT, tools)
    (plain,) = exported(run_dir, "sft", schema="verl")
    assert list(plain) == ["messages"], "verl takes no text for tools"


def test_the_tools_of_an_agents_answer_are_those_that_it_offered(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "double"}}]
    issued = msgspec.structs.replace(
        group(20, at=50.0, size=2), prompt_id="row-20", prompt_ids=np.zeros(0, np.int32)
    )
    first = episode(200, 4, 5, 6, 7, 8, 9, reward=1.0, sources=OPENED)
    step = EnvironmentStep(turn=0, digest="0" * 64, tools=tools)
    asked = Streams(pieces=[Piece("environment", "user", 0, 0, 1)], step=step)
    first[0] = msgspec.structs.replace(first[0], streams=asked)
    other = episode(201, 4, 5, 9, 7, 8, 6, reward=1.0, sources=OPENED)
    run_dir = run_of(tmp_path, [issued, *first], other, environment={"name": "guess"})
    rows = exported(run_dir, "sft", schema="trl")
    assert [json.loads(row["tools"]) for row in rows] == [tools, []]
    assert "tools" not in exported(run_dir, "sft", schema="verl")[0]


def test_answers_for_a_reward_model_have_the_prompt_that_rewards_read(tmp_path: Path) -> None:
    """The chat, and not what a template made of it."""
    told: list[Told] = [(4, "finished", 1.0, True), (5, "truncated", 0.0, False)]
    issued, *others = answers(21, *told, chat=True)
    framed = msgspec.structs.replace(issued, prompt="<u>1 + 1<a>")
    plain, *more = answers(22, *told)
    plain = msgspec.structs.replace(plain, prompt="<u>2 + 2<a>", messages='"2 + 2"')
    run_dir = run_of(tmp_path, answers(20, *told), [framed, *others], [plain, *more])
    rows = list(group_answers(run_dir))
    assert {type(row.correct) for row in rows} == {bool}, "pairs go by `is`, and SQLite has 0 and 1"
    assert [row.finished for row in rows] == [True, False] * 3
    found = [(row.prompt, row.text, row.correct) for row in rows]
    verdicts = [(WORDS[4], True), (WORDS[5], False)]
    prompts = ("20 + 1 =", CHAT, [{"role": "user", "content": "2 + 2"}])
    assert found == [(prompt, *verdict) for prompt in prompts for verdict in verdicts]


def test_answers_for_a_reward_model_are_the_last_turns_that_rewards_read(tmp_path: Path) -> None:
    issued = msgspec.structs.replace(group(20, at=50.0, size=2), prompt_id="row-20")
    right = episode(200, 4, 5, 6, 7, 8, 9, reward=1.0)
    wrong = episode(201, 9, 5, 6, 7, 8, 4, reward=0.0)
    run_dir = run_of(tmp_path, [issued, *right], wrong, environment={"name": "guess"})
    found = [(each.text, each.correct) for each in group_answers(run_dir)]
    assert found == [(WORDS[9], True), (WORDS[4], False)]


DONE = EvaluationDone(
    at=60.0, label="before", update=0, version=0, num_prompts=2, accuracy=0.5, response_length=1.0,
    max_response_length=1, truncated=0.0, failed=0, seconds=1.0, train_time_s=0.0,
)  # fmt: skip


def test_prompts_without_a_score_have_no_source_and_no_mean(tmp_path: Path) -> None:
    """Such as those of which an environment failed every episode; JSON has no NaN."""
    lost = answers(15, (4, "failed", None, None), (5, "failed", None, None), purpose="eval")
    scored = answers(16, (4, "finished", 1.0, True), purpose="eval")
    rows = {row["source"]: row for row in score_summary(run_of(tmp_path, lost, scored, [DONE]))}
    known = next(name for name in rows if name is not None)
    json.dumps(rows[known], allow_nan=False)
    assert (rows[known]["mean"], rows[known]["failed"]) == (1.0, 0)
    assert rows[None] == {
        "source": None, "prompts": 1, "answers": 2, "failed": 2, "mean": None, "never_solved": 1
    }  # fmt: skip


def test_scores_of_a_part_of_the_prompts_are_none_to_select_from(tmp_path: Path) -> None:
    """A scoring that was broken off: the prompts that it came to first would stand for all."""
    scored = answers(15, (4, "finished", 1.0, True), (5, "finished", 0.0, False), purpose="eval")
    waits = answers(16, (4, "finished", None, None), (5, "finished", None, None), purpose="eval")
    with pytest.raises(UserError, match=r"chosen-1 has unscored prompts: .* \(--resume\)"):
        prompt_scores(run_of(tmp_path, scored, waits))


def test_plain_prompts_among_chats_are_texts_for_trainers(tmp_path: Path) -> None:
    plain = answers(20, (4, "finished", 1.0, True))
    chat = answers(21, (4, "finished", 1.0, True), chat=True)
    rows = exported(run_of(tmp_path, plain, chat), "sft", schema="trl")
    assert [row["prompt"] for row in rows] == ["20 + 1 =", "21 + 1 ="]


def test_plain_prompts_in_a_template_are_chats_without_it(tmp_path: Path) -> None:
    """A trainer applies the template itself."""
    pair = answers(20, (4, "finished", 1.0, True), (5, "finished", 0.0, False))
    issued = msgspec.structs.replace(
        pair[0], prompt="<user>20 + 1 =<end>", messages=json.dumps("20 + 1 =")
    )
    run_dir = run_of(tmp_path, [issued, *pair[1:]])
    prompt = [{"role": "user", "content": "20 + 1 ="}]
    right = [{"role": "assistant", "content": WORDS[4]}]
    (native,) = exported(run_dir, "sft")
    assert (native["prompt"], native["messages"]) == ("<user>20 + 1 =<end>", [*prompt, *right])
    assert exported(run_dir, "sft", schema="verl") == [{"messages": [*prompt, *right]}]
    assert exported(run_dir, "sft", schema="trl") == [{"prompt": prompt, "completion": right}]
    (turn,) = exported(run_dir, "sft", schema="turns")
    assert (turn["prompt"], turn["completion"]) == (prompt, right)


def seen_run(root: Path, *told: Told) -> tuple[Path, str]:
    """A run with answers to a prompt with an image in its chat, and the image's digest."""
    issued, *others = answers(20, *told)
    digest = MediaStore(root / "runs" / "chosen-1" / MEDIA).put(b"an image")
    parts = [{"type": "image", "image": digest}, {"type": "text", "text": "Count."}]
    asked = json.dumps([{"role": "user", "content": parts}])
    seen = msgspec.structs.replace(issued, messages=asked, media=[MediaRun(digest, 0, 1)])
    return run_of(root, [seen, *others]), digest


def test_images_are_the_files_that_were_stored(tmp_path: Path) -> None:
    run_dir, digest = seen_run(tmp_path, (4, "finished", 1.0, True))
    (row,) = exported(run_dir, "sft")
    assert base64.b64decode(row["images"][0]["bytes"]) == b"an image"
    (run_dir / MEDIA / digest).write_bytes(b"an imagf")
    with pytest.raises(UserError, match="is damaged"):
        exported(run_dir, "sft")


def test_images_that_nobody_asked_for_are_not_read(tmp_path: Path) -> None:
    run_dir, digest = seen_run(tmp_path, (4, "finished", 1.0, True), (5, "finished", 0.0, False))
    (run_dir / MEDIA / digest).unlink()
    assert exported(run_dir, "sft", columns=["trajectory_id"]) == [{"trajectory_id": 200}]
    (pair,) = exported(run_dir, "preferences", columns=["chosen_id", "rejected_id"])
    assert pair == {"chosen_id": 200, "rejected_id": 201}


def test_verl_finds_the_places_of_images_in_the_messages(tmp_path: Path) -> None:
    """Its dataset puts the row's images there, and refuses a row with one too many."""
    run_dir, _ = seen_run(tmp_path, (4, "finished", 1.0, True))
    (row,) = exported(run_dir, "sft", schema="verl")
    assert (row["messages"][0]["content"], len(row["images"])) == ("<image>Count.", 1)
    (told,) = exported(run_dir, "sft", schema="verl", columns=["messages"])
    assert told["messages"][0]["content"] == "Count.", "there are no images to put anywhere"


def test_images_of_few_answers_are_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer has the files of its prompt's images with it, however short it is."""
    monkeypatch.setattr("storage.exports.chats.IMAGE_ROWS", 2)
    right = [(token, "finished", 1.0, True) for token in (4, 5, 6)]
    run_dir, _ = seen_run(tmp_path, *right)
    with open_run(run_dir).moment() as reader:
        assert [part.rows.num_rows for part in SftRows(reader, None, None).parts()] == [2, 1]


def test_what_cannot_be_had(tmp_path: Path) -> None:
    run_dir = run_of(tmp_path, *PLAIN)
    out = tmp_path / "out.parquet"
    with pytest.raises(UserError, match="preferences cannot be had in the schema 'verl'; there is"):
        export(run_dir, "preferences", None, out, schema="verl")
    with pytest.raises(UserError, match="tokens cannot be had in the schema 'trl'"):
        export(run_dir, "tokens", None, out, schema="trl")
    with pytest.raises(UserError, match="has no tokenizer"):
        export(write_run(tmp_path / "bare-1"), "sft", None, out)
    assert not out.exists()


TRAIN = """
import json, sys
from datasets import load_dataset
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

CHAT = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def train(model, file, kind, chat):
    tokenizer = PreTrainedTokenizerFast.from_pretrained(model)
    tokenizer.chat_template = CHAT if chat else None
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, max_position_embeddings=128,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(model)
    Config, Trainer = (DPOConfig, DPOTrainer) if kind == "preferences" else (SFTConfig, SFTTrainer)
    arguments = Config(
        output_dir=file + "-out", max_steps=1, per_device_train_batch_size=1, report_to=[],
        use_cpu=True, bf16=False, save_strategy="no",
    )
    rows = load_dataset("json", data_files=file, split="train")
    trainer = Trainer(
        model=model, args=arguments, train_dataset=rows, processing_class=tokenizer
    )
    return trainer.train().training_loss


print("losses", json.dumps([train(*case) for case in json.loads(sys.argv[1])]))
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_trl_trains_a_step_on_them(tmp_path: Path) -> None:
    """On texts and on messages, of both kinds; in one process, which imports TRL for all."""
    try:
        python = trl_python()
    except UserError as error:
        pytest.skip(str(error))
    pair = ((4, "finished", 1.0, True), (5, "finished", 0.0, False))
    cases = []
    for chat in (False, True):
        folder = tmp_path / ("chat" if chat else "plain")
        run_dir = run_of(folder, answers(20, *pair, chat=chat), answers(21, *pair, chat=chat))
        for kind in ("preferences", "sft"):
            file = folder / f"{kind}.jsonl"
            export(run_dir, kind, None, file, schema="trl")
            cases.append((str(folder / "model"), str(file), kind, chat))
    # A learner rank that ran in this process leaves its place in the environment.
    mine = {name: x for name, x in os.environ.items() if name not in TORCHRUN}
    command = [str(python), "-c", TRAIN, json.dumps(cases)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=mine)
    assert done.returncode == 0, done.stderr
    losses = json.loads(done.stdout.split("losses")[-1])
    assert len(losses) == 4
    assert min(losses) > 0
