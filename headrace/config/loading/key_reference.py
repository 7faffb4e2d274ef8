"""The page docs/configuration.md, made from the models themselves.

In: `RunConfig` and `RewardModelConfig`, the peers' names, the names that a dataset's columns may
have. Out: Markdown. `scripts/docs.py --write` writes it, and a test compares it with the file.
"""

import inspect
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import get_origin

from pydantic import BaseModel

from headrace.config.loading.keys import Key, keys, kind_of, models_of
from headrace.config.loading.recipe import NULL
from headrace.config.sections.reward_model import RewardModelConfig
from headrace.config.sections.run import RunConfig
from headrace.config.validation.foreign_keys import PEER_KEYS

KeysSoFar = dict[tuple[str, ...], tuple[str, str]]
"""Last name, type, default and meaning of the keys so far; the section and title of the first."""
HEAD = f"""\
# Configuration

<!-- Made by scripts/docs.py from headrace/config/. Do not edit: change the models instead. -->

A recipe is a TOML file. The command line overrides any key by its dotted name; values are TOML
literals, anything else is a string:

```
headrace train recipes/quickstart.toml learner.policy.lr=5e-5 generator.cpus=[0,1] name=trial
```

`{NULL}` (in a file the string `"{NULL}"`) unsets a key. Unknown keys, wrong types and values out of
range are errors with file, key and nearest match. Paths are looked up beside the recipe, then in
the working directory. `headrace config show RECIPE` prints every key with its value, `config check`
what is wrong, `config explain` what it means in numbers; a run's folder has `resolved.json`. A key
of several kinds of a section stands with the first of them. In parentheses: the default, then other
values or bounds.
"""

REWARD_MODELS = """\
# Recipes of reward models

What `headrace reward train`, `rank train` and `sft` read
([reward models](reward-kinds.md#train-a-reward-model)). `[model]` is the section above:
`model.path` is the start of a policy or pairwise model and the backbone of others,
`model.critic_path` a scalar model to continue.
"""


def page(prompt_keys: Sequence[str], answer_keys: Sequence[str]) -> str:
    """The whole page; the arguments are the column names that a dataset is searched for."""
    seen: KeysSoFar = {}
    parts = [HEAD, *_recipe("The root", RunConfig, seen)]
    parts += [_columns(prompt_keys, answer_keys), _peers(), REWARD_MODELS]
    parts += _recipe("The root of a reward model", RewardModelConfig, seen)
    return "\n".join(parts)


def _recipe(title: str, root: type[BaseModel], seen: KeysSoFar) -> list[str]:
    """All sections of one form of recipe; one that both forms have stands with the first."""
    parts = [_list(title, "", _own_keys(root), seen)]
    for name, field in root.model_fields.items():
        if root is RunConfig or name not in RunConfig.model_fields:
            parts += [part for m in models_of(field.annotation) for part in _section(name, m, seen)]
    return parts


def _section(
    name: str, model: type[BaseModel], seen: KeysSoFar, *, many: bool = False
) -> list[str]:
    """Keys of a section, its sub-sections after it, each kind apart."""
    kind, text = kind_of(model), inspect.getdoc(model) or ""
    title = f"`[[{name}]]`" if many else f"`[{name}]`"
    own = [key._replace(name=f"{name}.{key.name}") for key in _own_keys(model)]
    if kind:
        title = f'{title} with `{name}.kind` "{kind}"'
        text = " ".join([text, *(key.meaning for key in own if key.name == f"{name}.kind")])
        own = [key for key in own if key.name != f"{name}.kind"]
    parts = [_list(title, text, own, seen)] if own or kind else []
    for key, field in model.model_fields.items():
        for inner in models_of(field.annotation):
            form = get_origin(field.annotation)
            if form is dict and inner in models_of(
                RunConfig.model_fields[name.split(".")[0]].annotation
            ):
                continue  # A member of a mixture is a task, and stands there.
            inside = f"{name}.{key}.NAME" if form is dict else f"{name}.{key}"
            parts += _section(inside, inner, seen, many=form is tuple)
    return parts


def _own_keys(model: type[BaseModel]) -> list[Key]:
    return [key for key in keys(model) if "." not in key.name]


def _list(title: str, text: str, rows: list[Key], seen: KeysSoFar) -> str:
    """A section: the keys that no section before explains, then the names of the others."""
    lines = [f"## {title}", "", *([" ".join(text.split()), ""] if text else [])]
    own, others = list[str](), dict[str, list[str]]()
    for key in rows:
        section, _, last = key.name.rpartition(".")
        first = seen.setdefault((last, *key[1:]), (section, title))
        if first == (section, title):
            own.append(f"- `{key.name}` ({_form(key)}): {key.meaning}")
        elif first[0] != section:
            others.setdefault(first[0], []).append(f"`{key.name}`")
    lines += [*own, ""] if own else []
    for section, names in others.items():
        lines += [f"As in `[{section}]`: {', '.join(names)}.", ""]
    return "\n".join(lines)


def _form(key: Key) -> str:
    """The default of a key, then its type or other values as far as the default leaves open."""
    kind = key.type.replace('" or "', '", "').replace("tuple[float, Ellipsis]", "floats")
    if key.default == "null":
        kind = kind.replace(" or null", "")
    elif key.default != "required":
        kind = re.sub(r"^(bool|int|float|str|floats)\b(, )?", "", kind)
        kind = ", ".join(part for part in kind.split(", ") if part != key.default)
    default = "required" if key.default == "required" else f"`{key.default}`"
    return f"{default}, {kind}" if kind else default


def _columns(prompt_keys: Sequence[str], answer_keys: Sequence[str]) -> str:
    return "\n".join(
        [
            "## Columns of a dataset",
            "",
            "Without `task.prompt_key` and `task.answer_key` a row's first of these is taken. All "
            "columns but the prompt's, its images' and `id` are kept as `info`, for reward "
            "functions.",
            "",
            f"- prompt: {', '.join(f'`{name}`' for name in prompt_keys)}",
            f"- answer: {', '.join(f'`{name}`' for name in answer_keys)}",
            "- images: `images`, for each `<image>` or image part without its own, else before the "
            "user's first words: paths relative to the row's file, bytes, data URLs",
            "",
        ]
    )


def _peers() -> str:
    lines = [
        "## Names that other systems use",
        "",
        "In a recipe each is an error that says the same.",
        "",
    ]
    lines += ["| elsewhere | here |", "|---|---|"]
    names = defaultdict[str, list[str]](list)
    for name, peer in sorted(PEER_KEYS.items()):
        names[peer.ours].append(f"`{'rollout.n' if name == 'n' else name}` ({peer.peer})")
    lines += [f"| {', '.join(theirs)} | {ours} |" for ours, theirs in sorted(names.items())]
    return "\n".join([*lines, ""])
