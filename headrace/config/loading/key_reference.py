"""The page docs/configuration.md, made from the models themselves.

In: `RunConfig` and `RewardModelConfig`, the peers' names, the names that a dataset's columns may
have. Out: Markdown. `scripts/docs.py --write` writes it, and a test compares it with the file.
"""

import inspect
from collections.abc import Sequence
from typing import get_origin

from pydantic import BaseModel

from headrace.config.loading.keys import Key, keys, kind_of, models_of
from headrace.config.loading.recipe import NULL
from headrace.config.sections.reward_model import RewardModelConfig
from headrace.config.sections.run import RunConfig
from headrace.config.validation.foreign_keys import PEER_KEYS

HEAD = f"""\
# Configuration

<!-- Made by scripts/docs.py from headrace/config/. Do not edit: change the models instead. -->

A recipe is a TOML file. Any key can be overridden on the command line by its dotted name; values
are TOML literals, and what is none is a string:

```
headrace train recipes/quickstart.toml learner.policy.lr=5e-5 generator.cpus=[0,1] name=trial
```

`{NULL}` (on the command line, or as the string `"{NULL}"` in a file) unsets a key that
has a default. Unknown keys, wrong types and values out of range are errors that name the file, the
key and the nearest match. Paths of models and datasets are looked up beside the recipe, then in the
working directory. `headrace config show RECIPE` prints every key with its value, `config check`
what is wrong, `config explain` what it means in numbers. The resolved configuration of a run stands
in its folder as `resolved.json`.
"""

REWARD_MODELS = """\
# Recipes of reward models

What `headrace reward train` reads, see [reward models](reward-kinds.md#train-a-reward-model). `[model]` is the section
above: `model.path` is what a pairwise model starts from and the backbone of the others,
`model.critic_path` a scalar model to go on from.
"""


def page(prompt_keys: Sequence[str], answer_keys: Sequence[str]) -> str:
    """The whole page; the arguments are the column names that a dataset is searched for."""
    parts = [HEAD, _table("The root", "", _own_keys(RunConfig))]
    for name, field in RunConfig.model_fields.items():
        for model in models_of(field.annotation):
            parts += _section(name, model)
    parts += [_columns(prompt_keys, answer_keys), _peers(), *_reward_models()]
    return "\n".join(parts)


def _reward_models() -> list[str]:
    """The recipe of a reward model; its `[model]` is that of any other."""
    parts = [REWARD_MODELS, _table("The root of a reward model", "", _own_keys(RewardModelConfig))]
    for name, field in RewardModelConfig.model_fields.items():
        if name != "model":
            parts += [part for m in models_of(field.annotation) for part in _section(name, m)]
    return parts


def _section(name: str, model: type[BaseModel], *, many: bool = False) -> list[str]:
    """Tables of a section, its sub-sections after it, each kind apart."""
    kind = kind_of(model)
    header = f"`[[{name}]]`" if many else f"`[{name}]`"
    title = f'{header} with kind = "{kind}"' if kind else header
    own = [key._replace(name=f"{name}.{key.name}") for key in _own_keys(model)]
    parts = [_table(title, inspect.getdoc(model) or "", own)] if own else []
    for key, field in model.model_fields.items():
        for inner in models_of(field.annotation):
            form = get_origin(field.annotation)
            if form is dict and inner in models_of(
                RunConfig.model_fields[name.split(".")[0]].annotation
            ):
                continue  # A member of a mixture is a task, and stands there.
            inside = f"{name}.{key}.NAME" if form is dict else f"{name}.{key}"
            parts += _section(inside, inner, many=form is tuple)
    return parts


def _own_keys(model: type[BaseModel]) -> list[Key]:
    return [key for key in keys(model) if "." not in key.name]


def _table(title: str, text: str, rows: list[Key]) -> str:
    lines = [f"## {title}", ""]
    if text:
        lines += [" ".join(text.split()), ""]
    lines += ["| key | type | default | meaning |", "|---|---|---|---|"]
    lines += [
        f"| `{key.name}` | {_cell(key.type)} | `{key.default}` | {_cell(key.meaning)} |"
        for key in rows
    ]
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _columns(prompt_keys: Sequence[str], answer_keys: Sequence[str]) -> str:
    return "\n".join(
        [
            "## Columns of a dataset",
            "",
            "Without `task.prompt_key` and `task.answer_key` the first of these that a row has is "
            "taken (a dot reaches into a nested column). All columns but the prompt's are kept as "
            "`info` and handed to reward functions.",
            "",
            f"- prompt: {', '.join(f'`{name}`' for name in prompt_keys)}",
            f"- answer: {', '.join(f'`{name}`' for name in answer_keys)}",
            "- images: `images`, for each `<image>` of the prompt or image part without its own; "
            "before the user's first words where messages have neither. Paths are relative to the "
            "row's file; bytes, data URLs and objects of Hugging Face datasets are taken too",
            "",
        ]
    )


def _peers() -> str:
    lines = [
        "## Names that other systems use",
        "",
        "Written in a recipe, each of these is an error that says the same as this table.",
        "",
        "| elsewhere | whose | here |",
        "|---|---|---|",
    ]
    lines += [
        f"| `{'rollout.n' if name == 'n' else name}` | {peer.peer} | {peer.ours} |"
        for name, peer in sorted(PEER_KEYS.items())
    ]
    return "\n".join([*lines, ""])
