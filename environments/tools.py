"""Plain functions as tools of a policy.

In: functions with type hints and docstrings, the text of a turn. Out: their JSON schemas for a chat
template, the calls in the text, and an environment that answers them in their order. Promises: a
call that cannot be read, or raises, is answered as `{"error": ...}` and counted, and never ends the
episode; a turn without a call does. Needs msgspec alone.
"""

import asyncio
import contextlib
import inspect
import json
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_type_hints

import msgspec

from headrace.errors import UserError
from headrace.protocol.fields import MAX_PROSE_CHARACTERS
from headrace.protocol.messages.environments import InsertedMessage, PolicyTurn, Step

CallFormat = Literal["hermes", "qwen", "llama"]
"""Format of calls in a turn.

hermes: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, also Qwen 2.5 and 3. qwen:
Qwen3-Coder's `<function=NAME><parameter=NAME>VALUE</parameter></function>`. llama: Llama 3's
`{"name": ..., "parameters": {...}}`, several of them separated by `;`."""
MOST_CALLS = 16
"""Maximum number of calls of one turn that are answered."""


class ToolError(UserError):
    """A function is no tool, or a call cannot be made; one line."""


class ToolCall(msgspec.Struct, frozen=True):
    """A call of a tool as a policy writes it."""

    name: str
    arguments: dict[str, Any] = {}


@dataclass(frozen=True)
class Tool:
    """A function, and its arguments as a struct that checks them."""

    function: Callable[..., Any]
    arguments: type[msgspec.Struct]

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "Tool":
        """Make a tool; ToolError where type hints or the docstring are missing."""
        name = getattr(function, "__name__", type(function).__name__)
        if not inspect.getdoc(function):
            raise ToolError(f"tool {name} has no docstring: say what it does")
        hints, said = get_type_hints(function, include_extras=True), _described(function)
        fields: list[Any] = []
        for key, parameter in inspect.signature(function).parameters.items():
            if key not in hints or parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
                raise ToolError(
                    f"tool {name}: argument {key} has no type hint, or is not a plain one"
                )
            hint: Any = Annotated[hints[key], msgspec.Meta(description=said.get(key))]
            default = [] if parameter.default is parameter.empty else [parameter.default]
            fields.append((key, hint, *default))
        try:
            made = msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)
            msgspec.json.schema(made)
        except TypeError as error:
            raise ToolError(f"tool {name}: {error}") from error
        return cls(function, made)

    @property
    def schema(self) -> dict[str, Any]:
        """JSON schema as chat templates take it."""
        whole = msgspec.json.schema(self.arguments)
        others = whole["$defs"]
        parameters = others.pop(self.arguments.__name__)
        del parameters["title"]
        if others:
            parameters["$defs"] = others
        meaning = inspect.getdoc(self.function) or ""
        said = {"name": self.arguments.__name__, "description": _SECTION.split(meaning)[0].strip()}
        return {"type": "function", "function": {**said, "parameters": parameters}}

    def bind(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Convert arguments to the function's types; ToolError where they do not fit."""
        try:
            bound = msgspec.convert(given, self.arguments, strict=False)
        except msgspec.ValidationError:
            # A format may write every value as text.
            kinds = {each.name: each.type for each in msgspec.structs.fields(self.arguments)}
            read = {key: _read(value, kinds.get(key, Any)) for key, value in given.items()}
            try:
                bound = msgspec.convert(read, self.arguments, strict=False)
            except msgspec.ValidationError as error:
                raise ToolError(str(error)) from error
        return {key: getattr(bound, key) for key in self.arguments.__struct_fields__}


_SECTION = re.compile(r"^\s*(?:Args|Arguments|Returns|Raises|Yields|Example|Examples):\s*$", re.M)
_ARGUMENT = re.compile(r"^\s+(\w+)(?:\s*\([^)]*\))?:\s*(.+(?:\n\s{8,}.+)*)", re.M)


def _described(function: Callable[..., Any]) -> dict[str, str]:
    """Return the texts of arguments in the `Args` section of a Google docstring."""
    _, _, rest = (inspect.getdoc(function) or "").partition("Args:\n")
    return {
        name: " ".join(text.split()) for name, text in _ARGUMENT.findall(_SECTION.split(rest)[0])
    }


def _read(value: Any, kind: Any) -> Any:
    """Return a value, or the JSON that it is as a text, where the text itself is not of a kind."""
    with contextlib.suppress(msgspec.ValidationError):
        msgspec.convert(value, kind, strict=False)
        return value
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(value) if isinstance(value, str) else value
    return value


# -- calls in a text --------------------------------------------------------------------------

_TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.S)
_FUNCTION = re.compile(r"<function=([^>\n]*)>(.*?)(?:</function>|\Z)", re.S)
_PARAMETER = re.compile(r"<parameter=([^>\n]*)>\n?(.*?)\n?(?:</parameter>|\Z)", re.S)


def calls_in(
    text: str, form: CallFormat, schemas: Sequence[Any] = ()
) -> list[ToolCall | ToolError]:
    """Return the calls of a turn in order, or the errors of unreadable ones.

    Of a format that writes every value as text, the tools' `schemas` say which are JSON."""
    if form == "hermes":
        return [_json_call(found, "arguments") for found in _TAGGED.findall(text)]
    if form == "qwen":
        kinds, made = _kinds(schemas), list[ToolCall | ToolError]()
        for name, body in _FUNCTION.findall(text):
            own = kinds.get(name.strip(), {})
            given = ((key.strip(), value) for key, value in _PARAMETER.findall(body))
            made.append(ToolCall(name.strip(), {k: _typed(v, own.get(k)) for k, v in given}))
        return made
    text = text.strip().removeprefix("<|python_tag|>").strip()
    return list(_llama(text)) if re.match(r'\{\s*"', text) else []


def _kinds(schemas: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """Return the JSON schemas of arguments, by tool."""
    kinds: dict[str, dict[str, Any]] = {}
    for schema in schemas:
        match schema:
            case {"function": {"name": str(name), "parameters": {"properties": dict(found)}}}:
                kinds[name] = found
    return kinds


def _typed(value: str, kind: Any) -> Any:
    """Return a text, or the JSON that it is where a schema takes no text."""
    if not _takes_text(kind):
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            return msgspec.json.decode({"True": "true", "False": "false"}.get(value, value))
    return value


def _takes_text(kind: Any) -> bool:
    """Return whether a JSON schema takes a text, or does not say."""
    match kind:
        case {"anyOf": list(kinds)}:
            return any(map(_takes_text, kinds))
        case {"type": list(names)}:
            return "string" in names
        case {"type": str(name)}:
            return name == "string"
    return True


def text_before_calls(text: str, form: CallFormat) -> str:
    """Return what a turn with calls says besides them."""
    return "" if form == "llama" else re.split("<tool_call>|<function=", text)[0].strip()


def _llama(text: str) -> Iterator[ToolCall | ToolError]:
    decoder = json.JSONDecoder()
    while text:
        try:
            _, end = decoder.raw_decode(text)
        except (ValueError, RecursionError):
            end = len(text)
        yield _json_call(text[:end], "parameters")
        text = text[end:].lstrip("; \n")


def _json_call(text: str, key: str) -> ToolCall | ToolError:
    try:
        said = json.loads(text)
        # What is no JSON (NaN, half a character) cannot be sent, or is not equal to itself.
        json.dumps(said, ensure_ascii=False, allow_nan=False).encode()
        return msgspec.convert({"name": said["name"], "arguments": said.get(key) or {}}, ToolCall)
    except (
        ValueError, KeyError, TypeError, AttributeError, RecursionError, msgspec.ValidationError,
    ) as error:  # fmt: skip
        return ToolError(f"this is no call: {type(error).__name__}: {error}")


# -- the environment --------------------------------------------------------------------------


class ToolEnvironment:
    """Environment of functions, without rewards: `[reward]` scores the answer.

    It keeps nothing from turn to turn, so an episode whose process died goes on without a call
    being made again.
    """

    keeps_state = False
    pays = False

    def __init__(self, functions: Sequence[Callable[..., Any]], form: CallFormat) -> None:
        """ToolError where a function is no tool."""
        made = [Tool.of(function) for function in functions]
        self.tools = {tool.arguments.__name__: tool for tool in made}
        self.schemas = [tool.schema for tool in made]
        self.waits = any(inspect.iscoroutinefunction(tool.function) for tool in made)
        self._form = form

    def reset(self, row: Mapping[str, Any], seed: int) -> None:
        """Return nothing: the prompt shows the tools."""

    async def step(self, turn: PolicyTurn) -> Step:
        """Answer the turn's calls: coroutines run together, other functions one by one."""
        calls = calls_in(turn.text, self._form)
        if not calls:
            return Step(done=True)
        metrics: dict[str, float] = defaultdict(float, calls=float(len(calls)), errors=0.0)
        if len(calls) > MOST_CALLS:
            calls[MOST_CALLS:] = [ToolError(f"at most {MOST_CALLS} calls in a turn are answered")]
        answers = [self._answer(call, metrics) for call in calls]
        most = MAX_PROSE_CHARACTERS // len(calls)
        said = [InsertedMessage("tool", text[:most]) for text in await asyncio.gather(*answers)]
        return Step(messages=said, metrics=dict(metrics))

    async def _answer(self, call: ToolCall | ToolError, metrics: dict[str, float]) -> str:
        began, name = time.perf_counter(), ""
        try:
            if isinstance(call, ToolError):
                raise call
            if call.name not in self.tools:
                raise ToolError(f"there is no tool {call.name!r}: take {', '.join(self.tools)}")
            name, tool = call.name, self.tools[call.name]
            found = tool.function(**tool.bind(call.arguments))
            return _text(await found if inspect.isawaitable(found) else found)
        except (Exception, SystemExit) as error:  # a tool is somebody else's code
            metrics["errors"] += 1
            if name:
                metrics[f"errors_{name}"] += 1
            kind = "" if isinstance(error, ToolError) else f"{type(error).__name__}: "
            return json.dumps({"error": f"{kind}{error}"})
        finally:
            if name:
                metrics[f"calls_{name}"] += 1
                metrics[f"seconds_{name}"] += time.perf_counter() - began


def _text(found: Any) -> str:
    try:
        text = found if isinstance(found, str) else msgspec.json.encode(found).decode()
    except TypeError:
        text = str(found)
    return text.encode(errors="replace").decode()
