"""Other packages' functions by name: "module:function", imported when they are needed.

This is how the command line reaches storage, exports and benchmarks without importing them.
"""

import importlib
from typing import Any

from headrace.errors import UserError

RUN_SUMMARY = "storage.queries:run_summary"
RUN_LIST = "storage.queries:list_runs"
EVALUATIONS = "storage.queries:evaluations"
EXPORT = "storage.queries:export"
CHECK_FUNCTION = "rewards.preflight:check_function"
COLUMNS = "tasks.source:info_columns"


def resolve(name: str) -> Any:
    """The object that `module:function` names; UserError where its package is not installed."""
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and module_name.startswith(error.name):
            raise UserError(
                f"{module_name} is not installed; run `headrace doctor` to see what is"
            ) from error
        raise
    found = getattr(module, attribute, None)
    if found is None:
        raise UserError(f"{module_name} has no {attribute}; the installation is of mixed versions")
    return found
