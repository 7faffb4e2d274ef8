"""Whole runs for tests: `headrace` in processes of their own, as a user starts it."""

import contextlib
import io
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.run_files.update_log import read_applied
from headrace_cli.cli import main
from storage.exports.sql import ask
from tests.warm_roles import warm

REPOSITORY = Path(__file__).parents[2]
QUICKSTART = REPOSITORY / "recipes" / "quickstart.toml"
SMALL = (
    "schedule.batch_windows=16",
    "generator.max_num_seqs=32",
    "generator.kv_cache_gib=0.25",
    "evaluation.num_prompts=64",
    "algorithm.value.warmup_updates=1",
    "dashboard.enabled=false",
)
PLAIN = ("generator.engine=torch", "evaluation.before=false", "evaluation.after=false")
"""Of runs that are not about their generator: its engine starts in half the time."""
READING = ("audit", "export", "show")


class Run:
    """One `headrace train` and its run folder under `root`."""

    def __init__(
        self,
        root: Path,
        *overrides: str,
        resume: str | None = None,
        shown: Path | None = None,
        cold: bool = False,
        slow: bool = False,
        recipe: Path | None = None,
    ) -> None:
        """`shown`: the folder for what the command prints; by default the root. `cold`: each
        process is started as a user's, else forked with its imports (`warm_roles`). `slow`: roles
        go through `slow_role`. `recipe`: another one than a small quickstart."""
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self.log = (shown or root) / f"train-{time.monotonic_ns()}.log"
        begun = [str(QUICKSTART), *SMALL] if recipe is None else [str(recipe)]
        target = ["--resume", resume, *overrides] if resume else [*begun, *overrides]
        command = ["train", "--plain", "--root", str(root), *target]
        with self.log.open("wb") as log:
            self.process = warm(command, stdout=log, slow=slow, cold=cold)

    @property
    def run_dir(self) -> Path:
        """The only run folder under the root."""
        (folder,) = [p for p in self.root.iterdir() if p.is_dir() and not p.is_symlink()]
        return folder

    def text(self) -> str:
        """What it printed."""
        return self.log.read_text(errors="replace")

    def wait(self, timeout_s: float = 240.0) -> int:
        """Its exit code."""
        return self.process.wait(timeout_s)

    def until(self, condition: Callable[[], bool], timeout_s: float = 180.0) -> None:
        """Wait while the run goes on; fails with what it printed when it ends before."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.1)

    def supervised(self, name: str) -> int:
        """Process id of a role."""
        path = self.run_dir / "supervisor.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        return int([r for r in rows if r.get("name") == name and r.get("pid")][-1]["pid"])

    def applied(self) -> int:
        """Updates that the learner wrote down; 0 before there is a run folder."""
        if not any(self.root.glob("*/supervisor.jsonl")):
            return 0
        return sum(1 for _ in read_applied(self.run_dir))

    def ask(self, query: str) -> list[tuple]:  # type: ignore[type-arg]
        """The rows of one SELECT over the run."""
        with ask(self.run_dir, query) as found:
            return list(found.rows)

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def end(self) -> None:
        """Whatever happened: leave nothing behind."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def show(self) -> dict[str, Any]:
        """`headrace show latest --json`."""
        done = headrace("show", "latest", "--json", "--root", str(self.root))
        assert done.returncode == 0, done.stderr
        shown: dict[str, Any] = json.loads(done.stdout)
        return shown


def headrace(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the command line to its end; what only reads, in this process."""
    if arguments[0] in READING:
        told, mistakes = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(mistakes):
            code = main(arguments)
        return subprocess.CompletedProcess(arguments, code, told.getvalue(), mistakes.getvalue())
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = warm(arguments, stdout=out, stderr=err)
        try:
            code = process.wait(240)
        finally:
            process.send_signal(signal.SIGKILL)
        for file in (out, err):
            file.seek(0)
        texts = [file.read().decode() for file in (out, err)]
    return subprocess.CompletedProcess(arguments, code, *texts)
