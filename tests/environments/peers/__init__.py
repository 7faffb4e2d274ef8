"""Things written for other libraries; they run in Pythons of their own, named in HEADRACE_PEERS."""

import os
import subprocess
from functools import cache
from pathlib import Path

import pytest

PEERS = Path(__file__).parent


@cache
def python_with(library: str) -> str:
    """A Python that has it, or a skipped test."""
    for python in filter(None, os.environ.get("HEADRACE_PEERS", "").split(":")):
        if not subprocess.run([python, "-c", f"import {library}"], capture_output=True).returncode:
            return python
    pytest.skip(f"no Python in HEADRACE_PEERS has {library}")
