"""Every mistake in a recipe is one line that names the place, the key and what to do."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config.loading.recipe import (
    NULL,
    _with_nulls,
    deep_merge,
    load_recipe,
    load_reward_model,
    merge_overrides,
    parse_value,
    resolve_paths,
)
from headrace.errors import UserError


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("learner.policy.lrr=1", "unknown key learner.policy.lrr; did you mean learner.policy.lr?"),
        ("modle.path=x", "unknown key modle.path; did you mean model.path?"),
        ("window=60", "unknown key window; did you mean schedule.window?"),
        ("trainer=3", "unknown key trainer; the root has name, root, seed, model"),
        ("rollout.n=4", "verl's rollout.n is schedule.num_generations here"),
        ("rollout.val_kwargs.n=4", "verl's val_kwargs is evaluation.temperature and evaluation."),
        ("algorithm.filter_groups.enable=true", "verl's filter_groups is algorithm.admit = "),
        ("custom_reward_function.path=a.py", "verl's custom_reward_function is reward.function"),
        ("algorithm.beta=0.04", "TRL's beta is algorithm.kl.coef with algorithm.kl.where"),
        ("seq_len=9", "prime-rl's seq_len is task.max_prompt_length and task.max_response_length"),
        (
            "data.train_batch_size=64",
            "verl's train_batch_size is schedule.batch_windows (in responses: prompts x schedule.",
        ),
        (
            "task.max_completion_length=9",
            "TRL's max_completion_length is task.max_response_length here",
        ),
        ("algorithm.lam=1", "verl's lam is algorithm.advantages.gae_lambda_policy"),
        ("algorithm.lambd=1", "OpenRLHF's lambd is algorithm.advantages.gae_lambda_policy"),
        (
            "algorithm.policy_loss.eps_clip=0.2",
            "OpenRLHF's and slime's eps_clip is algorithm.policy_loss.clip_ratio_low",
        ),
        ("actor.clip_ratio=0.2", "verl's clip_ratio is algorithm.policy_loss.clip_ratio_low"),
        ("critic_warmup=4", "verl's critic_warmup is algorithm.value.warmup_updates here"),
        ("algorithm.kl_coef=0", "verl's kl_coef is algorithm.kl.coef"),
        ("schedule.weight_sync_steps=1", "TRL's weight_sync_steps has no key (weights go out"),
        (
            "async.max_head_offpolicyness=4",
            "AReaL's max_head_offpolicyness is schedule.max_staleness here",
        ),
        ("learner.ranks=two", 'learner.ranks = "two": should be an integer'),
        ('learner.ranks="2"', 'learner.ranks = "2": should be an integer'),
        ("evaluation.before=1", "evaluation.before = 1: should be a boolean"),
        ("learner.ranks=0", "learner.ranks = 0: should be greater than or equal to 1"),
        ("seed=-1", "seed = -1: should be greater than or equal to 0"),
        ("generator.top_p=1.5", "generator.top_p = 1.5: should be less than or equal to 1"),
        ("learner.policy.lr=nan", "learner.policy.lr = NaN: should be a finite number"),
        ("schedule.mode=sync", "schedule.mode = \"sync\": should be 'synchronous', 'windowed' or"),
        ("learner.cpus=[1, true]", "learner.cpus.1 = true: should be an integer"),
        ("learner.policy.betas=[0.9, 1.0]", "learner.policy.betas.1 = 1.0: should be less than 1"),
        ("task.path=x", "task.path; it does not go with task.kind = 'chain_sums'"),
        ("task.bands.ask=0", "task.bands.ask; it does not go with task.kind = 'chain_sums'"),
        (
            "task.kind=sums",
            "task.kind must be one of 'chain_sums', 'tracking', 'graph_walk', 'shift_register', ",
        ),
        ("name", "override 'name' is not of the form section.key=value"),
        ("algorithm.penalties.entropy_coef=-0.1", "entropy_coef = -0.1: should be greater than or"),
        ("name.first=x", "name.first=x': name is a value, not a section"),
    ],
)
def test_a_mistake_is_one_line(recipe: Path, override: str, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        load_recipe(recipe, [override])
    message = str(caught.value)
    assert expected in message
    assert "\n" not in message
    if "kind" not in override:
        assert f"override {override!r}" in message


def test_a_mistake_in_the_file_names_the_file(recipe: Path) -> None:
    recipe.write_text(recipe.read_text() + "\n[learner]\nrank = 2\n")
    with pytest.raises(UserError, match=rf"{recipe}: unknown key learner.rank; .*learner.ranks"):
        load_recipe(recipe)


def test_a_missing_key_is_named(recipe: Path) -> None:
    recipe.write_text('[model]\npath = "m"\n[algorithm.advantages]\nkind = "egae"\n')
    with pytest.raises(UserError, match="task is missing"):
        load_recipe(recipe)


def test_a_missing_or_broken_file_is_named(recipe: Path) -> None:
    with pytest.raises(UserError, match=r"no recipe at .*smal\.toml; did you mean .*small\.toml"):
        load_recipe(recipe.with_name("smal.toml"))
    recipe.write_text("[model\n")
    with pytest.raises(UserError, match=r"small\.toml is not valid TOML: .*line 1"):
        load_recipe(recipe)
    recipe.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="cannot read"):
        load_recipe(recipe)
    with pytest.raises(UserError, match="cannot read"):
        load_recipe(recipe.parent)


def test_a_recipe_of_another_command_says_whose_it_is(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text('[objective]\nkind = "sft"\n')
    with pytest.raises(UserError, match="a recipe of `headrace reward train`, "):
        load_recipe(path)
    path.write_text('[algorithm]\nname = "tppo"\n')
    with pytest.raises(UserError, match="a recipe of `headrace train`"):
        load_reward_model(path)


def test_a_recipe_of_a_windows_editor_is_read(recipe: Path) -> None:
    before = load_recipe(recipe)
    recipe.write_bytes(b"\xef\xbb\xbf" + recipe.read_bytes().replace(b"\n", b"\r\n"))
    assert load_recipe(recipe) == before


@pytest.mark.parametrize("value", ["9" * 5_000, "[" * 5_000], ids=["digits", "brackets"])
def test_what_is_too_long_for_the_reader_is_one_line(recipe: Path, value: str) -> None:
    assert parse_value(value) == value
    with pytest.raises(UserError, match=r"learner\.policy\.lr") as refused:
        load_recipe(recipe, [f"learner.policy.lr={value}"])
    assert "\n" not in str(refused.value)
    recipe.write_text(f"[learner.policy]\nlr = {value}\n")
    with pytest.raises(UserError, match=r"small\.toml is not valid TOML: "):
        load_recipe(recipe)


def test_the_first_of_several_mistakes_says_how_many_more(recipe: Path) -> None:
    with pytest.raises(UserError, match=r"unknown key foo.*\(and 1 more\)"):
        load_recipe(recipe, ["learner.ranks=0", "foo=1"])


def test_values_of_overrides() -> None:
    assert parse_value("1e-5") == 1e-5
    assert parse_value("[0, 1]") == [0, 1]
    assert parse_value("true") is True
    assert parse_value('"7"') == "7"
    assert parse_value("runs/a b.toml") == "runs/a b.toml"
    assert parse_value("{low = 1, high = 2}") == {"low": 1, "high": 2}
    assert parse_value("") == ""


def test_overrides_go_on_top_of_the_file(recipe: Path) -> None:
    config = load_recipe(recipe, ["stop.updates=7", "learner.policy={lr=1e-3}", "stop.updates=9"])
    assert config.stop.updates == 9
    assert config.learner.policy.lr == 1e-3
    assert config.learner.policy.betas == (0.9, 0.95)
    assert config.window == 60


@pytest.mark.parametrize("override", [f"stop.updates={NULL}", f'stop.updates="{NULL}"'])
def test_null_unsets_a_key(recipe: Path, override: str) -> None:
    assert load_recipe(recipe, [override]).stop.updates is None


def test_paths_are_found_beside_the_recipe_then_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: Path
) -> None:
    here = tmp_path / "here"
    (here / "policy").mkdir(parents=True)
    monkeypatch.chdir(here)
    found = load_recipe(recipe, ["model.path=policy"]).model.path
    assert found == str(here / "policy")
    (tmp_path / "policy").mkdir()
    assert load_recipe(recipe, ["model.path=policy"]).model.path == str(tmp_path / "policy")
    assert load_recipe(recipe, ["model.path=owner/name"]).model.path == "owner/name"
    (tmp_path / "mine.py").touch()
    recipe.write_text(f"{recipe.read_text()}\n[reward]\nkind = 'function'\n")
    several = "reward.functions=[{name = 'mine.py:a'}, {name = 'package.module:b'}]"
    score = load_recipe(recipe, ["reward.function=mine.py:score"]).reward.function
    assert score == f"{tmp_path}/mine.py:score"
    names = [entry.name for entry in load_recipe(recipe, [several]).reward.functions]
    assert names == [f"{tmp_path}/mine.py:a", "package.module:b"]
    (tmp_path / "search").mkdir()
    environment = load_recipe(recipe, ["environment.name=search"]).environment
    assert environment is not None
    assert environment.name == "search", "a built-in name is no path"
    told = f"Write mine.py: a program {'x' * 300}"
    things = "tools='mine.py:A', environment_factory={b='mine.py:B'}"
    options = f"environment.options={{{things}, told={told!r}}}"
    environment = load_recipe(recipe, ["environment.name=trl", options]).environment
    assert environment is not None
    factories = {"b": f"{tmp_path}/mine.py:B"}
    tools = f"{tmp_path}/mine.py:A"
    expected = {"tools": tools, "environment_factory": factories, "told": told}
    assert environment.options == expected


def test_a_home_is_no_folder_of_the_name_tilde(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing need be there yet of a root."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_recipe(recipe, ["root=~/runs"]).root == f"{tmp_path}/runs"
    assert load_recipe(recipe, ["root=~nobody-of-this-name/runs"]).root[0] == "~"
    (tmp_path / "keys").mkdir()
    for named in ("~/keys", "keys"):
        transport = load_recipe(recipe, [f"transport.curve_keys={named}"]).transport
        assert transport.curve_keys == f"{tmp_path}/keys"


def test_a_key_of_an_unset_section_sets_it_again(recipe: Path) -> None:
    kl = load_recipe(recipe, ["algorithm.kl=null", "algorithm.kl.coef=0.5"]).algorithm.kl
    assert kl is not None
    assert (kl.coef, kl.where) == (0.5, "loss")
    with pytest.raises(UserError, match=r"algorithm\.kl\.coef is missing"):
        load_recipe(recipe, ["algorithm.kl=null", "algorithm.kl.where=loss"])


tables = st.recursive(
    st.integers(),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
).filter(lambda value: isinstance(value, dict))


@given(tables, tables)
def test_merging_keeps_what_the_upper_table_does_not_name(lower: dict, upper: dict) -> None:  # type: ignore[type-arg]
    before = dict(lower)
    deep_merge(lower, upper)
    for key in {*before, *upper}:
        if key not in upper:
            assert lower[key] == before[key]
        elif not isinstance(upper[key], dict):
            assert lower[key] == upper[key]
    again = dict(lower)
    deep_merge(lower, upper)
    assert lower == again


@given(st.lists(st.sampled_from(["a.b=1", "a.c=2", "d=[1]", "a.b=x"]), max_size=6))
def test_the_last_override_of_a_key_wins(overrides: list[str]) -> None:
    table: dict[str, object] = {}
    changed = merge_overrides(table, overrides)
    for key, override in changed.items():
        place: object = table
        for part in key.split("."):
            assert isinstance(place, dict)
            place = place[part]
        assert place == parse_value(override.partition("=")[2])


def test_paths_are_looked_up_beside_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "l.jsonl").write_text("{}")
    monkeypatch.chdir(tmp_path)
    data = {"kind": "sessions", "path": "l.jsonl", "lists": "l.jsonl", "eval_path": "*.jsonl"}
    resolve_paths({"data": data}, [tmp_path / "recipe", tmp_path])
    assert [Path(data[key]).is_absolute() for key in ("path", "lists", "eval_path")] == [True] * 3


def test_a_null_in_a_list_of_tables_is_none(recipe: Path) -> None:
    function = {"name": "x.py:f", "adapter": "null"}
    assert _with_nulls({"functions": [function]})["functions"][0]["adapter"] is None


def test_a_value_models_rate_is_its_own_whatever_else_is_set(recipe: Path) -> None:
    text = recipe.read_text().replace("[learner.value]\nlr", "[learner.value]\n# lr")
    recipe.write_text(text)
    for override in ([], ["learner.value.warmup_steps=3"]):
        assert load_recipe(recipe, override).learner.value.lr == 2e-6
