"""Numbers and metrics as people read them.

In: plain values and metric names. Out: short text. None is always "-".
"""

from collections.abc import Callable, Sequence
from html import escape
from os.path import commonprefix
from typing import Any
from urllib.parse import urlencode

from headrace.metrics.health_ranges import rule_text
from headrace.metrics.registry import info_of

Write = Callable[[float | None], str]


def count(value: float | None) -> str:
    """A whole number with thousands separated."""
    return "-" if value is None else f"{value:,.0f}"


def share(value: float | None) -> str:
    """A share in percent."""
    return "-" if value is None else f"{100 * value:.1f} %"


def number(value: float | None) -> str:
    """Any number with three digits that count."""
    if value is None:
        return "-"
    if value and abs(value) < 0.001:
        return f"{value:.1e}"
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def duration(seconds: float | None) -> str:
    """Seconds as 12 s, 3:05 min or 2:07 h."""
    if seconds is None:
        return "-"
    whole = round(max(seconds, 0))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02d} h"


def gibibytes(size: float | None) -> str:
    """Bytes of memory as MiB or GiB."""
    if size is None:
        return "-"
    return f"{size / 2**20:,.0f} MiB" if size < 2**30 else f"{size / 2**30:,.1f} GiB"


def series_words(
    frame: Any, axis: str, unit: str, label: Callable[[str], str] | None = None
) -> str:
    """Description of a chart of series (columns x, name, value) for screen readers: of each its
    first, last, least and largest value. `label` writes a name; None: as metrics are written."""
    write: Write = share if unit == "share" else number
    parts = []
    for name, rows in frame.groupby("name"):
        values = [float(value) for value in rows["value"]]
        said = f"from {write(values[0])} to {write(values[-1])}"
        if len(values) > 2:
            said += f", least {write(min(values))}, largest {write(max(values))}"
        parts.append(f"{(label or metric_label)(str(name))}: {len(values)} points, {said}")
    return f"Over {axis.replace('_', ' ')}. {'; '.join(parts)}"


def metric_caption(names: Sequence[str], *, shaded: bool = True) -> str:
    """Meaning and healthy range of a chart's metrics, in Markdown. `shaded`: it shows the band."""
    lines = []
    for name in names:
        info = info_of(name)
        unit = f" ({info.unit})" if info.unit else ""
        healthy = f" Healthy: {info.healthy}." if info.healthy else ""
        label = f"**{metric_label(name)}**: " if len(names) > 1 else ""
        meaning = info.meaning if label else info.meaning[:1].upper() + info.meaning[1:]
        rule = rule_text(name)
        said = "Shaded: the healthy band; an alert" if shaded else "An alert"
        watched = f" {said}: {rule}." if rule else ""
        lines.append(f"{label}{meaning}{unit}.{healthy}{watched}")
    return "  \n".join(lines)


def reason_name(reason: str) -> str:
    """Why tokens were dropped, as text."""
    return reason.replace("_", " ")


LABELS = {
    "actor/pg_clipfrac": "clipped",
    "actor/pg_clipfrac_lower": "at the lower bound",
    "actor/pg_clipfrac_dual": "dual clip",
    "actor/grad_norm": "policy",
    "critic/grad_norm": "value model",
    "actor/pg_loss": "policy",
    "loss": "training",
    "held_out/loss": "held out",
    "held_out/gap": "accuracy by order",
    "held_out/bias": "forecast",
    "critic/vf_loss": "value model",
    "idle/learner": "learner",
    "idle/generator": "generators",
    "perf/generated_tokens_per_s": "generated",
    "perf/trained_tokens_per_s": "trained",
    "perf/tokens_per_s": "computed by the learner",
    "schedule/in_play": "in play",
    "schedule/bound": "bound",
    "timing_s/wait_for_batch": "wait for a batch",
}


def metric_label(name: str) -> str:
    """A metric's short name on a chart that has several; of sources of rewards and domains,
    theirs."""
    if name.startswith("ledger/dropped/"):
        return reason_name(name.rpartition("/")[2])
    if name.startswith(("rewards/", "mixture/")):
        return name.split("/", 1)[1].rpartition("/")[0]
    return LABELS.get(name, name.split("/")[-1].replace("_", " "))


def what_binds(
    learner: float | None,
    generators: float | None,
    *,
    over: str,
    mode: str = "streaming",
    scoring: float = 0.0,
    live: float = 0.0,
) -> str:
    """Return one sentence on the bottleneck of a run, and on what would help.

    `learner`, `generators`: their idle shares in a stretch of time, which `over` names. `scoring`,
    `live`: numbers of answers that wait for a score and that are being generated."""
    waits_l, waits_g = learner or 0.0, generators or 0.0
    if max(waits_l, waits_g) < 0.05:
        return f"Nobody waits: generators and learner kept each other busy {over}."
    if mode != "streaming" and min(waits_l, waits_g) >= 0.05:
        return (
            f"Generators and learner take turns in the mode {mode}: {over} the learner waited "
            f"{share(waits_l)} and generators {share(waits_g)} of the time. The mode streaming "
            "overlaps them."
        )
    if min(waits_l, waits_g) >= 0.3:
        return (
            f"Something else binds: {over} the learner waited {share(waits_l)} and generators "
            f"{share(waits_g)} of the time. A process was away, or scores were waited for: the "
            "events on the overview say which."
        )
    if waits_g > waits_l + 0.05:
        return (
            f"The learner binds: {over} generators waited {share(waits_g)} of the time, because so "
            "many windows are open or ready that the staleness bound lets no new one begin. A "
            "faster learner helps, or a larger schedule.max_staleness."
        )
    if waits_l > waits_g + 0.05 and scoring > live:
        return (
            f"Rewards bind: {over} the learner waited {share(waits_l)} of the time, and "
            f"{count(scoring)} answers wait for a score. More reward.workers or a higher "
            "concurrency of the source help."
        )
    if waits_l > waits_g + 0.05:
        return (
            f"Generation binds: {over} the learner waited {share(waits_l)} of the time, because it "
            "trains windows faster than they are written. More generators help (generator.count), "
            "or more answers at a time."
        )
    return (
        f"Both sides wait, {over} about {share((waits_l + waits_g) / 2)} of the time: batches come "
        "and go in bursts. A smaller schedule.batch_windows or a larger max_staleness smooths them."
    )


LONG_TEMPLATE = 24
"""Characters that prompts have in common from which on they are a template's."""


def without_template(prompts: Sequence[str]) -> list[str]:
    """Prompts without what a template writes around each: what all of them begin and end with, up
    to a mark or a line's end, where that is much."""
    head = commonprefix(list(prompts))  # noqa: RUF071 - these are no paths
    tail = commonprefix([prompt[::-1] for prompt in prompts])[::-1]  # noqa: RUF071
    start = 1 + max(map(head.rfind, "\n>]"))
    end = min((place for place in map(tail.find, "\n<[") if place >= 0), default=len(tail))
    if len(set(prompts)) < 2 or start < LONG_TEMPLATE:
        return list(prompts)
    return [f"\u2026 {prompt[start : len(prompt) - len(tail) + end]}" for prompt in prompts]


def progress(summary: dict[str, Any], stop: dict[str, Any]) -> tuple[float, str] | None:
    """Progress towards the run's first stop condition, as a number from 0 to 1 and in words; None
    without a condition."""
    accuracy = next((row["accuracy"] for row in reversed(summary["evaluations"])), None)
    trained = summary["tokens"]["trained_policy"]
    conditions: dict[str, tuple[float | None, Write, Write]] = {
        "updates": (summary["updates"], lambda v: f"update {count(v)}", count),
        "train_time_s": (summary["train_time_s"], lambda v: f"{duration(v)} of training", duration),
        "tokens": (trained, lambda v: f"{count(v)} tokens trained", count),
        "accuracy": (accuracy, lambda v: f"accuracy {share(v)}", share),
    }
    found = [
        (min(1.0, (value or 0) / stop[key]), f"{write(value)} of {limit(stop[key])}")
        for key, (value, write, limit) in conditions.items()
        if stop.get(key)
    ]
    if not found:
        return None
    return max(part for part, _ in found), "  \u00b7  ".join(text for _, text in found)


def answers_address(run: str, **filters: Any) -> str:
    """The address of the page Trajectories of a run, by its folder's name.

    `filters`: of the page, by their names there; those that are None are left out."""
    chosen = {name: value for name, value in filters.items() if value is not None}
    return f"trajectories?{urlencode({'run': run, **chosen}, doseq=True)}"


def bars_html(rows: Sequence[tuple[str, int, str, str, str]]) -> str:
    """Rows of (name, number, its share as HTML, colour, meaning), with a bar for each number."""
    most = max((number for _, number, *_ in rows), default=1) or 1
    bars = "".join(
        f'<div class="hr-reason"><b>{escape(name)}</b><span>{count(number)}</span>'
        f"<span>{part}</span><i><i style="
        f'"width:{100 * number / most:.1f}%;background:{colour}"></i></i>'
        f"<em>{escape(meaning)}</em></div>"
        for name, number, part, colour, meaning in rows
    )
    return f'<div class="hr-reasons">{bars}</div>'


def link_html(address: str, text: str) -> str:
    """A link in HTML; address and text are escaped."""
    return f'<a class="hr-link" href="{escape(address, quote=True)}">{escape(text)}</a>'
