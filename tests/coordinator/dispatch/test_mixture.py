"""Mixtures: shares by the schedule, bands by pass rate, and a coordinator that takes over."""

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from coordinator.dispatch.mixture import (
    DomainMixture,
    MixtureProgress,
    PassRate,
    asked_shares,
    batch_shares,
)
from coordinator.dispatch.prompts import MAX_PASSED, Prompts
from coordinator.persistence.state import State
from headrace.config.loading.recipe import build, load_recipe
from headrace.config.preflight.checks import problems
from headrace.config.sections.run import RunConfig
from headrace.config.sections.task import MixtureConfig
from headrace.errors import UserError
from headrace.protocol.records.record_types import GroupIssued, RewardArrived
from headrace.trajectory.trajectories import issued_again
from tests.coordinator.world import make_config

RECIPES = Path(__file__).parents[3] / "recipes"
SUMS = {"kind": "chain_sums"}


def mixture(schedule: list[dict[str, Any]], **datasets: Any) -> MixtureConfig:
    """A mixture of sums, by these names."""
    task = {"kind": "mixture", "datasets": datasets, "schedule": schedule}
    return MixtureConfig.model_validate_json(json.dumps(task), strict=True)


def recipe(tmp_path: Path, task: dict[str, Any]) -> RunConfig:
    """The quickstart with another task."""
    known = load_recipe(RECIPES / "quickstart.toml", [])
    table = known.model_dump(mode="json", exclude_unset=True) | {"task": task}
    return build(table, source="a test")


def rows(path: Path, count: int, prompt: str = "1+") -> dict[str, Any]:
    """A dataset of so many sums."""
    lines = ({"prompt": f"{prompt}{n}=", "answer": str(n + 1)} for n in range(count))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {"kind": "dataset", "path": str(path), "eval_fraction": 0.01}


def test_the_papers_schedule_by_the_golden_case() -> None:
    """T1 = 1000, T2 = 2000, natural share 0.25."""
    points = [
        {"update": 1000, "weights": {"code": 1}},
        {"update": 2000, "weights": {"code": 1, "chat": 3}},
    ]
    task = mixture(points, code=SUMS, chat=SUMS)
    found = [task.weights(update)["code"] for update in (0, 999, 1000, 1500, 2000, 5000)]
    assert found == [1, 1, 1, 0.625, 0.25, 0.25]
    assert mixture([], code=SUMS, chat=SUMS).weights(7) == {"code": 0.5, "chat": 0.5}


@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.9, 0.1), (1, 2, 3), (0.5, 0.0, 0.3, 0.1, 0.1)])
def test_any_groups_in_a_row_have_the_shares_of_their_weights(weights: tuple[float, ...]) -> None:
    names = [f"domain-{n}" for n in range(len(weights))]
    point = {"weights": dict(zip(names, weights, strict=True))}
    chosen = DomainMixture(mixture([point], **dict.fromkeys(names, SUMS)), seed=0)
    drawn = [chosen.domain_at(position, 0) for position in range(5000)]
    for start in range(0, 4900, 97):
        counts = Counter(drawn[start : start + 100])
        for name, weight in zip(names, weights, strict=True):
            assert counts[name] / 100 == pytest.approx(weight / sum(weights), abs=0.03)


def test_groups_come_of_their_domains_rows_in_order_and_a_successor_goes_on(tmp_path: Path) -> None:
    task = {
        "kind": "mixture", "max_prompt_length": 80, "max_response_length": 240,
        "datasets": {"one": rows(tmp_path / "1.jsonl", 50), "two": rows(tmp_path / "2.jsonl", 50)},
        "schedule": [{"weights": {"one": 0.7, "two": 0.3}}],
    }  # fmt: skip
    config = recipe(tmp_path, task)
    state, prompts = State(config), Prompts(config)

    def ask() -> GroupIssued:
        group = prompts.next_group(
            state.position, state.next_group, state.next_trajectory, state.mixture
        )
        state.apply(group)
        return group

    groups = [ask() for _ in range(20)]
    prompts = Prompts(config)
    groups += [ask() for _ in range(20)]
    assert [group.position for group in groups] == list(range(40))
    for name, source in prompts._source.domains.items():
        own = [group for group in groups if group.domain == name]
        assert [group.domain_position for group in own] == list(range(len(own)))
        assert [group.prompt_id for group in own] == [source.row_at(n).id for n in range(len(own))]
        assert all(json.loads(group.info)["domain"] == name for group in own)
        assert all(group.prompt_id.startswith(f"{name}/") for group in own)
    shares = asked_shares(config.task, state.mixture, 0)
    assert shares["mixture/one/asked"] == pytest.approx(0.7, abs=0.05)
    assert shares["mixture/one/weight"] == pytest.approx(0.7)
    assert {group.domain for group in prompts.eval_groups(0, 0)} == {"one", "two"}


def test_a_domain_without_tokens_has_a_share_of_0() -> None:
    """30 and 10 tokens of one domain, none of the other; of no groups there are no shares."""
    task = mixture([], one=SUMS, two=SUMS)
    groups = {0: SimpleNamespace(domain="one")}
    answers = [SimpleNamespace(group_id=0, reward=x, correct=x > 0) for x in (1.0, 0.0)]
    account = SimpleNamespace(groups=groups, trajectories=dict(enumerate(answers)))
    windows = [SimpleNamespace(trajectory_id=i, tokens=n) for i, n in ((0, 30), (1, 10))]
    made = batch_shares(task, cast(Any, account), cast(Any, windows), cast(Any, answers))
    assert made == {
        "mixture/one/trained": 1.0, "mixture/two/trained": 0.0, "mixture/one/solved": 0.5
    }  # fmt: skip
    assert batch_shares(task, cast(Any, account), [], []) == {}
    weights = {"mixture/one/weight": 0.5, "mixture/two/weight": 0.5}
    assert asked_shares(task, MixtureProgress(), 0) == weights
    asked = {"mixture/one/asked": 1.0, "mixture/two/asked": 0.0}
    assert asked_shares(task, MixtureProgress(asked={"one": 3}), 0) == weights | asked


def test_a_domain_without_a_prompt_leaves_its_share_to_the_others(tmp_path: Path) -> None:
    task = {
        "kind": "mixture", "max_prompt_length": 20, "max_response_length": 240,
        "datasets": {
            "fits": rows(tmp_path / "1.jsonl", 50),
            "long": rows(tmp_path / "2.jsonl", 50, "1+2+3+4+5+6+7+8+9+1+2+3+"),
        },
        "schedule": [{"weights": {"long": 1}}],
    }  # fmt: skip
    prompts = Prompts(recipe(tmp_path, task))
    assert prompts.next_group(0, 0, 0).domain == "fits"
    assert prompts.unasked == ["long: no prompt is left, so the other domains are asked"]
    assert prompts.next_group(1, 1, 4).domain == "fits"
    assert len(prompts.unasked) == 1
    alone = task | {"datasets": {"long": task["datasets"]["long"]}}  # type: ignore[index]
    with pytest.raises(UserError, match=r"longer than task\.max_prompt_length"):
        Prompts(recipe(tmp_path, alone)).next_group(0, 0, 0)


def test_bands_ask_by_what_the_last_group_got(tmp_path: Path) -> None:
    task = rows(tmp_path / "1.jsonl", 200) | {
        "max_prompt_length": 80, "max_response_length": 240,
        "bands": {"edges": [0.25, 0.75], "ask": [1.0, 0.5, 0.0]},
    }  # fmt: skip
    prompts = Prompts(recipe(tmp_path, task))
    training = [row.id for row in prompts._source.training_rows(200)]
    totals = {row: (0.0, 1.0, 2.0)[n % 3] for n, row in enumerate(training)}
    progress = MixtureProgress(rates={row: PassRate(0, 2, total) for row, total in totals.items()})
    asked: list[str] = []
    position = 0
    while position < 10 * len(training):
        group = prompts.next_group(position, 0, 0, progress)
        asked.append(group.prompt_id)
        position = group.position + 1
    counts = Counter(totals[row] for row in asked)
    assert counts[2.0] == 0
    assert counts[1.0] / counts[0.0] == pytest.approx(0.5, abs=0.1)
    assert not prompts.unasked
    progress = MixtureProgress(rates={row: PassRate(0, 2, 2.0) for row in training})
    assert prompts.next_group(0, 0, 0, progress).position == MAX_PASSED
    prompts.next_group(1, 0, 0, progress)
    assert prompts.unasked == ["task: its bands ask no prompt, so all are"]


def test_rates_are_those_of_the_last_group_and_part_of_the_state() -> None:
    """Right answers count as 1, wrong ones as 0, whatever they earned; else the reward counts."""
    bands = {"kind": "dataset", "path": "somewhere.jsonl", "bands": {}}
    state = State(make_config(task=bands | {"max_prompt_length": 4, "max_response_length": 8}))
    group = GroupIssued(
        at=0.0, group_id=0, prompt_id="p", position=0, purpose="train", prompt="", answer="",
        info="{}", prompt_ids=np.zeros(1, np.int32),
        trajectory_ids=[0, 1, 2], seeds=[0, 0, 0],
    )  # fmt: skip
    state.apply(group)
    for key, reward, correct in ((0, 0.3, True), (1, 0.9, False), (2, 0.5, None)):
        scored = RewardArrived(
            at=1.0, trajectory_id=key, status="ok", reward=reward, correct=correct
        )
        state.mixture.score(scored, state.account.groups[0])
    assert state.mixture.rates == {"p": PassRate(0, 3, 1.5)}
    again = msgspec.structs.replace(group, group_id=1, trajectory_ids=[3, 4, 5])
    state.apply(again)
    failed = RewardArrived(at=1.0, trajectory_id=3, status="timeout", reward=None)
    state.mixture.score(failed, state.account.groups[1])
    assert state.mixture.rates == {"p": PassRate(1, 0, 0.0)}


def test_domains_without_bands_have_no_rates() -> None:
    """A generated prompt comes once, so that the rates of a long run would have no end."""
    bands = {"kind": "dataset", "path": "somewhere.jsonl", "bands": {}}
    task = {"kind": "mixture", "datasets": {"made": SUMS, "read": bands}}
    state = State(make_config(task=task))
    for key, domain in enumerate(("made", "read")):
        state.apply(
            GroupIssued(
                at=0.0, group_id=key, prompt_id=f"{domain}/p", position=key, purpose="train",
                prompt="", answer="", info="{}", prompt_ids=np.zeros(1, np.int32), domain=domain,
                trajectory_ids=[key], seeds=[0],
            )
        )  # fmt: skip
        state.apply(RewardArrived(trajectory_id=key, status="ok", reward=1.0))
    assert state.mixture.rates == {"read/p": PassRate(1, 1, 1.0)}


def test_a_branch_of_an_episode_asks_no_prompt() -> None:
    progress = MixtureProgress()
    group = GroupIssued(
        at=0.0, group_id=0, prompt_id="one/p", position=7, purpose="train", prompt="", answer="",
        info="{}", prompt_ids=np.zeros(1, np.int32), domain="one", domain_position=4,
        trajectory_ids=[0, 1], seeds=[0, 0],
    )  # fmt: skip
    progress.issue(group)
    branch = issued_again(group, group_id=1, position=-1, trajectory_ids=[2], seeds=[0])
    progress.issue(branch)
    assert (progress.positions, progress.asked) == ({"one": 5}, {"one": 1})


def test_of_the_journals_scores_those_of_training_answers_are_in_the_rates() -> None:
    """An evaluation asks the same prompts, and says nothing of when to ask them again."""
    bands = {"kind": "dataset", "path": "somewhere.jsonl", "bands": {}}
    state = State(make_config(task=bands | {"max_prompt_length": 4, "max_response_length": 8}))
    group = GroupIssued(
        at=0.0, group_id=0, prompt_id="p", position=0, purpose="train", prompt="", answer="",
        info="{}", prompt_ids=np.zeros(1, np.int32), trajectory_ids=[0], seeds=[0],
    )  # fmt: skip
    evaluated = msgspec.structs.replace(group, group_id=1, purpose="eval", trajectory_ids=[1])
    for asked in (group, evaluated):
        state.apply(asked)
        (key,) = asked.trajectory_ids
        state.apply(RewardArrived(trajectory_id=key, status="ok", reward=0.25, correct=True))
    assert state.mixture.rates == {"p": PassRate(0, 1, 1.0)}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"schedule": [{"weights": {"other": 1}}]}, "task.schedule.0.weights: there is no dataset"),
        ({"schedule": [{"weights": {"one": 0}}]}, "task.schedule.0.weights: are 0 in sum"),
        ({"schedule": [{"weights": {"one": 1}}] * 2}, "task.schedule: updates must rise"),
        (
            {"datasets": {"one": SUMS | {"max_prompt_length": 3}}},
            "task.datasets.one: has a limit of lengths",
        ),
        (
            {"datasets": {"one": {"kind": "dataset", "path": "x", "bands": {"ask": [1]}}}},
            "task.datasets.one.bands.ask: needs 3 numbers",
        ),
        (
            {"datasets": {"one": {"kind": "dataset", "path": "x", "bands": {"edges": [0.5, 0.2]}}}},
            "task.datasets.one.bands.edges: must rise",
        ),
    ],
)
def test_mixtures_that_cannot_be(tmp_path: Path, changes: dict[str, Any], line: str) -> None:
    task = {
        "kind": "mixture", "max_prompt_length": 80, "max_response_length": 240,
        "datasets": {"one": SUMS},
    }  # fmt: skip
    (found,) = problems(recipe(tmp_path, task | changes))
    assert found.startswith(line)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"schedule": [{"weights": {"one": -1}}]}, r"task.schedule.*weights.one = -1"),
        ({"datasets": {}}, "task.*datasets"),
        ({"datasets": {"a/b": SUMS}}, "a/b"),
        ({"datasets": {"one": {"kind": "mixture"}}}, "task.datasets.one.kind must be one of"),
    ],
)
def test_values_that_no_mixture_has(tmp_path: Path, changes: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=line):
        recipe(tmp_path, {"kind": "mixture", "datasets": {"one": SUMS}} | changes)
