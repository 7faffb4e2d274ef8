"""Loader of TOML recipes and dotted overrides to a `RunConfig` or `RewardModelConfig`.

In: a file, and `a.b.c=value` strings. Out: a frozen configuration with relative paths of models and
datasets resolved against the recipe's folder, then the working directory. Every mistake is a
`UserError` of one line that names the file (or the override), the key, and what to do.
"""

import difflib
import json
import os
import re
import tomllib
from collections.abc import Iterator, Sequence
from glob import glob
from pathlib import Path
from typing import Any, TypeVar, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from headrace.config.loading.keys import key_names, kind_of, models_of
from headrace.config.sections.algorithm import AlgorithmConfig
from headrace.config.sections.reward_model import RewardModelConfig
from headrace.config.sections.run import RunConfig
from headrace.config.validation.foreign_keys import translate
from headrace.errors import UserError

NULL = "null"
"""TOML has no null: this word stands for it in files and overrides."""

PATH_KEYS = (
    "model.path", "model.critic_path", "task.path", "task.eval_path", "data.path", "data.eval_path",
    "data.lists",
    "environment.name", "algorithm.kl.reference_path", "transport.curve_keys",
)  # fmt: skip
JUDGE_PATH_KEYS = ("path", "chat_template")
PATH_OPTIONS = {
    "prm": ("model",), "pairwise": ("model", "anchors"), "ranker": ("model",),
    "bradley_terry": ("model",),
}  # fmt: skip
"""The options of a kind of rewards that are paths."""
_FILE_IN_NAME = re.compile(r"(agent:)?(.*?)((?<=\.py):\w+)?", re.S)
"""A path, alone or in the name of an environment."""
MAX_LINE_CHARACTERS = 1000
"""Characters of a mistake that are shown."""
Table = dict[str, Any]
C = TypeVar("C", bound=BaseModel)


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The configuration in a recipe with overrides on top; UserError for any mistake in them."""
    table, changed = _tables(path, overrides)
    if "objective" in table:
        raise UserError(f"{path}: a recipe of `headrace reward train`, `rank train` or `sft`")
    return build(table, source=str(path), overridden=changed)


def load_reward_model(path: Path, overrides: Sequence[str] = ()) -> RewardModelConfig:
    """The same of the recipe of a reward model."""
    table, changed = _tables(path, overrides)
    if "algorithm" in table:
        raise UserError(f"{path}: a recipe of `headrace train`")
    return validated(RewardModelConfig, _with_nulls(table), str(path), changed)


def _tables(path: Path, overrides: Sequence[str]) -> tuple[Table, dict[str, str]]:
    """The tables of a recipe with overrides on top, and what these changed."""
    table = read_toml(path)
    changed = merge_overrides(table, overrides)
    folders = {key: table[key] for key in ("root", "out") if isinstance(table.get(key), str)}
    table |= {key: os.path.expanduser(folder) for key, folder in folders.items()}
    resolve_paths(table, [path.resolve().parent, Path.cwd()])
    return table, changed


_NOT_TOML = (ValueError, RecursionError)
"""Errors of Python's TOML reader, also for numbers of thousands of digits and endless brackets."""


def read_toml(path: Path) -> Table:
    """The tables of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))  # editors of Windows mark it
    except FileNotFoundError as error:
        found = sorted(str(other) for other in path.parent.glob("*.toml"))
        near = difflib.get_close_matches(str(path), found, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else "; see recipes/ for examples"
        raise UserError(f"no recipe at {path}{hint}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    except _NOT_TOML as error:
        raise UserError(f"{path} is not valid TOML: {error}") from error


def parse_value(text: str) -> Any:
    """The TOML literal in a string, or the string itself where it is none."""
    try:
        return tomllib.loads(f"value = {text}")["value"] if "\n" not in text else text
    except _NOT_TOML:
        return text


def merge_overrides(table: Table, overrides: Sequence[str]) -> dict[str, str]:
    """Put `a.b.c=value` strings into a table; returns {dotted key: override as written}. A section
    that the table switches off with "null" is switched on again by setting one of its keys."""
    changed: dict[str, str] = {}
    for override in overrides:
        key, separator, text = override.partition("=")
        parts = key.strip().split(".")
        if not separator or not all(parts):
            raise UserError(f"override {override!r} is not of the form section.key=value")
        place = table
        for part in parts[:-1]:
            if place.get(part) == NULL:
                place[part] = {}
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise UserError(f"override {override!r}: {part} is a value, not a section")
        deep_merge(place, {parts[-1]: parse_value(text.strip())})
        changed[".".join(parts)] = override
    return changed


def deep_merge(base: Table, extra: Table) -> None:
    """Put `extra` over `base`, table by table."""
    for key, value in extra.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            deep_merge(base[key], value)
        else:
            base[key] = value


def resolve_paths(table: Table, folders: Sequence[Path]) -> None:
    """Make paths absolute that exist in a folder; others stay for the checks, or are hub names."""
    for place, key in _path_places(table):
        value = place.get(key)
        if not isinstance(value, str) or value == NULL:
            continue
        before, value, behind = _FILE_IN_NAME.fullmatch(value).groups("")  # type: ignore[union-attr]
        if key in ("name", "function") and not value.endswith(".py"):
            continue  # A built-in name, or PACKAGE:THING, whatever folders there are.
        for folder in folders:
            try:
                candidate = folder / Path(value).expanduser()
                if candidate.exists() or glob(str(candidate)):
                    place[key] = before + str(candidate.resolve()) + behind
                    break
            except (OSError, RuntimeError) as error:  # too long a name, a loop of links, no home
                shown = json.dumps(value)[:80]
                raise UserError(
                    f"{key} = {shown}: cannot be a path: {_one_line(str(error))[:80]}"
                ) from error


def _path_places(table: Table) -> Iterator[tuple[Table, str]]:
    """Yield tables and keys that may hold a path, in sections, judges, sources and environments."""
    for dotted in PATH_KEYS:
        place: Any = table
        *sections, key = dotted.split(".")
        for section in sections:
            place = place.get(section) if isinstance(place, dict) else None
        if isinstance(place, dict):
            yield place, key
    for options in _tables_in(table, "environment"):
        for place in (options, *_tables_in(table["environment"], "options")):
            things = [k for k, v in place.items() if str(v).partition(".py:")[2].isidentifier()]
            yield from ((place, key) for key in ("path", *things))
    for member in _tables_in(table.get("task"), "datasets"):
        yield from ((member, key) for key in ("path", "eval_path"))
    reward = table.get("reward")
    for judge in _tables_in(reward, "judges"):
        yield from ((judge, key) for key in JUDGE_PATH_KEYS)
    alone = [reward] if isinstance(reward, dict) else []
    for source in (*alone, *_tables_in(reward, "sources")):
        yield source, "function"
        if isinstance(functions := source.get("functions"), list):
            yield from ((entry, "name") for entry in functions if isinstance(entry, dict))
        if isinstance(own := source.get("options"), dict):
            names = PATH_OPTIONS.get(str(source.get("kind")), ())
            yield from ((own, name) for name in names)


def _tables_in(section: object, key: str) -> list[Table]:
    """The tables under the names of a table of tables; empty where that is none."""
    named = section.get(key) if isinstance(section, dict) else None
    return [t for t in named.values() if isinstance(t, dict)] if isinstance(named, dict) else []


def build(table: Table, *, source: str, overridden: dict[str, str] | None = None) -> RunConfig:
    """Validate tables; the first mistake becomes one line."""
    return validated(RunConfig, _with_kinds(_with_nulls(table)), source, overridden or {})


def validated(root: type[C], data: Table, source: str, overridden: dict[str, str]) -> C:
    """The configuration of a kind; UserError of one line for the first mistake in it."""
    try:
        return root.model_validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        problems.sort(key=lambda problem: problem["type"] != "extra_forbidden")
        line = _describe(root, problems[0], data, source, overridden)
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise UserError(_one_line(line) + more) from None


def _one_line(text: str) -> str:
    """A key may have any characters, and any number of them."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[:MAX_LINE_CHARACTERS])
    return shown + (" ..." if len(text) > MAX_LINE_CHARACTERS else "")


def _with_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_nulls(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_nulls(inner) if isinstance(inner, dict) else inner for inner in value]
    return None if value == NULL else value


def _with_kinds(data: Table) -> Table:
    """Slots of the algorithm that have a default kind need not name it."""
    algorithm = data.get("algorithm")
    for name, field in AlgorithmConfig.model_fields.items():
        kind = getattr(field.default, "kind", None)
        part = algorithm.get(name) if isinstance(algorithm, dict) else None
        if kind is not None and isinstance(part, dict):
            part.setdefault("kind", kind)
    return data


def _describe(
    root: type[BaseModel],
    problem: ErrorDetails,
    data: Table,
    source: str,
    overridden: dict[str, str],
) -> str:
    key = _dotted(problem["loc"], data)
    unknown = key.rpartition(".")[2]
    kind, context = problem["type"], problem.get("ctx", {})
    if kind == "extra_forbidden":
        inner = problem["input"]
        while isinstance(inner, dict) and inner:
            leaf, inner = next(iter(inner.items()))
            key, unknown = f"{key}.{leaf}", f"{unknown}.{leaf}"
    prefixes = [name for name in overridden if key == name or key.startswith(f"{name}.")]
    where = f"override {overridden[prefixes[0]]!r}" if prefixes else source
    if kind == "extra_forbidden":
        return f"{where}: unknown key {key}{_hint(root, key, unknown, data)}"
    if kind == "missing":
        return f"{where}: {key} is missing; it has no default"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        known = str(context.get("expected_tags", "")) or ", ".join(
            f"{kind_of(model)!r}" for model in _section(root, key, {})
        )
        return f"{where}: {key}.kind must be one of {known}"
    got = json.dumps(problem["input"], default=str)
    wanted = problem["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    wanted = wanted.replace("a valid integer", "an integer").replace("a valid ", "a ")
    return f"{where}: {key} = {got[:80]}: should be {wanted}"


def _dotted(location: tuple[int | str, ...], data: Table) -> str:
    """A pydantic location as a key of the file: tags of unions left out."""
    parts: list[str] = []
    place: Any = data
    for index, part in enumerate(location):
        last = index == len(location) - 1
        if isinstance(place, dict) and part not in place and not last:
            continue
        parts.append(str(part))
        if isinstance(place, dict):
            place = place.get(str(part))
        elif isinstance(place, list) and isinstance(part, int):
            place = place[part] if part < len(place) else None
    return ".".join(parts)


def _section(root: type[BaseModel], dotted: str, data: Table) -> list[type[BaseModel]]:
    """Model classes that may stand at a dotted place, the one that `kind` names first."""
    models: list[type[BaseModel]] = [root]
    place: Any = data
    named = False
    for part in dotted.split(".") if dotted else []:
        if isinstance(place, list) and part.isdigit():
            place = place[int(part)] if int(part) < len(place) else None
            continue
        place = place.get(part) if isinstance(place, dict) else None
        if named:
            # The name of an entry of a table of sections: what stands in it is known already.
            named = False
            continue
        found = [m.model_fields[part].annotation for m in models if part in m.model_fields]
        models = [inner for annotation in found for inner in models_of(annotation)]
        named = bool(models) and any(get_origin(annotation) is dict for annotation in found)
        tag = place.get("kind") if isinstance(place, dict) else None
        if any(kind_of(model) == tag for model in models):
            models = [model for model in models if kind_of(model) == tag]
    return models


def _hint(root: type[BaseModel], key: str, unknown: str, data: Table) -> str:
    """Return a hint: a peer's key, a neighbour, one elsewhere. `unknown`: what no section has."""
    parent, _, name = key.rpartition(".")
    models = _section(root, parent, data)
    neighbours = [field for model in models for field in model.model_fields]
    if root is RunConfig and (translation := translate(unknown)):
        return f"; {translation}"
    if near := difflib.get_close_matches(name, neighbours, n=1, cutoff=0.75):
        return f"; did you mean {f'{parent}.' if parent else ''}{near[0]}?"
    first = key.split(".")[0]
    if parent and first not in root.model_fields:
        sections = difflib.get_close_matches(first, list(root.model_fields), n=1, cutoff=0.75)
        if sections:
            return f"; did you mean {sections[0]}.{key.partition('.')[2]}?"
    everything = key_names(root)
    if key in everything:
        while parent and not models:  # A section of another kind, in one of this kind.
            parent = parent.rpartition(".")[0]
            models = _section(root, parent, data)
        return f"; it does not go with {parent}.kind = {kind_of(models[0])!r}"
    elsewhere = [other for other in everything if other.rsplit(".", 1)[-1] == name]
    near = elsewhere or difflib.get_close_matches(key, everything, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {' or '.join(near[:2])}?"
    known = ", ".join(dict.fromkeys(neighbours)) or "no keys"
    return f"; {parent or 'the root'} has {known}"
