"""Two ends of a link ask each other."""

import operator
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sandbox.channel import ChannelEnd, ProgramEndedError, ProgramError, RemoteObject, frame
from sandbox.checker import foreign_names


class Box:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = object.__hash__


def call(function: Callable[..., Any], *values: Any, **named: Any) -> Any:
    return function(*values, **named)


@pytest.fixture
def asking() -> Iterator[ChannelEnd]:
    left, right = socket.socketpair()

    def appended(values: list[int]) -> None:
        values.append(4)

    def raising(kind: str) -> None:
        raise {
            "value": ValueError, "stop": StopIteration, "exit": SystemExit, "close": GeneratorExit,
        }[kind]("why")  # fmt: skip

    makers = {"box": Box, "append": appended, "raise": raising, "squares": squares, "apply": call}
    operations: dict[str, Callable[..., Any]] = {
        "call": call, "make": lambda name: makers[name], "get": getattr, "set": setattr,
        "iter": iter, "next": next, "len": len, "equal": lambda a, b: a == b,
    }  # fmt: skip
    thread = threading.Thread(target=ChannelEnd(right, operations).serve)
    thread.start()
    yield ChannelEnd(left, {"call": call}, only_functions=True)
    left.close()
    thread.join()
    right.close()


def squares(count: int) -> Iterator[int]:
    yield from (n * n for n in range(count))


def test_objects_stay_where_they_are(asking: ChannelEnd) -> None:
    box = asking.ask("make", "box")(3)
    assert isinstance(box, RemoteObject)
    assert box.value == 3
    box.value = [1]
    assert box.value == [1]
    assert box != 3, "its own idea of equality does not count"
    assert box == box
    with pytest.raises(TypeError):
        operator.lt(box, 4)


def test_arguments_change_as_they_would_in_one_process(asking: ChannelEnd) -> None:
    values = [1, 2]
    asking.ask("make", "append")(values)
    assert values == [1, 2, 4]


def test_iterators_and_functions_cross_the_link(asking: ChannelEnd) -> None:
    assert list(asking.ask("make", "squares")(4)) == [0, 1, 4, 9]
    assert asking.ask("make", "apply")(lambda x: x + 1, 41) == 42


def test_exceptions_arrive_as_themselves_where_both_sides_have_them(asking: ChannelEnd) -> None:
    raising = asking.ask("make", "raise")
    with pytest.raises(ValueError, match="why"):
        raising("value")
    with pytest.raises(ProgramError, match="SystemExit: why"):
        raising("exit")


def test_what_would_end_a_loop_of_the_asker_is_an_error(asking: ChannelEnd) -> None:
    raising = asking.ask("make", "raise")
    for kind, name in (("stop", "StopIteration"), ("close", "GeneratorExit")):
        with pytest.raises(RuntimeError, match=f"raised {name}"):
            list(map(raising, [kind]))
    with pytest.raises(StopIteration):
        next(asking.ask("make", "squares")(0))


def test_only_functions_are_handed_over(asking: ChannelEnd) -> None:
    with pytest.raises(TypeError, match="cannot hand a Box"):
        asking.ask("make", "apply")(Box(1))


def test_a_function_that_was_handed_over_can_only_be_called() -> None:
    left, right = socket.socketpair()
    tests, program = ChannelEnd(left, {"call": call}, only_functions=True), ChannelEnd(right, {})
    secret = "secret"
    sent = tests._export(lambda: secret)
    thread = threading.Thread(target=tests.serve)
    thread.start()
    function = program._find(sent)
    with pytest.raises(AttributeError):
        assert function.__globals__
    with pytest.raises(KeyError):
        program.ask("get", function, "__code__")
    right.close()
    thread.join()
    left.close()


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\x00\x00\x00\x02[]",
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x03{x}",
        b"\x00\x00\x00\x09{}",
    ],
)
def test_nonsense_on_the_link_ends_the_program(said: bytes) -> None:
    left, right = socket.socketpair()
    right.sendall(said)
    right.shutdown(socket.SHUT_WR)
    with pytest.raises(ProgramEndedError):
        ChannelEnd(left, {}).ask("call")
    left.close()
    right.close()


def test_an_answer_to_something_else_does_not_let_an_object_answer_anew() -> None:
    left, right = socket.socketpair()
    object_7 = ["mine", 7]
    replies = [
        {"value": object_7}, {"value": 1.0}, {"value": 0, "changed": {"0": object_7}},
        {"value": object_7}, {"value": 2.0},
    ]  # fmt: skip
    for reply in replies:
        right.sendall(frame(reply))
    peer = ChannelEnd(left, {})
    number = peer.ask("call", "f")
    assert float(number) == 1
    assert peer.ask("call", "g") == 0
    assert float(number) == 1
    assert peer.ask("call", "f") is number, "handed over again"
    assert float(number) == 2
    left.close()
    right.close()


def test_names_of_the_program_are_those_that_nobody_else_defines() -> None:
    text = """
import math, os.path as paths
from a import b as c
def check(candidate, limit=3):
    for each in sorted(given):
        assert candidate(each) == math.floor(helper(each)), c
try:
    Node(1)
except KeyError as error:
    total = error
"""
    assert foreign_names([text]) == {"given", "helper", "Node"}
    assert foreign_names(["not python (", "f(x)"]) == {"f", "x"}
