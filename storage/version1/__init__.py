"""Record format 1: its shapes, and its runs told in today's records."""

from storage.version1.shapes import (
    DIAGNOSTIC_NAMES,
    AnyRecord,
    BatchReturned,
    BatchTaken,
    LineageBegan,
    TokensDropped,
    UpdateCommitted,
    WindowTrained,
)
from storage.version1.translator import Settings, Translator, settings_of

__all__ = [
    "DIAGNOSTIC_NAMES",
    "AnyRecord",
    "BatchReturned",
    "BatchTaken",
    "LineageBegan",
    "Settings",
    "TokensDropped",
    "Translator",
    "UpdateCommitted",
    "WindowTrained",
    "settings_of",
]
