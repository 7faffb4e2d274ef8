"""The process of a cell that runs the program."""

import builtins
import operator
import socket
import sys
import types
from collections.abc import Callable
from typing import Any

from sandbox.channel import ChannelEnd

NAME = "program.py"
vars(builtins).update(exit=sys.exit, quit=sys.exit)  # as `site` would, which does not run here


def run(source: str) -> int:
    """Run the source as `python program.py` would; returns the exit code unless it exits."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    try:
        exec(compile(source, NAME, "exec"), module.__dict__)
    except SystemExit:
        raise
    except BaseException as error:  # the program's end, whatever it is
        _show(error, source)
        return 1
    return 0


def answer(source: str, link: socket.socket) -> int:
    """Load the source like a module, then do what the checker asks until it has done."""
    module = types.ModuleType("program")
    sys.modules["program"] = module
    operations: dict[str, Callable[..., Any]] = {
        "have": lambda names: [name for name in names if name in module.__dict__],
        "global": lambda name: module.__dict__[name],
        "call": lambda function, *values, **named: function(*values, **named),
        "get": getattr, "set": setattr, "item": operator.getitem, "put": operator.setitem,
        "iter": iter, "next": next, "len": len, "bool": bool, "str": str, "float": float,
        "int": int, "equal": operator.eq,
    }  # fmt: skip
    try:
        exec(compile(source, NAME, "exec"), module.__dict__)
    except BaseException as error:  # told to whoever asks
        _show(error, source)
        reason = f"{type(error).__name__}: {error}"

        def refuse(*_: Any, **__: Any) -> Any:
            raise RuntimeError(f"the program does not load: {reason}")

        operations = dict.fromkeys(operations, refuse)
    ChannelEnd(link, operations, before_reply=sys.stdout.flush).serve()
    return 0


def _show(error: BaseException, source: str) -> None:
    import linecache
    import traceback

    lines = [line + "\n" for line in source.splitlines()]
    linecache.cache[NAME] = (len(source), None, lines, NAME)
    trace = error.__traceback__
    traceback.print_exception(type(error), error, trace and trace.tb_next)
