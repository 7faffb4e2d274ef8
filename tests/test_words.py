"""The words of docstrings and of command help: no figures of speech that only their author decodes.

FIGURES lists them with the plain form; at most MOST of them may stand in production code.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = (
    "headrace", "storage", "learner", "rewards", "coordinator", "generators", "environments",
    "tasks", "sandbox", "dashboard", "headrace_cli", "benchmarks", "scripts",
)  # fmt: skip
MOST = 25
"""Maximum number of figures of speech in all production code."""
HELP = ("help", "description", "epilog")
FIGURES = {
    r"\b[Ss]o (many|few|often)\b": "the number with its unit",
    r"\b(is|are|was|were|be|been|being|it|they|gets?) told\b": "receives, is sent, is notified of",
    r"\bhears? of\b|\bhears (what|how|that)\b": "receives",
    r"(?<![`(])\b(tells?|telling)\b(?![`:])": "sends, reports, shows, distinguishes",
    r"\bwho ?ever\b|\bWho ?ever\b": "the caller, any process that",
    r"\banew\b(?!`)|\bonce more\b": "again; recompute, retry, rebuild",
    r"(?:^|[.:] )Most (?!of )[a-z]": "maximum number of",
    r"\b(one|an?) (?!for |in |to |that |if |is )[a-z]+ an? (arm|batch|bin|column|cut|day|group|line"
    r"|megabyte|message|minute|month|noun|number|operation|process|prompt|read|record|request|row"
    r"|response|run|second|seed|segment|step|swap|task|token|trajectory|trial|update|window)\b": (
        "one ... per ..."
    ),
    r"\b(has|have|had) (it|them) out\b": "in flight",
    r"\b(batch|version|question)\b[^.;:,]* (is|are) out\b": "in flight, published",
    r"\b(go|goes|gone|going) over (it |them )?again\b": "replays",
    r"(?:^|\. )What [^.]{0,80} will tell\b": "subject first: the message says whether",
    r"\bthe (made|found|seen|judged|begun|asked|wanted)(?= (is|are|has|have)\b|[.;,])": "its name",
}
"""Plain forms by the pattern of a figure of speech."""


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring, attribute docstring and help text of a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        parts: list[ast.AST] = []
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            parts = [node.value]
        elif isinstance(node, ast.keyword) and node.arg in HELP:
            parts = list(ast.walk(node.value))
        elif isinstance(node, ast.Call | ast.Assign) and path.name.startswith("cli"):
            parts = list(ast.iter_child_nodes(node))
            if isinstance(node, ast.Assign):
                parts = list(ast.walk(node.value))
        for part in parts:
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.lineno, " ".join(part.value.split())


def findings() -> list[str]:
    """Place, figure of speech and plain form of each."""
    return [
        f"{path.relative_to(ROOT)}:{line}: {found.group()!r}: {plain}"
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        for line, text in prose(path)
        for pattern, plain in FIGURES.items()
        for found in re.finditer(pattern, text)
    ]


def test_docstrings_and_help_have_no_figures_of_speech() -> None:
    found = findings()
    assert len(found) <= MOST, "\n".join(["write these out:", *found])


def test_first_lines_name_a_thing_or_an_act() -> None:
    """Not "What the learner read", but "Tokens that the learner read"."""
    asking = ("What", "Who", "Where", "How", "Whether", "When", "Which")
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [
        f"{path.relative_to(ROOT)}: {text.splitlines()[0]}"
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, kinds) and (text := ast.get_docstring(node))
        if text.split()[0] in asking
    ]
    assert found == []


if __name__ == "__main__":
    print(*(found := findings()), f"{len(found)} figures of speech", sep="\n")
