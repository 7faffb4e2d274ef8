"""Tools that come with Headrace, as environments: a search, and an interpreter.

In: a corpus, limits. Out: a factory of environments. Promise: the same call has the same answer.
"""

import asyncio
import json
import re
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from environments.tools import CallFormat, ToolEnvironment
from sandbox.interpreter import interpreter_for
from sandbox.isolation_check import working_layer
from sandbox.limits import MIB, Limits, Program
from sandbox.pool import Sandbox

SNIPPET = 64
"""Number of words of a document that are shown; FTS5 gives no more."""


def search(*, calls: CallFormat, path: str, results: int = 3) -> Callable[[], ToolEnvironment]:
    """Make the tool `search` over a corpus, which shows the best `results` by BM25.

    `path`: a JSONL file of documents with `text` and, if they have one, `title`."""
    corpus = sqlite3.connect(":memory:", check_same_thread=False)
    corpus.execute("create virtual table documents using fts5(title, text, tokenize='porter')")
    with Path(path).open(encoding="utf-8") as file:
        read = map(json.loads, filter(str.strip, file))
        rows = ((one.get("title", ""), one["text"]) for one in read)
        corpus.executemany("insert into documents values (?, ?)", rows)
    ask = f"""select title, snippet(documents, 1, '', '', '...', {SNIPPET}) from documents
              where documents match ? order by rank, rowid limit ?"""

    def search(query: str) -> list[dict[str, str]]:
        """Search the documents for words.

        Args:
            query: words; documents that have more of them come first
        """
        words = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", query))
        found = corpus.execute(ask, (words, results)) if words else ()
        return [{"title": title, "text": text} for title, text in found]

    return lambda: ToolEnvironment([search], calls)


def python(
    *, calls: CallFormat, seconds: float = 10.0, memory_mib: int = 512, packages: Sequence[str] = ()
) -> Callable[[], ToolEnvironment]:
    """Make the tool `python`, which runs a program in a new sandbox cell per call.

    `seconds`: limit of a turn's programs together, which run one by one. `memory_mib`: of each.
    `packages`: those of ours that it may import. UserError where no cell holds."""
    shown = interpreter_for(None, packages)
    with ThreadPoolExecutor(1) as aside:  # An event loop runs here.
        layer = aside.submit(asyncio.run, working_layer(shown)).result()
    limits = Limits(seconds=seconds, memory_bytes=memory_mib * MIB)
    sandbox = Sandbox(limits, layer=layer, python=shown)

    def make() -> ToolEnvironment:
        one_by_one, left = asyncio.Lock(), seconds

        async def python(code: str) -> str | dict[str, str]:
            """Run a Python program and read what it prints.

            Args:
                code: the whole program; nothing is kept from earlier ones
            """
            nonlocal left
            left = left if one_by_one.locked() else seconds  # the first of a turn
            async with one_by_one:
                done = await sandbox.run(Program(code, seconds=max(left, 0.01)))
                left -= done.seconds
            if done.status == "ok":
                return done.stdout
            return {"status": done.status, "stdout": done.stdout, "stderr": done.stderr}

        return ToolEnvironment([python], calls)

    return make
