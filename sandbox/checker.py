"""The process of a cell that runs the checks. The program is in another one.

In: the checks, over a socket that the program's process does not have. Out, over the same socket:
one line per check, `{"held": true}` or the error. The names that checks do not define are looked up
in the program, and what its functions return arrives as plain data (`plain_data.py`). A module of
the standard library that checks use without importing it is the checker's own.
"""

import ast
import builtins
import contextlib
import importlib
import json
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from sandbox.channel import ChannelEnd, read_frame

NOTHING_TO_CHECK = 64
"""Exit code where no checks came."""
MAX_ERROR = 500


def examine(orders: socket.socket, link: socket.socket) -> int:
    """Run the checks that come; returns the exit code."""
    request = read_frame(orders)
    if request is None:
        return NOTHING_TO_CHECK
    peer = ChannelEnd(
        link, {"call": lambda function, *values, **named: function(*values, **named)},
        only_functions=True,
    )  # fmt: skip
    space: dict[str, Any] = {"__name__": "checks"}
    trouble = _error_of(lambda: _prepare(request, peer, space))
    for check in request["each"]:
        error = trouble or _error_of(partial(_run, check, space))
        line = {"held": True} if error is None else {"held": False, "error": error}
        orders.sendall(json.dumps(line).encode() + b"\n")
    return 0


def _prepare(request: dict[str, Any], peer: ChannelEnd, space: dict[str, Any]) -> None:
    """Bind the program's names, run the setup, then bind the names that stay its own."""
    texts = [request["setup"], *request["each"]]
    wanted = sorted(foreign_names(texts))
    # What it says it has counts only for what was asked: it would like to have `__builtins__`.
    for name in sorted(set(wanted) & set(peer.ask("have", wanted))):
        space[name] = (
            importlib.import_module(name) if _is_module(name, texts) else peer.ask("global", name)
        )
    _run(request["setup"], space)
    for name in request["names"]:
        space[name] = peer.ask("global", name)


def foreign_names(texts: Iterable[str]) -> set[str]:
    """Return names that code uses, nowhere binds and Python lacks; none if it is invalid."""
    used: set[str] = set()
    bound: set[str] = set(dir(builtins))
    for node in nodes_of(texts):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                used.add(name)
            case ast.Name(id=name):
                bound.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                bound.add(name)
            case ast.alias(name=name, asname=other):
                bound.add(other or name.partition(".")[0])
            case ast.ExceptHandler(name=str(name)):
                bound.add(name)
    return used - bound


def nodes_of(texts: Iterable[str]) -> Iterator[ast.AST]:
    """Yield the syntax nodes of the texts that parse."""
    for text in texts:
        with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            yield from ast.walk(ast.parse(text))


def _is_module(name: str, texts: Iterable[str]) -> bool:
    """Return whether checks mean Python's module of this name.

    Were it the program's, that would measure itself (mbpp/596 asks for `sys.getsizeof`)."""
    wholes = (node.value for node in nodes_of(texts) if isinstance(node, ast.Attribute))
    used = (whole.id for whole in wholes if isinstance(whole, ast.Name))
    return name in sys.stdlib_module_names and name in used


def _run(text: str, space: dict[str, Any]) -> None:
    exec(compile(text, "<checks>", "exec"), space)


def _error_of(action: Callable[[], object]) -> str | None:
    try:
        action()
    except BaseException as error:  # a check that ends in any way but its last line does not hold
        text = f"{type(error).__name__}: {error}".rstrip(": ")
        return text[:MAX_ERROR]
    return None
