"""All commands of the command line, as a table.

In: nothing. Out: `COMMANDS`. Promises: no role is loaded for it (storage's names are repeated here,
and a test compares); one word for one thing, since options of several commands are in `SHARED`.

The key of an option is `--name` for a switch, `--name METAVAR` for one with a value, and
`name METAVAR` for an argument; behind the name may stand `!` (required) or argparse's nargs (`?`,
`*`, `+`, `...`). Its value is the help, or a pair with the help behind a type, a default that has
the type, the choices (the first is the default), or a list, where the option can be repeated; or
the settings as argparse takes them.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

Options = Mapping[str, str | tuple[Any, str] | dict[str, Any]]


class CommandSpec(NamedTuple):
    """A command. `function`: its place in `headrace_cli.commands`, empty where it has subcommands;
    `shared`: words of `SHARED`, which come first; `groups`: options under a title."""

    function: str
    meaning: str
    example: str
    shared: str = ""
    options: Options = MappingProxyType({})
    groups: Mapping[str, Options] = MappingProxyType({})


SHARED: dict[str, Options] = {
    "recipe": {"recipe RECIPE": "a TOML file"},
    "recipe?": {"recipe? RECIPE": "a TOML file"},
    "overrides": {"overrides* key=value": "e.g. learner.policy.lr=1e-5"},
    "run": {"name RUN": "`latest`, a run's id or how it begins, or its folder"},
    "json": {"--json": "one JSON object on standard output"},
    "hardware": {"--hardware FILE": (Path, "another machine, from `headrace doctor --json`")},
    "root": {"--root DIR": (Path, "folder of the runs (runs)")},
    "policy": {"--policy DIR": "a model folder or hub name instead of the recipe's"},
}

# -- names of storage, and examples ----------------------------------------------------------------

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
FORMS = ("table", "csv", "json")
"""Output formats of a query's answer."""
NORMS = ("raw", "quantile", "zscore")
"""Norms of scores that `headrace select` compares."""
CSV_SAFE = "in CSV, put ' before text that a spreadsheet would take for a formula"

ROWS = "\n".join(f"  {kind:<13} {text}" for kind, text in KINDS.items())
EXPORT_EXAMPLES = f"""\
headrace export latest trajectories --out out.parquet --where 'reward > 0'
  headrace export latest tokens --out tokens.csv --columns trajectory_id,position,token,value
  headrace export latest preferences --schema trl --out pairs.jsonl

`headrace sql RUN "describe tokens"` lists the columns of a kind. A row is, by KIND:
{ROWS}"""
SQL_EXAMPLES = f"""\
headrace sql latest "select purpose, count(*), avg(reward) from trajectories group by purpose"
  headrace sql latest "describe tokens"

The dialect is DuckDB's. There are the tables that `headrace export` writes: {", ".join(TABLES)}.
A query sees one moment of the run, and nothing but the run: no file, no network, no change."""
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
ANCHOR_EXAMPLES = """\
headrace reward anchors recipes/pairwise-ppo.toml --best-of 8 --out anchors.jsonl
  headrace reward anchors recipes/pairwise-ppo.toml --by verifier --out anchors.jsonl

The recipe's generator writes N answers to each prompt; the best becomes its anchor. It is picked
by the source of rewards that scores the prompt: one of the kind pairwise compares the answers with
its model, every other one scores them. The same command goes on with what was interrupted.
The file is options.anchors of the kind pairwise, or a dataset (task.prompt_template is applied).
"""
REWARD_EXAMPLES = """\
headrace reward train recipes/reward-models/lines.toml --out models/prm
  headrace reward train my-pairs.toml training.lr=5e-6        any key can be overridden
  headrace reward train --resume latest                       after Ctrl-C

The recipe says what is learned (objective.kind):
  bradley_terry   a score of a whole answer, from pairs: rows of prompt, chosen, rejected
  pairwise        yes or no to "is the first answer better", from the same pairs
  lines           a score at the end of each line, from rows of prompt, lines, labels (1, 0, -1)
and from what (data.kind): file, run (the groups of `headrace train`), or task (made on the spot).
The model, its report and its curves are in the run folder; `headrace show RUN` and the dashboard
know it, model.critic_path and reward sources take it."""
SFT_EXAMPLES = """\
headrace sft recipes/sft/cold-start.toml --out models/start
  headrace train recipes/quickstart.toml model.path=models/start    RL from there
  headrace sft recipes/sft/answers.toml model.path=DIR data.path=right.parquet
  headrace sft --resume latest                                      after Ctrl-C

A file has rows of prompt and response (or completion, output), or of messages that end with the
answer; `headrace export RUN sft` writes a run's right answers so."""
RANK_EXAMPLES = """\
headrace rank train recipes/reward-models/coca.toml
  headrace rank train my-log.toml objective.contrastive.epochs=0    no pretraining, to compare
  headrace rank eval runs/RUN/model --lists test.jsonl --trec run.txt
  headrace rank eval run.txt --lists test.jsonl    metrics of any TREC run file

Sessions and lists are JSON lines with history (query, clicked), query, candidates and labels, or
lines of COCA's released data: a label, then queries and documents in turn, with tabs between."""

# -- the table -------------------------------------------------------------------------------------

MODEL_TRAINING: Options = {
    "--out DIR": (Path, "folder of the trained model"),
    "--resume RUN": "go on with this run (`latest`: the newest of its kind)",
    "--plain": "plain lines, no live display",
}
COMMANDS = {
    "train": CommandSpec(
        "run.train.train",
        "train a model by a recipe, or resume a run",
        "headrace train recipes/quickstart.toml learner.policy.lr=5e-5 --no-dashboard",
        "recipe? overrides root",
        {
            "--resume RUN": "go on with this run (`latest`: the newest)",
            "--no-dashboard": "start no web page",
            "--plain": "plain lines, no live display",
        },
    ),
    "launch": CommandSpec(
        "run.launch.launch",
        "train over several hosts of a cluster",
        "headrace launch recipe.toml --on slurm --nodes 4 --gpus-per-node 8 --time 12:00:00",
        "recipe? overrides root",
        {
            "--on!": (
                ("slurm", "ray"),
                "slurm: write the scripts of a job into a new run folder; ray: run on a Ray "
                "cluster",
            ),
            "--resume RUN": "go on with this run",
        },
        {
            "on Ray": {
                "--address HOST:PORT": ("auto", "the cluster (the one of this host)"),
                "--plain": "plain lines, no live display",
            },
            "on Slurm": {
                "--nodes N": (1, "nodes of the job (1)"),
                "--gpus-per-node N": (0, "of each node (0)"),
                "--cpus-per-node N": (0, "cores of each node (default: as many as the plan needs)"),
                "--learner-nodes N": (
                    0,
                    "nodes that share the learner's ranks (default: as few as have the GPUs)",
                ),
                "--time HH:MM:SS": "as for sbatch",
                "--partition NAME": "as for sbatch",
                "--account NAME": "as for sbatch",
                "--sbatch OPTION": (
                    [],
                    "a further option of sbatch, e.g. --sbatch=--qos=high; repeat for more",
                ),
                # What the written script says to this command within the job.
                "--inside INSIDE": (Path, argparse.SUPPRESS),
                "--hosts+ HOSTS": argparse.SUPPRESS,
            },
        },
    ),
    "generator": CommandSpec(
        "run.generator.generator",
        "add a generator to a live run",
        "headrace generator --connect runs/RUN",
        "root",
        {
            "--connect! RUN|tcp://HOST:PORT": "a run, whose folder says where it is and has its "
            "keys, or an address",
            "--name NAME": "unique in the run (default: by host and process)",
            "--curve-keys DIR": (Path, "a copy of the run's keys, for an address"),
            "--cpus CPUS": "processor cores, e.g. 0,1",
        },
    ),
    "stop": CommandSpec(
        "inspection.runs.stop",
        "drain a run, write its checkpoint, end it",
        "headrace stop latest",
        "run root",
        {"--timeout S": (180.0, "give up after S seconds without progress (180)")},
    ),
    "eval": CommandSpec(
        "run.evaluate.evaluate",
        "measure a model's accuracy on a recipe's held-out prompts",
        "headrace eval runs/RUN/checkpoints/step_160/policy --task recipes/quickstart.toml --json",
        "json root",
        {
            "model MODEL": "a model folder or hub name",
            "--task! RECIPE": {"dest": "recipe", "help": "the recipe that holds out the prompts"},
            **SHARED["overrides"],
        },
    ),
    "try-environment": CommandSpec(
        "run.try_environment.try_environment",
        "play episodes of a recipe's environment, one line per turn",
        "headrace try-environment recipes/calculator.toml --episodes 3",
        "recipe overrides root",
        {
            "--policy? DIR": {
                "const": "",
                "help": "let a model play: the recipe's, or one in a folder",
            },
            "--episodes N": (1, "how many (1)"),
        },
    ),
    "score": CommandSpec(
        "data.prompt_scores.score",
        "score a policy's answers to each training prompt, for `select`",
        "headrace score recipes/smollm2.toml --samples 16",
        "recipe? overrides json root",
        {
            "--samples M": (16, "answers to each prompt (16)"),
            "--prompts N": (10**9, "the first N prompts (all)"),
            "--resume RUN": "go on with this run",
        },
    ),
    "dashboard": CommandSpec(
        "inspection.runs.dashboard",
        "serve the web page of all runs",
        "headrace dashboard runs --port 8600",
        "root",
        {
            "folder? ROOT": "folder of the runs (runs)",
            "--host HOST": ("127.0.0.1", "where it listens (127.0.0.1)"),
            "--port PORT": (8501, "0 takes a free one (8501)"),
        },
    ),
    "runs": CommandSpec(
        "inspection.runs.runs",
        "list all runs",
        "headrace runs --json",
        "json root",
        {"--archived": "list archived runs, too"},
    ),
    "show": CommandSpec(
        "inspection.runs.show",
        "show a run's metrics and account",
        "headrace show latest",
        "run json root",
    ),
    "audit": CommandSpec(
        "inspection.audit.audit",
        "verify a run's token accounting, or repair its journal",
        "headrace audit latest --json",
        "run json root",
        {
            "--repair": "end a damaged journal before its first unusable record; keeps the damaged "
            "one"
        },
    ),
    "replay": CommandSpec(
        "inspection.replay.replay",
        "recompute one update from stored data and report differences",
        REPLAY_EXAMPLES,
        "run json root",
        {
            "--update! N": (int, "which one; the first is 1"),
            "--store-only": "run no model, even if the previous update's checkpoint is kept",
            "--tolerance X": (
                1e-4,
                "allowed difference of model outputs (1e-4 of the stored number, or of 1)",
            ),
        },
    ),
    "export": CommandSpec(
        "data.export.export",
        "write a run's answers, tokens, metrics, windows or preferences to a file",
        EXPORT_EXAMPLES,
        "run root",
        {
            "kind KIND": f"one of: {', '.join(KINDS)}",
            "--format F": f"{', '.join(FORMATS)} (by the ending of PATH)",
            "--out! PATH": (Path, "the file to write; for datasets a folder"),
            "--where FILTER": "only rows for which this holds, such as 'reward == 1 and length > "
            "100'",
            "--columns A,B,...": "only these columns, in this order",
            "--schema S": (
                "native",
                f"of preferences and sft, for whose trainer: {', '.join(SCHEMAS)} (native)",
            ),
            "--csv-safe": CSV_SAFE,
            "--force": "replace what is at PATH",
        },
    ),
    "sql": CommandSpec(
        "data.sql.sql",
        "query a run in SQL",
        SQL_EXAMPLES,
        "run root",
        {
            "query QUERY": "one SELECT in quotes; - reads it from standard input",
            "--format": (FORMS, "how the answer is printed (table)"),
            "--csv-safe": CSV_SAFE,
            "--limit N": (100, "rows of a table at most (100); 0: all"),
            "--seconds S": (60.0, "time limit (60)"),
            "--memory MIB": (1024, "memory limit in MiB (1024)"),
        },
    ),
    "select": CommandSpec(
        "data.prompt_scores.select",
        "keep the prompts that a policy scores lowest on (Pre-PPO)",
        SELECT_EXAMPLES,
        "run json root",
        {
            "--keep! K": (float, "below 1 a share of all prompts, else a number of them"),
            "--out! FILE": (Path, "JSONL to write"),
            "--norm": (
                NORMS,
                "what is compared: means (raw), their quantile in the domain, or z-scores",
            ),
            "--domain COLUMN": "the rows' domain (the source of their rewards)",
            "--base FILE": "rows that come first, each prompt once",
            "--data FILE": "the file that was scored, if it has moved",
            "--policy FOLDER": "refuse scores of another policy",
            "--no-guard": {
                "dest": "guard",
                "action": "store_false",
                "help": "keep prompts that no answer ever solved",
            },
            "--force": "replace what is at FILE",
        },
    ),
    "sink": CommandSpec(
        "data.sink.sink",
        "stream a run's metrics to TensorBoard, Trackio, wandb, MLflow or a file",
        "headrace sink latest tensorboard --out boards/first",
        "run root",
        {
            "sink SINK": f"{', '.join(SINKS)}, or a file of your own: my_sink.py",
            "--out DIR": (Path, "the sink's folder (RUN/sinks/SINK)"),
            "--once": "send all present metrics, then end",
        },
    ),
    "config": CommandSpec(
        "",
        "inspect a recipe without starting a run",
        "headrace config explain recipes/quickstart.toml",
    ),
    "config show": CommandSpec(
        "system.config.show",
        "every key with its value, defaults included",
        "headrace config show recipes/quickstart.toml",
        "recipe overrides json root",
    ),
    "config check": CommandSpec(
        "system.config.check",
        "errors of a recipe on this machine",
        "headrace config check recipes/quickstart.toml",
        "recipe overrides json root",
    ),
    "config explain": CommandSpec(
        "system.config.explain",
        "what a recipe means: batch arithmetic, staleness, memory, processes",
        "headrace config explain recipes/quickstart.toml",
        "recipe overrides json root hardware",
        {
            "--measure": "run three updates on this machine (minutes), say how fast it will be, "
            "what binds, and the memory that each role took",
            "--against RUN": "with --measure: compare the forecast with the first updates of a run "
            "of the recipe",
        },
    ),
    "reward": CommandSpec(
        "",
        "try rewards, label lines, create anchors, train a reward model",
        "headrace reward try recipes/quickstart.toml answers.jsonl",
    ),
    "reward try": CommandSpec(
        "reward.try_rewards.try_rewards",
        "score the answers in a file as a run would, one line each",
        "headrace reward try recipes/quickstart.toml answers.jsonl --json",
        "recipe root",
        {
            "file FILE": "rows of prompt, completion, answer, ...",
            **SHARED["overrides"],
            "--json": "one JSON object per line",
        },
    ),
    "reward label": CommandSpec(
        "reward.labels.label",
        "label the lines of answers, for training a line reward model",
        "headrace reward label recipes/code-prm.toml --samples 2000 --k 8 --out labels.jsonl",
        "recipe overrides json root policy",
        {
            "--answers FILE": "rows of prompt, completion, answer, ...",
            "--samples N": (int, "sample N answers instead"),
            "--k K": (8, "completions of a prefix at most (8)"),
            "--out! FILE": (Path, "JSON lines"),
            "--revised-only": "keep only wrong answers that began well",
            "--fenced": {
                "action": argparse.BooleanOptionalAction,
                "help": "only lines in a fenced code block count (default: where there is one)",
            },
        },
    ),
    "reward anchors": CommandSpec(
        "reward.anchors.anchors",
        "create for each prompt the anchor that answers have to beat",
        ANCHOR_EXAMPLES,
        "recipe overrides json root policy",
        {
            "--best-of N": (30, "answers of each prompt (30)"),
            "--prompts N": (
                int,
                "training prompts (a dataset: all of them; else 1024); held-out ones come on top",
            ),
            "--by SOURCE": "the source of rewards that picks (the prompt's own)",
            "--out! FILE": (Path, "JSON lines"),
        },
    ),
    "reward train": CommandSpec(
        "reward.train.train",
        "train a reward model by a recipe, or go on with one",
        REWARD_EXAMPLES,
        "recipe? overrides json root",
        MODEL_TRAINING,
    ),
    "rank": CommandSpec("", "train and measure rankers that read a search session", RANK_EXAMPLES),
    "rank train": CommandSpec(
        "reward.rank.train",
        "train a session ranker (COCA) by a recipe, or go on with one",
        RANK_EXAMPLES,
        "recipe? overrides json root",
        MODEL_TRAINING,
    ),
    "rank eval": CommandSpec(
        "reward.rank.evaluate",
        "MAP, MRR and NDCG of a ranker on lists of candidates",
        RANK_EXAMPLES,
        "json",
        {
            "model MODEL": "the folder of a ranker, or a TREC run file of the lists",
            "--lists FILE": "lists of candidates (the search world's held-out ones)",
            "--trec FILE": (Path, "write a TREC run file, too"),
        },
    ),
    "sft": CommandSpec(
        "reward.train.sft",
        "train a policy on given answers by a recipe, or go on with one",
        SFT_EXAMPLES,
        "recipe? overrides json root",
        MODEL_TRAINING,
    ),
    "doctor": CommandSpec(
        "system.doctor.doctor", "check the installation", "headrace doctor", "json"
    ),
    "sandbox": CommandSpec(
        "", "run a program in the sandbox", "headrace sandbox run program.py --json"
    ),
    "sandbox run": CommandSpec(
        "system.sandbox.run",
        "run one Python file and print its result",
        "headrace sandbox run program.py",
        "json",
        {
            "file FILE.py": (Path, "the program"),
            "--seconds S": (10.0, "deadline (10)"),
            "--python PROGRAM": "another environment's Python, with its packages",
            "--package NAME": (
                [],
                "an installed package that the program may import; repeat for more",
            ),
        },
    ),
    "keys": CommandSpec(
        "run.generator.keys",
        "make key files for connections off this machine",
        "headrace keys k/",
        options={"folder DIR": (Path, "the new folder for them")},
    ),
    "bench": CommandSpec(
        "system.benchmark.bench",
        "run a benchmark with its own options",
        "headrace bench generator --json",
        options={"name? NAME": "none: list them", "options... ...": "--help: its options"},
    ),
}
"""All commands, by their words, in the order of the help."""
