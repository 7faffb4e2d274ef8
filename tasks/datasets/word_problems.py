"""Write a file of word problems: `python -m tasks.datasets.word_problems --out FILE`.

In: how many, and a seed. Out: a JSONL file of rows with `prompt` (chat messages), `answer` (a whole
number, 0 or more) and `kind`. Promises: the same number and seed give the same bytes, and no prompt
comes twice.
"""

import argparse
import json
from pathlib import Path
from random import Random
from typing import Any

MAX_ROWS = 100_000
NAMES = (
    "Amir", "Anna", "Ben", "Chloe", "David", "Elena", "Farid", "Grace", "Hana", "Ivan", "Julia",
    "Kofi", "Lena", "Marco", "Nina", "Omar", "Priya", "Rosa", "Sam", "Tom", "Uma", "Victor", "Wei",
    "Yara",
)  # fmt: skip
THINGS = (
    "apples", "balls", "books", "buttons", "cards", "coins", "cups", "eggs", "flowers", "keys",
    "lemons", "marbles", "pears", "pencils", "pens", "plates", "rings", "shells", "stamps", "toys",
)  # fmt: skip
KINDS = {
    "add": "{name} has {a} {things} and buys {b} more. How many {things} does {name} have now?",
    "take away": "{name} has {a} {things} and gives away {b}. How many {things} are left?",
    "multiply": "{name} has {a} boxes with {b} {things} each. How many {things} are there?",
    "two steps": "{name} has {a} {things}, gives away {b} and then finds {c} more. How many "
    "{things} does {name} have now?",
}


def problem(rng: Random) -> dict[str, Any]:
    """A row."""
    kind = rng.choice(list(KINDS))
    a = rng.randint(3, 12) if kind == "multiply" else rng.randint(11, 99)
    b = rng.randint(2, {"add": 99, "multiply": 12}.get(kind, a - 1))
    c = rng.randint(2, 50)
    answer = {"add": a + b, "take away": a - b, "multiply": a * b, "two steps": a - b + c}[kind]
    text = KINDS[kind].format(name=rng.choice(NAMES), things=rng.choice(THINGS), a=a, b=b, c=c)
    messages = [{"role": "user", "content": text}]
    return {"prompt": messages, "answer": str(answer), "kind": kind}


def problems(count: int, *, seed: int) -> list[dict[str, Any]]:
    """`count` rows, at most MAX_ROWS, with different prompts."""
    rng = Random(f"word problems/{seed}")
    found: dict[str, dict[str, Any]] = {}
    while len(found) < count:
        row = problem(rng)
        found[row["prompt"][0]["content"]] = row
    return list(found.values())


def main(arguments: list[str] | None = None) -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description="Write a JSONL file of word problems.")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="file to write")
    parser.add_argument("--rows", type=int, default=3000, metavar="N", help="how many (3000)")
    parser.add_argument("--seed", type=int, default=0, help="another seed, other problems (0)")
    options = parser.parse_args(arguments)
    if not 1 <= options.rows <= MAX_ROWS:
        parser.error(f"--rows {options.rows}: from 1 to {MAX_ROWS:,}")
    rows = problems(options.rows, seed=options.seed)
    try:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    except OSError as error:
        parser.error(f"--out {options.out}: {error.strerror}")
    print(f"{len(rows):,} problems -> {options.out}")


if __name__ == "__main__":
    main()
