"""Prompts as the policy sees them: a task that its tokenizer cannot spell is refused, a row that
its chat template refuses is skipped."""

import json
from pathlib import Path

import msgspec
import pytest
from tokenizers.processors import TemplateProcessing

from coordinator.dispatch.prompts import Prompts
from headrace.config.loading.recipe import load_recipe
from headrace.errors import UserError
from rewards.models.encoding import prompt_ids
from tasks.rows import TaskRow
from tests.coordinator.dispatch.test_mixture import recipe, rows

RECIPE = Path(__file__).parents[3] / "recipes" / "quickstart.toml"
PICKY = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{{ messages[0].content }}"
)


@pytest.mark.parametrize(("model", "most"), [("chain-sums-cold", 46), ("chain-sums-long-cold", 52)])
def test_problems_may_be_as_long_as_the_model_has_labels(model: str, most: int) -> None:
    path = f"model.path={RECIPE.parent / 'models' / model}"
    prompts = Prompts(load_recipe(RECIPE, [path, f"task.max_terms={most}"]))
    prompts.next_group(0, 0, 0)


def test_problems_with_labels_that_the_model_lacks_are_refused() -> None:
    with pytest.raises(UserError, match=r"lower task\.max_terms"):
        Prompts(load_recipe(RECIPE, ["task.max_terms=47"]))


def chats(tmp_path: Path, roles: list[str]) -> Prompts:
    """Prompts of rows that begin with these roles, under a template without a system role."""
    rows = (
        {"id": f"r{n}", "prompt": [{"role": role, "content": f"1+{n}="}], "answer": str(n + 1)}
        for n, role in enumerate(roles)
    )
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {
        "kind": "dataset", "path": str(path), "eval_fraction": 0.01,
        "max_prompt_length": 80, "max_response_length": 240,
    }  # fmt: skip
    prompts = Prompts(recipe(tmp_path, task))
    prompts._tokenizer.chat_template = PICKY
    return prompts


def test_a_row_that_the_template_refuses_is_skipped_and_told(tmp_path: Path) -> None:
    prompts = chats(tmp_path, ["system", "user"] * 4)
    asked = {prompts.next_group(position, 0, 0).prompt_id for position in range(8)}
    assert asked <= {"r1", "r3", "r5", "r7"}
    why = "the model's chat template takes no such chat: no system role"
    told = {line.partition(", ")[2] for line in prompts.unasked}
    assert told == {why}
    assert all(line.startswith("skipped: row r") for line in prompts.unasked)


def test_a_run_whose_rows_are_all_refused_says_why(tmp_path: Path) -> None:
    prompts = chats(tmp_path, ["system"] * 4)
    with pytest.raises(UserError, match=r"refused \(skipped: row r\d, .*: no system role\)"):
        prompts.next_group(0, 0, 0)


def test_prompts_that_evaluations_leave_out_count_once(tmp_path: Path) -> None:
    """They are the same in each evaluation; those of training are others each time."""
    task = rows(tmp_path / "1.jsonl", 50) | {
        "eval_fraction": 0.5, "max_prompt_length": 1, "max_response_length": 240,
    }  # fmt: skip
    prompts = Prompts(recipe(tmp_path, task))
    prompts.skipped = 3
    counts = []
    for _ in range(2):
        assert prompts.eval_groups(0, 0) == []
        counts.append((prompts.skipped, prompts.skipped_in_evaluation))
    assert counts[0] == counts[1] == (3, len(prompts._source.eval_rows(50)))
    assert counts[0][1] > 1


def test_a_run_that_goes_on_with_other_data_says_so(tmp_path: Path) -> None:
    """Prompts come twice or never then, and an id names two prompts in exports."""
    path = tmp_path / "1.jsonl"
    task = rows(path, 50) | {"max_prompt_length": 80, "max_response_length": 240}
    config = recipe(tmp_path, task)
    group = Prompts(config).next_group(7, 0, 0)
    (same := Prompts(config)).compare_rows([group])
    path.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))
    (other := Prompts(config)).compare_rows([msgspec.structs.replace(group, purpose="eval")])
    assert same.unasked == other.unasked == []
    other.compare_rows([group])
    assert [line.partition(",")[0] for line in other.unasked] == [
        "task: not the data that the run began with"
    ]


def test_a_plain_prompt_is_recorded_beside_what_the_template_makes_of_it() -> None:
    """Exports make a chat of it, for a trainer that applies the template again, and judges read it
    as it was before."""
    prompts = Prompts(load_recipe(RECIPE, ['model.chat_template="always"']))
    prompts._tokenizer.chat_template = "={{ messages[0].content }}"
    issued = prompts.next_group(0, 0, 0)
    assert issued.prompt == f"={json.loads(issued.messages)}"


def test_a_prompt_that_begins_with_the_opening_token_has_one() -> None:
    """A chat that the dataset has framed, as Llama 3's and Gemma's templates write it."""
    prompts = Prompts(load_recipe(RECIPE))
    tokenizer = prompts._tokenizer
    opening = (tokenizer.bos_token, tokenizer.bos_token_id)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{opening[0]} $A", special_tokens=[opening]
    )
    plain, framed = (
        prompts.encode(TaskRow(id="r", prompt=text, answer="")).ids.tolist()
        for text in ("a3=", f"{opening[0]}a3=")
    )
    assert framed == plain == prompt_ids(tokenizer, "a3=", "auto")
    assert plain.count(opening[1]) == 1
