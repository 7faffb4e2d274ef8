"""`headrace reward ...`: its subcommands and their options.

In: what makes a command's parser. Out: parsers.
"""

import argparse
from pathlib import Path
from typing import Any

from headrace_cli.cli_options import CommandMaker, add_options

ANCHOR_EXAMPLES = """\
headrace reward anchors recipes/pairwise-ppo.toml --best-of 8 --out anchors.jsonl
  headrace reward anchors recipes/pairwise-ppo.toml --by verifier --out anchors.jsonl

The recipe's generator writes N answers to each prompt; the best becomes its anchor. It is picked
by the source of rewards that scores the prompt: one of the kind pairwise compares the answers with
its model, every other one scores them. The same command goes on with what was interrupted.
The file is options.anchors of the kind pairwise, and a dataset with a column `anchor`.
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


def add_reward(command: CommandMaker) -> None:
    """The command with all its subcommands."""
    reward = command(
        "reward", "try rewards, label lines, create anchors, train a reward model",
        "headrace reward try recipes/quickstart.toml answers.jsonl",
    )  # fmt: skip
    inner = reward.add_subparsers(dest="action", metavar="ACTION", required=True)
    tried = command(
        "try", "score the answers in a file as a run would, one line each",
        "headrace reward try recipes/quickstart.toml answers.jsonl --json", within=inner,
        takes="recipe root",
    )  # fmt: skip
    tried.add_argument("file", metavar="FILE", help="rows of prompt, completion, answer, ...")
    add_options(tried, "overrides")
    tried.add_argument("--json", action="store_true", help="one JSON object per line")
    _labelling(command, inner)
    _anchors(command, inner)
    _training(command, inner, "a reward model", REWARD_EXAMPLES)


def _labelling(command: CommandMaker, within: Any) -> None:
    labelled = command(
        "label", "label the lines of answers, for training a line reward model",
        "headrace reward label recipes/code-prm.toml --samples 2000 --k 8 --out labels.jsonl",
        within=within,
        takes="recipe overrides json root",
    )  # fmt: skip
    labelled.add_argument("--policy", metavar="DIR", help="a model folder instead of the recipe's")
    labelled.add_argument(
        "--answers", metavar="FILE", help="rows of prompt, completion, answer, ..."
    )
    labelled.add_argument("--samples", type=int, metavar="N", help="sample N answers instead")
    labelled.add_argument("--k", type=int, default=8, help="completions of a prefix at most (8)")
    labelled.add_argument("--out", type=Path, required=True, metavar="FILE", help="JSON lines")
    labelled.add_argument(
        "--revised-only", action="store_true",
        help="keep only wrong answers that began well",
    )  # fmt: skip
    labelled.add_argument(
        "--fenced", action=argparse.BooleanOptionalAction, default=None,
        help="only lines in a fenced code block count (default: where there is one)",
    )  # fmt: skip


def _anchors(command: CommandMaker, within: Any) -> None:
    made = command(
        "anchors", "create for each prompt the anchor that answers have to beat", ANCHOR_EXAMPLES,
        within=within,
        takes="recipe overrides json root",
    )  # fmt: skip
    made.add_argument("--policy", metavar="DIR", help="a model folder instead of the recipe's")
    made.add_argument(
        "--best-of", type=int, default=30, metavar="N", help="answers of each prompt (30)"
    )
    made.add_argument(
        "--prompts", type=int, metavar="N",
        help="training prompts (a dataset: all of them; else 1024); held-out ones come on top",
    )  # fmt: skip
    made.add_argument(
        "--by", metavar="SOURCE", help="the source of rewards that picks (the prompt's own)"
    )
    made.add_argument("--out", type=Path, required=True, metavar="FILE", help="JSON lines")


SFT_EXAMPLES = """\
headrace sft recipes/sft/cold-start.toml --out models/start
  headrace train recipes/quickstart.toml model.path=models/start    RL from there
  headrace sft recipes/sft/answers.toml model.path=DIR data.path=right.parquet
  headrace sft --resume latest                                      after Ctrl-C

A file has rows of prompt and response (or completion, output), or of messages that end with the
answer; `headrace export RUN sft` writes a run's right answers so."""


def add_sft(command: CommandMaker) -> None:
    """`headrace sft`."""
    _training(command, None, "a policy on given answers", SFT_EXAMPLES, name="sft")


RANK_EXAMPLES = """\
headrace rank train recipes/reward-models/coca.toml
  headrace rank train my-log.toml objective.contrastive.epochs=0    no pretraining, to compare
  headrace rank eval runs/RUN/model --lists test.jsonl --trec run.txt
  headrace rank eval run.txt --lists test.jsonl    metrics of any TREC run file

Sessions and lists are JSON lines with history (query, clicked), query, candidates and labels, or
lines of COCA's released data: a label, then queries and documents in turn, with tabs between."""


def add_rank(command: CommandMaker) -> None:
    """`headrace rank` with its subcommands."""
    rank = command("rank", "train and measure rankers that read a search session", RANK_EXAMPLES)
    inner = rank.add_subparsers(dest="action", metavar="ACTION", required=True)
    _training(command, inner, "a session ranker (COCA)", RANK_EXAMPLES)
    judged = command(
        "eval", "MAP, MRR and NDCG of a ranker on lists of candidates", RANK_EXAMPLES,
        within=inner, takes="json",
    )  # fmt: skip
    judged.add_argument(
        "model", metavar="MODEL", help="the folder of a ranker, or a TREC run file of the lists"
    )
    judged.add_argument(
        "--lists", metavar="FILE", help="lists of candidates (the search world's held-out ones)"
    )
    judged.add_argument("--trec", type=Path, metavar="FILE", help="write a TREC run file, too")


def _training(
    command: CommandMaker, within: Any, what: str, examples: str, *, name: str = "train"
) -> None:
    trained = command(
        name, f"train {what} by a recipe, or go on with one", examples,
        within=within,
        takes="recipe? overrides json root",
    )  # fmt: skip
    trained.add_argument("--out", type=Path, metavar="DIR", help="folder of the trained model")
    trained.add_argument(
        "--resume", metavar="RUN", help="go on with this run (`latest`: the newest of its kind)"
    )
    trained.add_argument("--plain", action="store_true", help="plain lines, no live display")
