"""Kinds of verifiers, one file each.

A kind's module has `Options`, a strict model whose fields are the kind's settings, and
`build(options)`, which gives the Verifier. Its verdicts pay a score from 0 to 1. `UNITS`, where a
module has it, says what the kind can score at once: by default ("trajectory",). With "line" its
verdicts have `lines`, one score for each of the item's `line_ends`; with "group" they have
`siblings`, one verdict for each of the item's. One that waits for others has a coroutine
(`judge_later`), and its child scores many items at a time. A row that cannot be judged (no
right answer, checks that nobody knows) raises ValueError with one line, which is that scoring's
error and never a score. To add a kind: write its file, and name it in KINDS.

A kind of FAST_PATH_KINDS also has `fast_path(options)`, which gives a function from an item to
whether it is right, by no more than a comparison of texts, or None where that takes more. Its
verdicts are right or wrong and nothing between, and the worker asks the fast path first.
"""

import importlib
import json
from types import ModuleType
from typing import Any

from pydantic import ValidationError

from headrace.config.sections.reward import SourceConfig
from headrace.errors import UserError

_FILES = {"math": "mathematics", "code": "program"}
"""Modules with another name than their kind."""
KINDS = (
    "math", "exact", "choice", "text", "instruction", "number", "sql", "gym", "code", "judge",
    "prm", "pairwise", "ranker", "box", "point", "ocr", "bradley_terry",
)  # fmt: skip
FAST_PATH_KINDS = frozenset({"math", "exact"})
"""Kinds that judge some responses by comparing texts."""


def load(kind: str) -> ModuleType:
    """The module of a kind; UserError for a name that is none."""
    if kind not in KINDS:
        raise UserError(f"reward kind {kind!r} is not known; there are: {', '.join(KINDS)}")
    return importlib.import_module(f"{__name__}.{_FILES.get(kind, kind)}")


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
