"""A program does not pass by answering differently each time; one that is honest still passes."""

import asyncio

import pytest

from sandbox.channel import MAX_ITEMS
from sandbox.escape_tests import escapes
from sandbox.interpreter import interpreter_for
from sandbox.isolation.factory_client import CellFactoryClient
from sandbox.limits import Checks, Limits, Program, ProgramResult
from sandbox.pool import Sandbox
from tests.sandbox.layers import each_layer, need

LIES = [name for name in escapes.names() if name.startswith("lie_")]


def judge(layer: str, *programs: Program, packages: tuple[str, ...] = ()) -> list[ProgramResult]:
    need(layer)

    async def all_of_them() -> list[ProgramResult]:
        python = interpreter_for(None, packages)
        async with Sandbox(Limits(), parallel=1, layer=layer, python=python) as sandbox:
            return [await sandbox.run(program) for program in programs]

    return asyncio.run(all_of_them())


def test_there_are_many() -> None:
    assert len(LIES) >= 12


@each_layer
def test_every_lie_is_held(layer: str) -> None:
    need(layer)

    async def outcomes() -> dict[str, tuple[str, ...]]:
        factory = await CellFactoryClient.start(None)
        try:
            done = [await escapes.attempt(name, layer, factory) for name in LIES]
        finally:
            await factory.close()
        # A lie has to be told: nothing else may have ended the program.
        assert {each.result.status for each in done} == {"failed"}
        return {each.name: each.escaped for each in done if each.escaped}

    assert asyncio.run(outcomes()) == {}


STACK = """
class Stack:
    made = 0

    def __init__(self, *items):
        self.items = list(items)
        self.below = None
        Stack.made += 1

    def push(self, item):
        self.items.append(item)
        return self

    def __len__(self):
        return len(self.items) + (len(self.below) if self.below else 0)

    def __str__(self):
        return "-".join(map(str, self.items))

    def __iter__(self):
        return iter(self.items)

    def __float__(self):
        return float(sum(self.items))

    def __getitem__(self, place):
        return self.items[place]


class Down:
    def __init__(self, start):
        self.start = start

    def __iter__(self):
        self.left = self.start
        return self

    def __next__(self):
        if self.left == 0:
            raise StopIteration
        self.left -= 1
        return self.left + 1


def count():
    number = 0
    while True:
        yield number
        number += 1


def squares(n):
    return (i * i for i in range(n))


def put(stack, item):
    stack.push(item)


def pair():
    made = Stack()
    return made.push, made


shared = Stack()


def share(item):
    shared.push(item)
    return shared
"""


@pytest.mark.parametrize(
    "check",
    [
        # What a check calls into may answer anew: by a method, as an argument, by assignment.
        "s = Stack()\nassert not s and len(s) == 0\ns.push(3)\nassert s and len(s) == 1\n"
        "s.push(4)\nassert (str(s), list(s), float(s), s[1]) == ('3-4', [3, 4], 7.0, 4)",
        "s = Stack(1)\nassert len(s) == 1\nput(s, 2)\nassert len(s) == 2 and list(s) == [1, 2]",
        "s = Stack(1)\nassert len(s) == 1\ns.items = [1, 2, 3]\nassert len(s) == 3",
        "s = Stack(1)\npush = s.push\nassert len(s) == 1\npush(2)\nassert len(s) == 2",
        # Objects that met share their fate; so do an object and its parts.
        "s, t = Stack(1), Stack(2)\ns.below = t\nassert len(s) == 2\nt.push(3)\nassert len(s) == 3",
        "s, t = Stack(1), Stack(2)\ns.below = t\nb = s.below\nassert len(b) == 1\ns.below.push(3)\n"
        "assert len(b) == 2 and b is t",
        # What has a name, or is handed over again, may have changed with any call.
        "assert len(shared) == 0\nassert len(share(1)) == 1\nassert len(shared) == 1\n"
        "assert len(share(2)) == 2",
        "push, view = pair()\nassert len(view) == 0\npush(1)\nassert len(view) == 1",
        "before = Stack.made\nStack()\nassert Stack.made == before + 1",
        # Iterators go on where they were; those that begin anew begin anew.
        "from itertools import islice\nc = count()\nassert list(islice(c, 3)) == [0, 1, 2]\n"
        "assert list(islice(c, 2)) == [3, 4]\nassert next(c) == 5",
        "g = squares(4)\nassert next(g) == 0\nassert list(g) == [1, 4, 9]\nassert list(g) == []",
        "g = squares(4)\nassert list(zip(g, g)) == [(0, 1), (4, 9)]",
        "g = squares(1)\nnext(g)\ntry:\n    next(g)\nexcept StopIteration:\n    pass\n"
        "else:\n    raise AssertionError",
        "d = Down(3)\nassert list(d) == [3, 2, 1]\nassert list(d) == [3, 2, 1] and 2 in d",
        "d = Down(3)\nfor each in d:\n    break\nassert list(d) == [3, 2, 1]",
        "s = Stack(1, 2)\nassert [a + b for a in s for b in s] == [2, 3, 3, 4]",
        "import math\nassert math.sqrt(float(Stack(4, 5))) == 3",
    ],
)  # fmt: skip
def test_an_honest_program_passes(check: str) -> None:
    (result,) = judge("namespaces", Program(STACK, checks=Checks((check,))))
    assert (result.status, result.errors) == ("ok", ())


def test_an_object_that_others_are_called_beside_does_not_answer_anew() -> None:
    """Only a call into it lets it: not one of its maker, nor of another object."""
    source = """
class Number:
    said = 0
    def __float__(self):
        self.said += 1
        return float(self.said)
    def touch(self): pass
def number(): return Number()
"""
    checks = Checks(
        ("a, b = number(), number()\nassert float(a) == float(b) == 1\nb.touch()\nnumber()\n"
         "assert (float(a), float(b)) == (1, 2)",)
    )  # fmt: skip
    (result,) = judge("namespaces", Program(source, checks=checks))
    assert (result.status, result.errors) == ("ok", ())


def test_an_endless_iterator_is_cut_with_an_error() -> None:
    source = "def f():\n    while True: yield 1"
    (result,) = judge("namespaces", Program(source, checks=Checks(("list(f())",))))
    assert result.errors == (f"ProgramError: an iterator goes on after {MAX_ITEMS} items",)


def test_a_module_of_the_tests_is_not_the_programs() -> None:
    """mbpp/596: whoever brings `sys` along says what size is right."""
    test = "assert tuple_size(('A', 1)) == sys.getsizeof(('A', 1))"
    lie = "class sys:\n    getsizeof = lambda x: 0\ndef tuple_size(x): return 0"
    honest = "import sys\ndef tuple_size(x): return sys.getsizeof(x)"
    own = "class S: queue = [3]\ndef queue(x): return x.queue"
    lied, passed, named = judge(
        "namespaces",
        Program(lie, checks=Checks((test,))),
        Program(honest, checks=Checks((test,))),
        Program(own, checks=Checks(("assert queue(S()) == S().queue.copy()",))),
    )
    assert (lied.status, passed.status, named.status) == ("failed", "ok", "ok")


def test_no_hook_of_a_library_reads_the_memory_of_the_tests() -> None:
    """numpy believes an address; the tests' process has the program's layout, as forks do."""
    source = """
class Array:
    @property
    def __array_interface__(self):
        data = (id(None), False)
        return {"version": 3, "shape": (1,), "typestr": "<u8", "data": data}
def f(): return Array()
"""
    checks = Checks(("import numpy\nassert numpy.asarray(f()).dtype == numpy.uint64",))
    (result,) = judge("namespaces", Program(source, checks=checks), packages=("numpy",))
    assert result.status == "failed"
