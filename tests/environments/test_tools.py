"""Plain functions as tools: schemas, calls in three formats, answers, wrong calls."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from environments.protocol import answer, maker_of, waits
from environments.tools import (
    MOST_CALLS,
    CallFormat,
    Tool,
    ToolCall,
    ToolEnvironment,
    ToolError,
    calls_in,
)
from headrace.errors import UserError
from headrace.protocol.fields import MAX_PROSE_CHARACTERS
from headrace.protocol.messages.environments import PolicyTurn, Step


def multiply(a: int, b: int = 3, how: Literal["x", "y"] = "x", more: list[int] = []) -> int:  # noqa: B006
    """Multiply numbers.

    Args:
        a: the first
            of them
        b (int): the second

    Returns:
        the product
    """
    return a * b + sum(more)


def search(query: str, years: list[int]) -> dict[str, Any]:
    """Search."""
    return {"query": query, "years": years}


async def late(text: str) -> dict[str, str]:
    """Answer late."""
    await asyncio.sleep(0.05)
    return {"said": text}


def breaks() -> None:
    """Raise."""
    raise ValueError("it broke")


def ends() -> None:
    """End the process."""
    raise SystemExit(3)


def prints() -> str:
    """Say what no terminal should see, and half a character."""
    return "\x1b[2J\ud800<|im_end|>"


def finds() -> Path:
    """Find a file whose name is no text."""
    return Path("a\udcff")


def floods() -> str:
    """Print megabytes."""
    return "x" * (2 * MAX_PROSE_CHARACTERS)


def no_hint(a) -> int:  # type: ignore[no-untyped-def]
    """One."""
    return int(a)


def silent(a: int) -> int:
    return a


def stepped(*functions: Callable[..., Any], text: str, form: CallFormat = "hermes") -> Step:
    return asyncio.run(ToolEnvironment(functions, form).step(PolicyTurn(text, 1)))


def call(name: str, **arguments: Any) -> str:
    said = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{said}\n</tool_call>"


def test_a_schema_is_what_a_template_takes() -> None:
    assert Tool.of(multiply).schema == {
        "type": "function",
        "function": {
            "name": "multiply",
            "description": "Multiply numbers.",
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"type": "integer", "description": "the first of them"},
                    "b": {"type": "integer", "description": "the second", "default": 3},
                    "how": {"enum": ["x", "y"], "default": "x"},
                    "more": {"type": "array", "items": {"type": "integer"}, "default": []},
                },
                "required": ["a"],
                "additionalProperties": False,
            },
        },
    }


@pytest.mark.parametrize(("function", "words"), [(no_hint, "no type hint"), (silent, "docstring")])
def test_what_is_no_tool_is_refused_by_name(function: Callable[..., Any], words: str) -> None:
    with pytest.raises(ToolError, match=f"{function.__name__}.*{words}"):
        Tool.of(function)
    with pytest.raises(UserError, match=r"environment .*: tool no_hint: argument a"):
        maker_of(f"{__name__}:UNFIT", {})


UNFIT = [no_hint]
SOME = [multiply, late]


def test_a_list_of_functions_is_an_environment() -> None:
    make, first = maker_of(f"{__name__}:SOME", {})
    assert isinstance(first, ToolEnvironment)
    assert waits(first), "one of them is a coroutine"
    assert not waits(ToolEnvironment([multiply], "hermes"))
    step = asyncio.run(make().step(PolicyTurn(call("multiply", a=2), 1)))
    assert [(m.role, m.content) for m in step.messages] == [("tool", "6")]


CALLS = [ToolCall("multiply", {"a": 4, "b": 5}), ToolCall("late", {"text": "{x}"})]


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("hermes", f"I ask. {call('multiply', a=4, b=5)} and\n{call('late', text='{x}')}"),
        (
            "llama",
            '{"name": "multiply", "parameters": {"a": 4, "b": 5}};'
            ' {"name": "late", "parameters": {"text": "{x}"}}',
        ),
    ],
)
def test_calls_are_read_in_their_order(form: CallFormat, text: str) -> None:
    assert calls_in(text, form) == CALLS


def test_values_of_a_format_without_types_get_the_function_s() -> None:
    text = (
        "<tool_call>\n<function=multiply>\n<parameter=a>\n4\n</parameter>\n<parameter=more>\n"
        "[1, 2]\n</parameter>\n</function>\n</tool_call>"
    )
    for said in ("2024", "null", '{"a": 1}'):
        typed = f"<function=search>\n<parameter=query>\n{said}\n</parameter>\n" + (
            "<parameter=years>\n[1, 2]\n</parameter>\n</function>"
        )
        step = stepped(search, text=f"<tool_call>\n{typed}\n</tool_call>", form="qwen")
        assert json.loads(step.messages[0].content) == {"query": said, "years": [1, 2]}
        read = ToolCall("search", {"query": said, "years": [1, 2]})
        assert calls_in(typed, "qwen", [Tool.of(search).schema]) == [read]
    assert calls_in(text, "qwen") == [ToolCall("multiply", {"a": "4", "more": "[1, 2]"})]
    assert stepped(multiply, text=text, form="qwen").messages[0].content == "15"


@pytest.mark.parametrize(
    ("kind", "value", "read"),
    [
        ({"type": "integer"}, "4", 4),
        ({"type": "integer"}, "four", "four"),
        ({"type": "number"}, "NaN", "NaN"),
        ({"type": "boolean"}, "False", False),
        ({"type": ["integer", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "4", "4"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "4", 4),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "4", "4"),
        ({}, "4", "4"),
    ],
)
def test_a_schema_says_which_values_are_no_texts(
    kind: dict[str, Any], value: str, read: Any
) -> None:
    """An agent would multiply "4" by 3 to "444", and take "False" for true."""
    schema = {"function": {"name": "f", "parameters": {"properties": {"x": kind}}}}
    text = f"<function=f>\n<parameter=x>\n{value}\n</parameter>\n</function>"
    assert calls_in(text, "qwen", [schema, "none"]) == [ToolCall("f", {"x": read})]


@pytest.mark.parametrize("form", ["hermes", "qwen", "llama"])
@pytest.mark.parametrize("text", ["", "the answer is 42", "{}", "{x} and [1]"])
def test_a_turn_without_a_call_is_the_answer(form: CallFormat, text: str) -> None:
    assert stepped(multiply, text=text, form=form) == Step(done=True)


def test_calls_of_a_turn_are_answered_in_their_order_and_wait_together() -> None:
    text = call("late", text="a") + call("multiply", a=2, b=2) + call("late", text="b")
    step = stepped(multiply, late, text=text)
    assert [m.content for m in step.messages] == ['{"said":"a"}', "4", '{"said":"b"}']
    assert {k: v for k, v in step.metrics.items() if not k.startswith("seconds")} == {
        "calls": 3.0, "errors": 0.0, "calls_late": 2.0, "calls_multiply": 1.0,
    }  # fmt: skip
    assert step.metrics["seconds_late"] >= 0.05, "each of the two"
    assert not step.done


@pytest.mark.parametrize(
    ("text", "words", "counted"),
    [
        (call("multiply", a="many"), "Expected `int`", "errors_multiply"),
        (call("multiply"), "missing required field `a`", "errors_multiply"),
        (call("multiply", a=1, z=2), "unknown field `z`", "errors_multiply"),
        (call("breaks"), "ValueError: it broke", "errors_breaks"),
        (call("ends"), "SystemExit: 3", "errors_ends"),
        (call("nothing"), "no tool 'nothing'", "errors"),
        ("<tool_call>{'name'", "no call", "errors"),
        ("<tool_call>[1]</tool_call>", "no call", "errors"),
        ("<tool_call>" + "[" * 5000, "no call", "errors"),
        (call("multiply", a=float("nan")), "no call", "errors"),
        (call("\ud800"), "no call", "errors"),
        ('<tool_call>{"name": "multiply", "arguments": 3}</tool_call>', "no call", "errors"),
    ],
)
def test_a_wrong_call_is_answered_and_counted(text: str, words: str, counted: str) -> None:
    step = stepped(multiply, breaks, ends, text=text)
    (said,) = step.messages
    assert words in json.loads(said.content)["error"]
    assert (step.metrics["errors"], step.metrics[counted], step.done) == (1.0, 1.0, False)


@pytest.mark.parametrize(("tool", "text"), [(prints, "\x1b[2J?<|im_end|>"), (finds, "a?")])
def test_a_result_can_always_be_sent(tool: Callable[..., Any], text: str) -> None:
    (said,) = stepped(tool, text=call(tool.__name__)).messages
    assert said.content == text


@pytest.mark.parametrize("number", [1, MOST_CALLS])
def test_a_result_is_cut_to_what_a_message_holds(number: int) -> None:
    """A longer text is no Step, and megabytes from each call no frame that the worker reads."""
    environment = ToolEnvironment([floods], "hermes")
    step = asyncio.run(answer(environment, PolicyTurn(call("floods") * number, 1)))
    assert len(step.messages) == number
    assert sum(len(m.content) for m in step.messages) == MAX_PROSE_CHARACTERS


def test_a_turn_of_many_calls_is_bounded() -> None:
    step = stepped(multiply, text=call("multiply", a=1) * (MOST_CALLS + 9))
    assert len(step.messages) == MOST_CALLS + 1
    assert "at most" in step.messages[-1].content
