"""docs/metrics.md, made from `headrace.metrics.registry`.

In: the table of metrics. Out: one page of Markdown with a section for each prefix.
`scripts/docs.py` writes the page and says when it is stale.
"""

from itertools import groupby

from headrace.metrics.health_ranges import BANDS, MIN_UPDATES_BACK, rule_text
from headrace.metrics.registry import METRICS, TENTHS, MetricInfo

HEAD = f"""\
# Metrics

<!-- Made by scripts/docs.py from headrace/metrics/registry.py: change the table instead. -->

These are the numbers that a run records. Healthy values are a first orientation. Charts shade the
healthy band of a metric that has one (`headrace/metrics/health_ranges.py`). Outside its band for
the updates in its line, a metric raises an alert (Overview, Health, `headrace show`), until it was
inside for as many, at least {MIN_UPDATES_BACK}. A `share` lies between 0 and 1.

A metric is recorded once per committed update, as a gauge about once per second (after a day of
training every 4, after two and a half every 10), or both. An array has a number per bin.
[SQL](storage.md#tables) and `headrace export RUN metrics` have all of them. Names under `actor/`,
`critic/`, `response_length/`, `timing_s/` and `perf/` are verl's, where verl has such a metric.
"""

SECTIONS = {
    "actor": "The policy's loss and optimizer, from the learner, once an update.",
    "along": "Evaluations beside training (`evaluation.mode`), in the next update.",
    "cpu": "What processes keep busy; `NAME` is a process. A gauge.",
    "gpu": "What processes keep busy; `NAME` is a process. A gauge.",
    "critic": "The value model's loss, outputs and targets, from the learner, once an update.",
    "egae": "What happens at the cuts of unfinished windows.",
    "environment": "Episodes of several turns, where a run has an environment.",
    "heartbeat": "Signs of life; `NAME` is a process such as `generator-0`. A gauge.",
    "idle": "Who waits for whom. The side that waits much has too much hardware.",
    "ledger": "Where every journaled response token is: [the ledger](data-path.md#the-ledger).",
    "memory": "What processes hold; `NAME` is a process. A gauge.",
    "mixture": "Which prompts are asked; `NAME` is a domain of `task.datasets`.",
    "perf": "Throughput, and how much of the computation was of use.",
    "ranker": "Of the session ranker, where a run trains it along (`learner.ranker`).",
    "response_length": "How long responses are. Early in a stream only short ones have ended.",
    "reward": "What the verifier said.",
    "rewards": "Each source of rewards, since the last update; `NAME` is the source. "
    "[Monitors](rewards.md#monitors-and-alerts).",
    "rollout": "How far the generator's logprobs are from the learner's, and how far the policy "
    "has moved since the tokens were sampled.",
    "schedule": "What the scheduler counts when it lets windows begin and makes batches.",
    "staleness": "Updates between the sampling and the training of tokens.",
    "timing_s": "Where the time of an update goes.",
    "transport": "What the coordinator would not take. See [protocol](protocol.md).",
    "value": "What the critic believed where a response was cut, and its errors along the way.",
    "weights": "How far behind the generators are.",
}
"""Description of each prefix."""


def page() -> str:
    """The whole page."""
    lines = [HEAD]
    for prefix, infos in groupby(METRICS.values(), key=lambda info: info.name.split("/")[0]):
        lines += [f"## {prefix}/", "", SECTIONS[prefix], "", *map(_line, infos), ""]
    return "\n".join(lines)


def _line(info: MetricInfo) -> str:
    unit = f" ({info.unit})" if info.unit else ""
    bins = "" if info.bins in ((), TENTHS) else f"; an array: {', '.join(info.bins)}"
    alert = f"alert: {rule_text(info.name)}" if info.name in BANDS else ""
    healthy = "; ".join(filter(None, (info.healthy, alert)))
    line = f"- `{info.name}`{unit}: {info.meaning}{bins}"
    return f"{line}. Healthy: {healthy}" if healthy else line
