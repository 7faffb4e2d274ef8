"""What a source's kind is told: `[reward.sources.NAME.options]`.

In: a source and its kind's module. Out: the module's `Options`; UserError where they are none.
"""

import json
from types import ModuleType
from typing import Any

from pydantic import ValidationError

from headrace.config.reward import SourceConfig
from headrace.errors import UserError


def read_options(source: SourceConfig, module: ModuleType) -> Any:
    """The options of a source, `answer_marker` among them where the source has one."""
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
