"""`headrace export`, `sql`, `select`, `sink` and `replay`: their options.

In: what makes a command's parser. Out: parsers. Promise: no role is loaded for them: storage's
names are repeated here, and a test compares.
"""

from pathlib import Path

from headrace_cli.cli_options import CommandMaker

KINDS = {
    "trajectories": "a response, with its texts and lists of its tokens",
    "tokens": "a response token",
    "metrics": "a number",
    "windows": "a window",
    "scores": "a prompt, what its answers earned",
    "preferences": "the best and the worst answer of a group",
    "sft": "a right answer, each once",
}
"""Kinds of exports, and the content of a row of each."""
FORMATS = ("parquet", "jsonl", "csv", "arrow", "datasets")
"""Formats of exports."""
SCHEMAS = ("native", "trl", "verl", "turns")
"""Trainers whose form `preferences` and `sft` can have."""
TABLES = ("trajectories", "tokens", "metrics", "windows", "scores")
"""Tables of `headrace sql`."""
SINKS = ("tensorboard", "trackio", "wandb", "mlflow", "jsonl")
"""Names of the built-in sinks."""
FORMS = ("table", "csv", "json")
"""Output formats of a query's answer."""

EXPORT_EXAMPLES = """\
headrace export latest trajectories --out out.parquet --where 'reward > 0'
  headrace export latest tokens --out tokens.csv --columns trajectory_id,position,token,value
  headrace export latest preferences --schema trl --out pairs.jsonl

`headrace sql RUN "describe tokens"` lists the columns of a kind. A row is, by KIND:
"""
SQL_EXAMPLES = """\
headrace sql latest "select purpose, count(*), avg(reward) from trajectories group by purpose"
  headrace sql latest "describe tokens"

The dialect is DuckDB's. There are the tables that `headrace export` writes: {tables}.
A query sees one moment of the run, and nothing but the run: no file, no network, no change."""
CSV_SAFE = "in CSV, put ' before text that a spreadsheet would take for a formula"
NORMS = ("raw", "quantile", "zscore")
"""Norms of scores that `headrace select` compares."""
SELECT_EXAMPLES = """\
headrace score recipes/smollm2.toml --samples 16
  headrace select latest --keep 0.1 --out hard.jsonl
  headrace train recipes/smollm2.toml task.path=hard.jsonl

Prompts that none of at least 16 answers solved are left out: most have a wrong reference. z-scores
are for reward models whose offsets differ by domain; on pass rates they select easy prompts."""
REPLAY_EXAMPLES = """\
headrace replay latest --update 5
  headrace replay latest --update 5 --store-only            without a model

Batch, masks, advantages and metrics are recomputed from the store. If the checkpoint of the
previous update is kept, the models run, too: logprobs, values, losses, gradients, weights. Each
line is a quantity, how many numbers were compared and how far they lie apart. Exit code 1: some
differ by more than --tolerance."""


def add_data(command: CommandMaker) -> None:
    """`export`, `sql`, `select` and `sink`."""
    rows = "\n".join(f"  {kind:<13} {text}" for kind, text in KINDS.items())
    export = command(
        "export", "write a run's answers, tokens, metrics, windows or preferences to a file",
        EXPORT_EXAMPLES + rows,
        takes="run root",
    )  # fmt: skip
    export.add_argument("kind", metavar="KIND", help=f"one of: {', '.join(KINDS)}")
    export.add_argument(
        "--format", metavar="F", help=f"{', '.join(FORMATS)} (by the ending of PATH)"
    )
    export.add_argument(
        "--out",
        required=True,
        type=Path,
        metavar="PATH",
        help="the file to write; for datasets a folder",
    )
    export.add_argument(
        "--where", metavar="FILTER",
        help="only rows for which this holds, such as 'reward == 1 and length > 100'",
    )  # fmt: skip
    export.add_argument("--columns", metavar="A,B,...", help="only these columns, in this order")
    export.add_argument(
        "--schema", default="native", metavar="S",
        help=f"of preferences and sft, for whose trainer: {', '.join(SCHEMAS)} (native)",
    )  # fmt: skip
    export.add_argument("--csv-safe", action="store_true", help=CSV_SAFE)
    export.add_argument("--force", action="store_true", help="replace what is at PATH")

    sql = command(
        "sql", "query a run in SQL", SQL_EXAMPLES.format(tables=", ".join(TABLES)),
        takes="run root",
    )  # fmt: skip
    sql.add_argument(
        "query", metavar="QUERY", help="one SELECT in quotes; - reads it from standard input"
    )
    sql.add_argument(
        "--format", default="table", choices=FORMS, help="how the answer is printed (table)"
    )
    sql.add_argument("--csv-safe", action="store_true", help=CSV_SAFE)
    sql.add_argument(
        "--limit", type=int, default=100, metavar="N",
        help="rows of a table at most (100); 0: all",
    )  # fmt: skip
    sql.add_argument("--seconds", type=float, default=60.0, metavar="S", help="time limit (60)")
    sql.add_argument(
        "--memory", type=int, default=1024, metavar="MIB", help="memory limit in MiB (1024)"
    )  # fmt: skip

    select = command(
        "select", "keep the prompts that a policy scores lowest on (Pre-PPO)", SELECT_EXAMPLES,
        takes="run json root",
    )  # fmt: skip
    select.add_argument(
        "--keep", required=True, type=float, metavar="K",
        help="below 1 a share of all prompts, else a number of them",
    )  # fmt: skip
    select.add_argument("--out", required=True, type=Path, metavar="FILE", help="JSONL to write")
    select.add_argument(
        "--norm", default="raw", choices=NORMS,
        help="what is compared: means (raw), their quantile in the domain, or z-scores",
    )  # fmt: skip
    select.add_argument(
        "--domain", metavar="COLUMN", help="the rows' domain (the source of their rewards)"
    )
    select.add_argument("--base", metavar="FILE", help="rows that come first, each prompt once")
    select.add_argument("--data", metavar="FILE", help="where the scored rows are now")
    select.add_argument("--policy", metavar="FOLDER", help="refuse scores of another policy")
    select.add_argument(
        "--no-guard", dest="guard", action="store_false",
        help="keep prompts that no answer ever solved",
    )  # fmt: skip
    select.add_argument("--force", action="store_true", help="replace what is at FILE")

    sink = command(
        "sink", "stream a run's metrics to TensorBoard, Trackio or a file",
        "headrace sink latest tensorboard --out boards/first",
        takes="run root",
    )  # fmt: skip
    sink.add_argument(
        "sink", metavar="SINK", help=f"{', '.join(SINKS)}, or a file of your own: my_sink.py"
    )
    sink.add_argument("--out", type=Path, metavar="DIR", help="the sink's folder (RUN/sinks/SINK)")
    sink.add_argument("--once", action="store_true", help="send all present metrics, then end")


def add_replay(command: CommandMaker) -> None:
    """`replay`."""
    again = command(
        "replay", "recompute one update from stored data and report differences",
        REPLAY_EXAMPLES,
        takes="run json root",
    )  # fmt: skip
    again.add_argument(
        "--update", type=int, required=True, metavar="N", help="which one; the first is 1"
    )
    again.add_argument(
        "--store-only",
        action="store_true",
        help="run no model, even if the previous update's checkpoint is kept",
    )
    again.add_argument(
        "--tolerance", type=float, default=1e-4, metavar="X",
        help="allowed difference of model outputs (1e-4 of the stored number, or of 1)",
    )  # fmt: skip
