"""Kinds of verifiers, one file each.

A kind's module has `Options`, a strict model whose fields are the kind's settings, and
`build(options)`, which gives the Verifier. Its verdicts pay a score from 0 to 1. `UNITS`, where a
module has it, says what the kind can score at once: by default ("trajectory",). With "line" its
verdicts have `lines`, one score for each of the item's `line_ends`; with "group" they have
`siblings`, one verdict for each of the item's. One that waits for others has a coroutine
(`verifier.waiting`), and its child scores many items at a time. A row that cannot be judged (no
right answer, checks that nobody knows) raises ValueError with one line, which is that scoring's
error and never a score. To add a kind: write its file, and name it in KINDS. A kind of AT_A_GLANCE
also has `glance(options)`, which gives a function from an item to whether it is right, by no more
than a comparison of texts, or None where that takes more; its Verifier's verdicts are right or
wrong and nothing between, and the worker asks the glance first.
"""

import importlib
import json
from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import Any

from pydantic import ValidationError

from headrace.config.sections.reward import SourceConfig
from headrace.errors import UserError

KINDS: Mapping[str, str] = MappingProxyType(
    {
        "math": "rewards.kinds.mathematics",
        "exact": "rewards.kinds.exact",
        "choice": "rewards.kinds.choice",
        "text": "rewards.kinds.text",
        "instruction": "rewards.kinds.instruction",
        "number": "rewards.kinds.number",
        "sql": "rewards.kinds.sql",
        "gym": "rewards.kinds.gym",
        "code": "rewards.kinds.program",
        "judge": "rewards.kinds.judge",
        "prm": "rewards.kinds.prm",
        "pairwise": "rewards.kinds.pairwise",
        "ranker": "rewards.kinds.ranker",
        "box": "rewards.kinds.box",
        "point": "rewards.kinds.point",
        "ocr": "rewards.kinds.ocr",
        "bradley_terry": "rewards.kinds.bradley_terry",
    }
)
"""Module of each kind, by its name."""
FAST_PATH_KINDS = frozenset({"math", "exact"})
"""Kinds that judge some responses at a glance."""


def load(kind: str) -> ModuleType:
    """The module of a kind; UserError for a name that is none."""
    if kind not in KINDS:
        raise UserError(f"reward kind {kind!r} is not known; there are: {', '.join(KINDS)}")
    return importlib.import_module(KINDS[kind])


def read_options(source: SourceConfig, module: ModuleType) -> Any:
    """Read a source's options, with `answer_marker`; UserError for an unknown one."""
    told = dict(source.options)
    if source.answer_marker is not None:
        told["answer_marker"] = source.answer_marker
    try:
        return module.Options.model_validate_json(json.dumps(told), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"])) or "options"
        known = ", ".join(module.Options.model_fields) or "none"
        raise UserError(
            f"option {name} of kind {source.kind!r}: {first['msg'].lower()} (it knows {known})"
        ) from None


def model_folder(given: object, kind: str, model: str) -> str:
    """Return `options.model`; without it a UserError that says which `model` is needed."""
    if isinstance(given, str):
        return given
    raise UserError(
        f"kind {kind!r} needs a {model}: name its folder in options.model; "
        "`headrace reward train` makes one, `headrace rank train` a ranker"
    )
