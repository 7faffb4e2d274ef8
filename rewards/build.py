"""Building of a reward source's verifier.

In: a source's configuration. Out: a verifier that pays what the source says, with what it needs
loaded (math-verify, the user's module), so that scoring starts warm; UserError when it cannot be
had.
"""

from dataclasses import replace

from headrace.config.sections.reward import SourceConfig
from headrace.errors import UserError
from headrace.protocol.messages.control import ScoreItem
from rewards import kinds
from rewards.functions.results import Verdict
from rewards.functions.reward_scaling import early_verdict, scale_verdict
from rewards.functions.unit_functions import load_unit_functions
from rewards.verifier import Verifier


def build_verifier(source: SourceConfig) -> Verifier:
    """Build the verifier whose verdicts pay as the source says; UserError without one."""
    found = _of_functions(source) if source.kind == "function" else _of_kind(source)
    later = found.judge_later

    def judge(item: ScoreItem) -> Verdict:
        known = early_verdict(source, item)
        return known or scale_verdict(source, item, found.judge(item), graded=found.graded)

    async def judge_later(item: ScoreItem) -> Verdict:
        assert later is not None
        known = early_verdict(source, item)
        return known or scale_verdict(source, item, await later(item), graded=found.graded)

    return replace(
        found,
        judge=judge,
        judge_later=judge_later if later is not None else None,
        concurrency=_concurrency(source, found),
    )


def _concurrency(source: SourceConfig, verifier: Verifier) -> int:
    """Number of items that a child scores at a time; 0: one by one."""
    if verifier.judge_later is not None:
        return source.concurrency or verifier.concurrency
    if (source.concurrency or 1) > 1:
        who = "a function that is no coroutine" if source.kind == "function" else source.kind
        raise UserError(
            f"concurrency = {source.concurrency}: {who} scores one response at a time; use "
            "children for more"
        )
    return 0


def _of_functions(source: SourceConfig) -> Verifier:
    """Verifier of user functions: scores on a scale of their own."""
    functions = load_unit_functions(source)
    many = (source.concurrency or 1) > 1 and functions.waits
    return Verifier(
        functions,
        functions.needs,
        functions.asks_ids,
        judge_later=functions.later if many else None,
    )


def _of_kind(source: SourceConfig) -> Verifier:
    """Verifier of a kind of `rewards.kinds`: scores from 0 to 1."""
    module = kinds.load(source.kind)
    units = getattr(module, "UNITS", ("trajectory",))
    if source.unit not in units:
        known = " and ".join(f'"{unit}"' for unit in units)
        raise UserError(f'kind {source.kind!r} has no unit "{source.unit}" (it has {known})')
    options = kinds.read_options(source, module)
    seconds = getattr(options, "seconds", 0.0)
    if seconds >= source.timeout_s:
        raise UserError(
            f"option seconds of kind {source.kind!r} is {seconds:g}, and the source's deadline "
            f"timeout_s, which includes it, only {source.timeout_s:g}"
        )
    return module.build(options)
