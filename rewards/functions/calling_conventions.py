"""Conventions of reward functions, and how arguments are bound by them.

In: a function's signature, perhaps the name of a convention. Out: a binding, which turns a response
into the arguments of a call. A convention is data: the names that it passes, as texts or messages,
one by one or in lists. An argument of unknown name is left to the dataset's columns; a function
that takes the response under no known name is a UserError, because its rewards would say nothing.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from headrace.config.sections.reward import Adapter
from headrace.errors import UserError
from headrace.protocol.messages.control import ScoreItem
from rewards.functions.arguments import (
    FACTS,
    IDS,
    PLURALS,
    RESPONSES,
    TRUTHS,
    Chat,
    Fact,
    InvalidRewardError,
    ResponseFacts,
)
from rewards.functions.results import Form
from rewards.functions.signatures import EXPECTED, Signature


@dataclass(frozen=True)
class Convention:
    """The way in which one system calls reward functions."""

    system: str
    expected: str
    """The form of its functions."""
    chat: Chat = "never"
    lists: bool = False
    """Every argument is a list with one entry per response."""
    columns: frozenset[str] | None = None
    """Columns that it hands to arguments with a default and to `**kwargs`; None: all."""
    own: frozenset[str] = frozenset()
    """Facts that never give way to a column, beside prompt, response and token ids."""
    facts: frozenset[str] = frozenset()
    """Facts that only this convention knows."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    rest: tuple[str, ...] = ()
    """Facts that it hands to `**kwargs`."""
    returns: Form = "one"
    """The form in which its functions return the reward."""

    def singular(self, name: str) -> str:
        """The name of what a parameter of this name holds, or lists."""
        return self.aliases.get(name) or PLURALS.get(name, name)


CONVENTIONS: dict[Adapter, Convention] = {
    "trl": Convention(
        "TRL",
        "(prompts, completions, **columns)",
        chat="row",
        lists=True,
        rest=("prompts", "completions"),
        returns="list",
    ),
    "verl": Convention(
        "verl",
        "(data_source, solution_str, ground_truth, extra_info)",
        columns=frozenset({"data_source", "extra_info", "ground_truth"}),
        facts=frozenset({"extra_info"}),
        rest=("extra_info",),
        returns="first",
    ),
    "openrlhf": Convention(
        "OpenRLHF",
        "(queries, prompts, labels)",
        lists=True,
        columns=frozenset(),
        own=frozenset({"query"}),
        rest=("queries", "prompts", "labels"),
    ),
    "areal": Convention(
        "AReaL",
        "(prompt, completions, prompt_ids, completion_ids, **data)",
        aliases={
            "completions": "completion",
            "completions_str": "completion",
            "completion_str": "completion",
            "prompts": "prompt",
            "prompt_str": "prompt",
            "input_tokens": "prompt_ids",
            "output_tokens": "completion_ids",
        },
    ),
    "verifiers": Convention(
        "verifiers",
        "(prompt, completion, answer, state, task, info)",
        chat="always",
        columns=frozenset(),
        own=frozenset({"state", "info"}),
        facts=frozenset({"state", "info", "task"}),
        rest=("prompt", "completion", "answer", "state", "task", "info"),
    ),
    "slime": Convention(
        "slime",
        "(args, sample)",
        columns=frozenset(),
        own=frozenset({"args", "sample"}),
        facts=frozenset({"args", "sample"}),
    ),
    "rllm": Convention(
        "rLLM",
        "(task, episode)",
        columns=frozenset(),
        own=frozenset({"rllm_task", "episode"}),
        facts=frozenset({"rllm_task", "episode"}),
        aliases={"task": "rllm_task"},
    ),
    "plain": Convention(
        "Headrace",
        EXPECTED,
        own=frozenset({"answer"}),
        facts=frozenset({"task_info"}),
        rest=("prompt", "completion", "answer"),
    ),
}


_TELLING: Mapping[Adapter, frozenset[str]] = {
    "openrlhf": frozenset({"queries"}),
    "slime": frozenset({"args", "sample"}),
    "rllm": frozenset({"task", "episode"}),
}
"""Arguments that only one system has."""


def recognise(names: Collection[str], texts: Collection[str] = ()) -> Adapter:
    """Convention of a function with these arguments; `texts` are annotated as one text."""
    given = set(names)
    for adapter, telling in _TELLING.items():
        if telling <= given:
            return adapter
    if given & {"completion_str", "completions_str"}:
        return "areal"
    # AReaL's plural is one response, TRL's a list of them.
    one = "completions" in texts or "prompt_ids" in given
    if "completions" in given and (one or ("prompt" in given and "prompts" not in given)):
        return "areal"
    if given & {"completions", "prompts"}:
        return "trl"
    if "completion_ids" in given and not given & {"prompt", *RESPONSES}:
        return "trl"
    singular = {PLURALS.get(name, name) for name in given}
    if singular & {"solution_str", "predict_str", "model_output", "llm_solution"}:
        return "plain" if "completion" in given else "verl"
    return "verifiers" if given & {"state", "parser"} else "plain"


class ArgumentSource(NamedTuple):
    """Source of an argument: the row's first of these columns, else the fact.

    The flags: the value goes into a list with one entry per response."""

    columns: tuple[tuple[str, bool], ...]
    fact: Fact | None
    wraps: bool

    def find(self, known: ResponseFacts) -> list[Any]:
        """The value, alone in a list; an empty list where there is none."""
        for column, wraps in self.columns:
            if column in known.columns:
                value = known.columns[column]
                return [[value] if wraps else value]
        if self.fact is None:
            return []
        value = self.fact(known)
        return [[value] if self.wraps else value]


@dataclass(frozen=True)
class Binding:
    """The call of one function by `adapter`'s convention, as far as its names allow."""

    adapter: Adapter
    convention: Convention
    signature: Signature
    sources: Mapping[str, ArgumentSource]
    objects: Mapping[str, Any]
    needs: tuple[str, ...]
    """Columns of the dataset that it cannot do without."""
    asks_ids: bool
    """True: it takes token ids."""
    doubtful: frozenset[str] = frozenset()
    """Columns that would make the convention a wrong guess."""

    def arguments(
        self, item: ScoreItem, known: ResponseFacts | None = None
    ) -> tuple[list[Any], dict[str, Any]]:
        """Arguments for a response, positional and named; InvalidRewardError for a poor row.

        Its row lacks what the function needs. `known`: arguments that functions of the same form
        received."""
        known = known or ResponseFacts(item, self.convention.chat)
        if self.doubtful & known.columns.keys():
            raise InvalidRewardError(
                f"{', '.join(sorted(self.doubtful))} may be the row's column or an argument of "
                f"{self.convention.system}: say which with reward.adapter"
            )
        found = self._columns(known) if self.signature.any_name else {}
        for name, source in self.sources.items():
            value = source.find(known)
            if value:
                found[name] = value[0]
            elif name in self.signature.required or name in self.signature.by_position:
                raise InvalidRewardError(f"the row has no `{name}`, which the function takes")
        found.update(self.objects)
        return [found.pop(name) for name in self.signature.by_position], found

    def _columns(self, known: ResponseFacts) -> dict[str, Any]:
        wanted, lists = self.convention.columns, self.convention.lists
        chosen = known.columns if wanted is None else wanted & known.columns.keys()
        return {name: [known.columns[name]] if lists else known.columns[name] for name in chosen}


def bind(
    signature: Signature,
    where: str,
    *,
    adapter: Adapter | None = None,
    objects: Mapping[str, Any] | None = None,
) -> Binding:
    """Bind a function by the named convention, or the one that its signature fits.

    `objects` are arguments that the function's own system holds ready (a rubric's parser).
    UserError where the response would reach it under no known name."""
    chosen = adapter or recognise(signature.names, signature.texts)
    convention = CONVENTIONS[chosen]
    # Aliases of names that the function takes itself may be columns.
    aliases = {name: of for name, of in convention.aliases.items() if of not in signature.names}
    convention = replace(convention, aliases=aliases)
    response = _response(signature, convention)
    if response is None:
        raise UserError(
            f"{where} takes {signature}, and none of these is the response: it is known as "
            f"{', '.join(RESPONSES)}, completions or queries; expected {convention.expected}"
        )
    takes = {*signature.names, *(objects or {})} if signature.any_name else {*signature.names}
    ready = {name: value for name, value in (objects or {}).items() if name in takes}
    wanted = dict.fromkeys(convention.rest if signature.any_name else ())
    for name in signature.names:
        must = name in signature.required or name in signature.by_position
        if must or _is_offered(name, convention, response):
            wanted[name] = None
    sources = {n: _source(n, convention, response) for n in wanted if n not in ready}
    return Binding(
        chosen,
        convention,
        signature,
        sources,
        ready,
        tuple(n for n in sources if n in signature.required and sources[n].fact is None),
        any(convention.singular(n) in IDS for n in sources),
        frozenset({"state"} if chosen == "verifiers" and adapter is None else ()),
    )


def _response(signature: Signature, convention: Convention) -> str | None:
    """The name under which the function is handed the response."""
    singular = {convention.singular(name) for name in signature.names}
    objects = sorted(convention.facts & {"state", "sample", "episode"})
    carriers = (*RESPONSES, "query", "completion_ids", *objects)
    return next((name for name in carriers if name in singular), None)


def _source(name: str, convention: Convention, response: str) -> ArgumentSource:
    single = convention.singular(name)
    listed = name in PLURALS and name not in convention.aliases
    wraps = convention.lists or listed
    if single in RESPONSES and (single == response or name in convention.rest):
        return ArgumentSource((), lambda known: known.completion, wraps)
    if single == "answer" and "answer" in convention.own:
        return ArgumentSource((), lambda known: known.item.answer, wraps)
    known = {"prompt", "query", *IDS, *TRUTHS, *convention.facts}
    fact = FACTS[single] if single in known else None
    if single in {"prompt", response, *IDS, *convention.own}:
        return ArgumentSource((), fact, wraps)
    own = (name, convention.lists)
    return ArgumentSource((own, (single, True)) if listed else (own,), fact, wraps)


def _is_offered(name: str, convention: Convention, response: str) -> bool:
    """Return whether an argument with a default is passed, where it can be."""
    single = convention.singular(name)
    if single in {"prompt", response, *IDS, *convention.own, *convention.facts}:
        return True
    return convention.columns is None or single in convention.columns
