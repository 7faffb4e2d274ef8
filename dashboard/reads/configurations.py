"""Configurations of several runs: which are the same but for the seed, and where others differ.

In: resolved configurations, as JSON has them. Out: text and frames. Pure.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from headrace.config.loading.keys import flattened
from headrace.config.sections.process import mask_password

ABSENT = "-"
"""Stands for a key that a configuration does not have."""
ELSEWHERE = (
    *("seed", "root", "stop", "checkpoint", "storage", "transport", "dashboard"),
    *("generator.cpus", "learner.cpus"),
)
"""Keys, and what is below them, that say how long a run went on, where it ran and what it kept, not
how it learned: runs that differ in these alone are seeds of one configuration."""
_OWN = ("transport.curve_keys",)
"""Keys that every run has to itself: no difference worth showing."""


def same_but_seed(config: Mapping[str, Any]) -> str:
    """A text that configurations share which differ in nothing but `ELSEWHERE`."""
    kept = {key: value for key, value in flattened(config).items() if not _is_elsewhere(key)}
    return json.dumps(kept, sort_keys=True)


def differences(configs: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """A row for each key that is not the same in all configurations, a column for each of them; the
    keys that say how a run learned come first. Values are text, a key that is not there is
    `ABSENT`, and passwords are masked."""
    flat = {name: flattened(config) for name, config in configs.items()}
    keys = dict.fromkeys(key for values in flat.values() for key in values)
    rows = {
        key: [_text(key, values) for values in flat.values()] for key in keys if key not in _OWN
    }
    differing = {key: row for key, row in rows.items() if len(set(row)) > 1}
    order = sorted(differing, key=_is_elsewhere)
    index = pd.Index(order, name="key")
    return pd.DataFrame([differing[key] for key in order], index=index, columns=list(flat))


def distinctions(configs: Sequence[Mapping[str, Any]], most: int = 2) -> list[str]:
    """The keys in which configurations differ, up to a limit, as a short text for each: the ends of
    keys with their values. Empty where they do not differ in how a run learns."""
    frame = differences({str(place): config for place, config in enumerate(configs)})
    keys = [str(key) for key in frame.index if not _is_elsewhere(str(key)) and key != "name"][:most]
    return [
        ", ".join(f"{key.rpartition('.')[2]} {frame[str(place)][key]}" for key in keys)
        for place in range(len(configs))
    ]


def _is_elsewhere(key: str) -> bool:
    return any(key == each or key.startswith(f"{each}.") for each in ELSEWHERE)


def _text(key: str, values: Mapping[str, Any]) -> str:
    if key not in values:
        return ABSENT
    value = values[key]
    if isinstance(value, str):
        return mask_password(value) if key == "storage.database" else value
    return json.dumps(value)
