"""The configuration of runs that nobody trains: a script plays their processes, or writes records.

In: what such a run has of its own. Out: a configuration; nothing of the model but its tokenizer is
ever read.
"""

from typing import Any

from headrace.config.load import deep_merge
from headrace.config.run import RunConfig
from headrace.install import ROOT

MODEL = ROOT / "recipes" / "models" / "chain-sums-cold"


def stream(**own: Any) -> RunConfig:
    """A stream of windows with a critic, on the demonstration's task and model; `own`: keys and
    tables of a recipe that stand over its own."""
    table: dict[str, Any] = {
        "model": {"path": str(MODEL)},
        "task": {"kind": "chain_sums"},
        "algorithm": {"advantages": {"kind": "egae"}, "value": {}},
        "schedule": {"mode": "streaming"},
    }
    deep_merge(table, own)
    return RunConfig.model_validate(table)
