"""Tables of `docs/operations.md` and `docs/security.md`: what faults did, how often they were
tried, what the fuzzer found, how long the pages of a large run take.

In: the checked-in rows of chaos, elastic, journal, restart, soak, fleet, fuzz, suite, dashboard.
Out: Markdown. What has no row says so; nothing is reckoned from anything but rows.
`benchmarks.evidence` puts the tables into the pages.
"""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.kit.study_table import Table
from benchmarks.robustness.chaos_facts import alone, whole
from benchmarks.robustness.chaos_faults import KINDS
from benchmarks.robustness.fuzz import TARGETS, summary

Row = dict[str, Any]
ENGINES = {"fake": "scripted", "torch": "PyTorch", "vllm": "vLLM"}
WHOLE_RUN = 1_000_000
"""Trajectories for which restart and memory are promised."""
COUNTED = {
    "runs": "runs",
    "updates": "updates in the weights",
    "generated": "tokens generated",
    "lost": "tokens lost, or findings of the audit",
    "moved": "tokens sampled twice (`moved`)",
    "died": "tokens that died with a generator (`died`)",
    "doubled": "trained twice by the journal",
    "doubled_in_weights": "trained twice by the weights",
    "orphans": "processes left behind",
    "hangs": "hangs (no update for 150 s)",
    "unresumable": "runs that could not be resumed",
    "failed_ends": "runs whose last exit code was neither 0 nor 130",
    "stale_share": "share of tokens left out for their age",
    "stale_share_quiet": "the same in batches that no fault held up",
}
FUZZED = {
    "codec": (
        "frames to messages",
        "a message, or ProtocolError; what was taken comes back as it was from the wire",
        "reasons of thousands of characters",
    ),
    "intake": (
        "messages of all peers to a real coordinator",
        "it goes on; at the end of each 2,000 the journal gives its state, and SQL holds it",
        "none",
    ),
    "config": (
        "recipes and overrides",
        "UserError of one line, or a configuration that JSON gives back",
        "keys with line ends, paths too long to be one, numbers of thousands of digits",
    ),
    "filter": (
        "filters",
        "UserError of one line, or the same rows from SQL and Arrow",
        "depth, length, whole numbers beyond 64 bits, text that is no Unicode, `true` and `1`",
    ),
    "journal": (
        "journals whose bytes or files were changed",
        "UserError, or the records that were written, from the first on",
        "a missing first segment passed in silence; without digests, a flipped bit could crash the "
        "reader",
    ),
}
"""By target: what it is, what must hold, and what was found and is mended."""


def rows_of(benchmark: str) -> list[Row]:
    """The checked-in rows of a benchmark, oldest first."""
    return list(read_rows(RESULTS / f"{benchmark}.jsonl").values())


def missing(command: str) -> str:
    """What stands where there is no row."""
    return f"not measured: `headrace bench {command}`"


def figures_table() -> str:
    """Markdown: the figures that are promised, and what the rows say of each."""
    lines = [
        ("lost; doubled; doubled in the weights", "0; 0; 0", _said("chaos", _kept)),
        ("rolled-back tokens that are trained again", "95 %", _said("chaos", _again)),
        (
            "a generator killed: its prompts run elsewhere",
            "the heartbeat deadline and 2 s",
            _said("elastic", _elsewhere, lambda row: row["elsewhere_s"]["max"] is not None),
        ),
        (
            "the learner killed: training goes on",
            "10 s beyond the loading of models",
            _said("chaos", lambda rows: _recovery(rows, "learner")),
        ),
        (
            "the coordinator killed: training goes on",
            "5 s, no acknowledged token lost",
            _said("chaos", lambda rows: _recovery(rows, "coordinator")),
        ),
        (
            "the journal's cost",
            "2 % of generation, side by side",
            # How fast other engines are says nothing of a user's runs.
            _said("journal", _journal, lambda row: row["engine"] == "vllm" and row["interval"]),
        ),
        (f"restart at {WHOLE_RUN:,} trajectories", "30 s", _said("restart", _restart)),
        (
            f"growth of the coordinator's memory over {WHOLE_RUN:,} trajectories",
            "5 %",
            _said("soak", _soak),
        ),
        (
            "where one coordinator ends, with more and more generators",
            "said, and why",
            _said("fleet", _fleet),
        ),
        (f"{WHOLE_RUN:,} inputs of the fuzzer", "no finding open", _said("fuzz", _fuzzed)),
        (
            "the test suite on two quiet cores",
            "25 minutes",
            _said("suite", _suite, lambda row: row["exit_code"] == 0 and not row["arguments"]),
        ),
    ]
    return Table(("figure", "promised", "found"), lines).markdown()


def chaos_table() -> str:
    """Markdown: which faults were done how often, by engine, and what became of them."""
    rows = rows_of("chaos")
    if not rows:
        return f"{missing('chaos').capitalize()}.\n"
    by_engine: dict[str, list[Row]] = {}
    for row in rows:
        by_engine.setdefault(row["engine"], []).append(row)
    found = [whole(mine) for mine in by_engine.values()]
    lines = []
    for name, kind in KINDS.items():
        done = (str(sum(row["kinds"].get(name, 0) for row in mine)) for mine in by_engine.values())
        lines.append((kind.text, *done))
    figures = [(text, [each[name] for each in found]) for name, text in COUNTED.items()]
    figures += [
        (f"the same after: {kind.text}", [each["stale_share_after"].get(name) for each in found])
        for name, kind in KINDS.items()
    ]
    lines += [
        (text, *("no row" if n is None else f"{n:,}" for n in each)) for text, each in figures
    ]
    ended = (str(sum(bool(row["ends"]) for row in mine)) for mine in by_engine.values())
    lines.append(("runs that ended by themselves and were resumed", *ended))
    ends = [(ENGINES[row["engine"]], row["seed"], end) for row in rows for end in row["ends"]]
    head = ("", *(f"{ENGINES[engine]} engine" for engine in by_engine))
    unmeasured = [name for engine, name in ENGINES.items() if engine not in by_engine]
    rest = f"\nNo row: {', '.join(unmeasured)}.\n" if unmeasured else ""
    told = "".join(
        f"\nSeed {seed} ({name} engine) ended once: `{_short(end)}`.\n" for name, seed, end in ends
    )
    return Table(head, lines).markdown() + rest + told


def fuzz_table() -> str:
    """Markdown: inputs by target, what must hold, and what was found."""
    found = summary(rows_of("fuzz"))
    lines = []
    for name in TARGETS:
        what, holds, mended = FUZZED[name]
        counts = found["targets"].get(name)
        figures = ["the tests only", "", ""]
        if counts is not None:
            figures = [f"{counts.get(key, 0):,}" for key in ("inputs", "taken", "refused")]
        lines.append((f"`{name}`: {what}", *figures, holds, mended))
    head = (
        *("target", "inputs", "taken", "refused", "what must hold"),
        "what was found and is mended",
    )
    return (
        Table(head, lines).markdown()
        + f"\n{found['inputs']:,} inputs in the checked-in rows, {len(found['findings'])} findings "
        "open. The tests try others\nevery time, and `pytest tests/fuzz --hypothesis-profile=long "
        "--timeout=0` a million.\n"
    )


def pages_table() -> str:
    """Markdown: of the largest run, and of equals the last, seconds, bytes and memory by page, the
    worst first; below, what was measured in a private window."""
    rows = rows_of("dashboard")
    kept = [row for row in rows if not row["private"]]
    if not kept:
        return f"{missing('dashboard').capitalize()}.\n"
    row = _largest(kept)
    private = [each for each in rows if each["private"]]
    return _pages(row) + (_private(_largest(private)) if private else "")


def _said(
    benchmark: str, tell: Callable[[list[Row]], str], counts: Callable[[Row], Any] = bool
) -> str:
    """What the rows of a benchmark that count say, or that there are none."""
    rows = [row for row in rows_of(benchmark) if counts(row)]
    return tell(rows) if rows else missing(benchmark)


def _kept(rows: list[Row]) -> str:
    found = whole(rows)
    figures = "; ".join(str(found[name]) for name in ("lost", "doubled", "doubled_in_weights"))
    return f"{figures} in {found['faults']} faults, {_runs(found['runs'])}"


def _again(rows: list[Row]) -> str:
    share = whole(rows)["rolled_back_trained_again"]
    if share is None:
        return "nothing was rolled back in the rows"
    return f"{share:.0%} of {sum(row['rolled_back'] for row in rows):,}"


def _recovery(rows: list[Row], role: str) -> str:
    """Kills alone, from the rows that tell them apart."""
    found = whole(rows)
    seconds = [s for row in alone(rows) for s in row.get("recovery_kill_s", {}).get(role, [])]
    told = "not measured apart from stops"
    if seconds:
        told = f"{_spread(seconds)} to the next update after {len(seconds)} kills"
    if both := found["recovery_s"].get(role):
        told += (
            f"; kills and stops together: median {both['median']:.1f} s, at most "
            f"{both['max']:.1f} s ({both['count']})"
        )
    return f"{told}; tokens lost: {found['lost']}" if role == "coordinator" else told


def _elsewhere(rows: list[Row]) -> str:
    last = rows[-1]
    return (
        f"median {last['elsewhere_s']['median']:.1f} s, at most {last['elsewhere_s']['max']:.1f} s "
        f"with a deadline of {last['deadline_s']:g} s"
    )


def _journal(rows: list[Row]) -> str:
    last = rows[-1]
    low, high = (1 - bound for bound in reversed(last["interval"]))
    return (
        f"{1 - last['ratio']:.1%} (95 %: {low:.1%} to {high:.1%}) in {last['rounds']} rounds at "
        f"{last['tokens_per_s']['journal']:,.0f} tokens a second; the writer takes "
        f"{last['writer']['core_share']:.1%} of a core{_beside(last)}"
    )


def _restart(rows: list[Row]) -> str:
    sizes = [size for row in rows for size in row["sizes"]]
    largest = max(sizes, key=lambda size: int(size["trajectories"]))
    told = f"{largest['restart_s']:.1f} s and {largest['memory_mb']:,} MB at "
    told += f"{largest['trajectories']:,} trajectories"
    return _so_far("restart", largest["trajectories"], told)


def _soak(rows: list[Row]) -> str:
    largest = max(int(row["trajectories"]) for row in rows)
    runs = [row for row in rows if row["trajectories"] == largest]
    told = "; ".join(f"{row['growth']:.1%} and {row['growth_of_run']:.1%}" for row in runs)
    size = f"{_runs(len(runs))} of {largest:,} trajectories and {runs[-1]['restarts']} kills"
    return _so_far("soak", largest, f"within a stretch and over the run: {told} ({size})")


def _fleet(rows: list[Row]) -> str:
    last = rows[-1]
    sizes = last["sizes"].items()
    rates = [f"{one['trajectories_per_s']:,.0f} with {int(size):,}" for size, one in sizes]
    largest = list(last["sizes"].values())[-1]
    ends = "at none of these sizes"
    if last["ends_at"] is not None:
        ends = f"at {last['ends_at']:,}: less than half of the first, or peers lost"
    return (
        f"answers a second: {', '.join(rates)} generators ({largest['ranks']:g} ranks); it ends "
        f"{ends}. Then its core is {largest['coordinator_busy']:.0%} busy, and "
        f"{largest['lost']:g} peers were given up"
    )


def _so_far(name: str, trajectories: int, told: str) -> str:
    """What a benchmark told, and that a whole run is missing where it is."""
    return told if trajectories >= WHOLE_RUN else f"{told}; more {missing(name)}"


def _fuzzed(rows: list[Row]) -> str:
    found = summary(rows)
    inputs = {name: found["targets"].get(name, {"inputs": 0})["inputs"] for name in TARGETS}
    least = min(inputs, key=inputs.__getitem__)
    return (
        f"{len(found['findings'])} open in {found['inputs']:,} inputs; the fewest of a target: "
        f"{inputs[least]:,} (`{least}`)"
    )


def _suite(rows: list[Row]) -> str:
    last = rows[-1]
    tests = ", ".join(f"{count:,} {name}" for name, count in last["tests"].items())
    return (
        f"{last['steps'].get('tests', 0) / 60:.1f} minutes of tests, {last['seconds'] / 60:.1f} "
        f"with checks ({tests}){_beside(last)}"
    )


def _largest(rows: Sequence[Row]) -> Row:
    return max(reversed(rows), key=lambda row: int(row["trajectories"]))


def _pages(row: Row) -> str:
    pages = sorted(row["pages"].items(), key=lambda page: -float(page[1]["first_paint_s"]))
    lines = [
        (
            name,
            _paint(page),
            f"{page['whole_s']:.2f} s",
            f"{page['cpu_s']:.2f} s",
            f"{page['bytes_per_paint'] / 1000:,.0f} kB",
            f"{page['bytes_per_refresh'] / 1000:,.0f} kB" if "bytes_per_refresh" in page else "",
        )
        for name, page in pages
    ]
    promised = ("promised", "1.5 s", "", "0.5 s", "", "50 kB")
    head = ("page", "first paint", "whole", "server's processor", "bytes", "bytes of a refresh")
    beside = " Others were busy beside it." if row["disturbed"] else ""
    return Table(head, [promised, *lines]).markdown() + (
        f"\n{row['metric_rows']:,} metric rows and {row['trajectories']:,} trajectories. From a "
        f"filter's change to its rows: {row['filter_s']:.2f} s\n(promised 0.3 s). The server's "
        f"memory: at most {row['memory_mb']:,.0f} MB (promised 500 MB).{beside}\n"
    )


def _paint(page: Row) -> str:
    return f"{page['first_paint_s']:.2f} s (at most {page['first_paint_most_s']:.2f})"


def _private(row: Row) -> str:
    """What a window takes that keeps no code."""
    pages = row["pages"].items()
    first = sorted(pages, key=lambda page: -float(page[1]["first_paint_s"]))
    said = ", ".join(f"{name} {page['first_paint_s']:.2f} s" for name, page in first)
    return f"In a private window (`--private`): {said}.\n"


def _beside(row: Row) -> str:
    return "; others were busy beside it" if row["disturbed"] else ""


def _spread(seconds: Sequence[float]) -> str:
    return f"median {statistics.median(seconds):.1f} s, at most {max(seconds):.1f} s"


def _runs(number: int) -> str:
    return f"{number} run" if number == 1 else f"{number} runs"


def _short(text: str) -> str:
    """A last line without the paths of the machine."""
    return text.removeprefix("error: ").split("; logs in ")[0]
