"""`headrace sandbox run FILE`: one program in the sandbox, to try to escape from it."""

import argparse
import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headrace.errors import UserError, visible


def run(arguments: argparse.Namespace) -> int:
    """Run a file and print its result, as text or as one JSON object."""
    path: Path = arguments.file
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as a program: {error}") from error
    if arguments.seconds <= 0:
        raise UserError("--seconds has to be more than 0")
    from sandbox.interpreter import interpreter_for

    python = interpreter_for(arguments.python, arguments.package)
    result = asyncio.run(_run(source, arguments.seconds, python))
    if arguments.json:
        print(json.dumps(result))
        return 0
    for name, value in result.items():
        shown = "\n" + str(value).rstrip("\n") if name in ("stdout", "stderr") and value else value
        print(visible(f"{name:<10} {shown}"))
    return 0


async def _run(source: str, seconds: float, python: Any) -> dict[str, Any]:
    from sandbox.limits import Limits, Program
    from sandbox.pool import Sandbox

    async with Sandbox(Limits(seconds=seconds), parallel=1, python=python) as sandbox:
        result = asdict(await sandbox.run(Program(source)))
    result["seconds"] = round(result["seconds"], 3)
    fields = ("status", "exit_code", "stdout", "stderr", "seconds", "cut")
    return {"layer": sandbox.layer, **{name: result[name] for name in fields}}
