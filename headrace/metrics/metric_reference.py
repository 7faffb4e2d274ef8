"""docs/metrics.md, made from `headrace.metrics.registry`.

In: the table of metrics. Out: one page of Markdown with a section for each prefix.
`scripts/docs.py` writes the page and says when it is stale.
"""

from collections.abc import Iterator
from itertools import groupby

from headrace.metrics.health_ranges import BACK, BANDS, rule_text
from headrace.metrics.registry import METRICS, MetricInfo

HEAD = f"""\
# Metrics

<!-- Made by scripts/docs.py from headrace/metrics/registry.py: change the table instead. -->

Every number that a run writes down, with its unit, what it means, and what it looks like when all
is well. A healthy range is a first look, not a law. Where it says when there is an alert, the
metric has a healthy band (kept in `headrace/metrics/health_ranges.py`): charts shade it, and a
metric that is outside for so many updates in a row is on the pages Overview and Health and in
`headrace show`, until it is back for as many, and at least {BACK}. Where no unit is given the
number is plain; a `share` lies between 0 and 1.

A metric comes once for every committed update, or about once a second as a gauge between updates,
or both. A few are arrays: a number for each bin that is named. In SQL they are rows of `metrics`
and `metric_arrays` (see [storage](storage.md)); `metric_info` holds this page's table; `headrace
export RUN metrics` writes the single numbers to a file. Prefixes `actor/`, `critic/`,
`response_length/`, `timing_s/` and `perf/` and the names under them are verl's where verl has them.
"""

SECTIONS = {
    "actor": "The policy's loss and optimizer, from the learner, once an update.",
    "cpu": "What processes keep busy; `NAME` is a process. A gauge.",
    "gpu": "What processes keep busy; `NAME` is a process. A gauge.",
    "critic": "The value model's loss, outputs and targets, from the learner, once an update.",
    "egae": "What happens at the cuts of unfinished windows.",
    "environment": "Episodes of several turns, where a run has an environment.",
    "heartbeat": "Signs of life; `NAME` is a process such as `generator-0`. A gauge.",
    "idle": "Who waits for whom. The side that waits much has too much hardware.",
    "ledger": "Where every journaled response token is. generated = trained_policy + ready + "
    "in_flight + dropped, to the token, at every update. See [data path](data-path.md).",
    "memory": "What processes hold; `NAME` is a process. A gauge.",
    "mixture": "Which prompts are asked; `NAME` is a domain of `task.datasets`.",
    "perf": "Throughput, and how much of the computation was of use.",
    "ranker": "Of the session ranker, where a run trains it along (`learner.ranker`).",
    "response_length": "How long responses are. Early in a stream only short ones have ended.",
    "reward": "What the verifier said.",
    "rewards": "Each source of rewards by itself, as its scores arrive; `NAME` is the source. See "
    "[hybrid rewards](hybrid-rewards.md).",
    "rollout": "How far the generator's logprobs are from the learner's, and how far the policy "
    "has moved since the tokens were sampled.",
    "schedule": "What the scheduler counts when it lets windows begin and makes batches.",
    "staleness": "Updates between the sampling and the training of tokens.",
    "timing_s": "Where the time of an update goes.",
    "transport": "What the coordinator would not take. See [protocol](protocol.md).",
    "value": "What the critic believed where a response was cut, and its errors along the way.",
    "weights": "How far behind the generators are.",
}
"""What the prefixes have in common."""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_sections()])


def _sections() -> Iterator[str]:
    for prefix, infos in groupby(METRICS.values(), key=lambda info: info.name.split("/")[0]):
        lines = [f"## {prefix}/", "", SECTIONS[prefix], "", "| metric | unit | meaning | healthy |"]
        lines += ["|---|---|---|---|", *map(_row, infos), ""]
        yield "\n".join(lines)


def _row(info: MetricInfo) -> str:
    meaning = f"{info.meaning}; an array: {', '.join(info.bins)}" if info.bins else info.meaning
    alert = f"; an alert: {rule_text(info.name)}" if info.name in BANDS else ""
    cells = (f"`{info.name}`", info.unit, meaning, info.healthy + alert)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
