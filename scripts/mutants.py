"""Mutation testing of the mathematics: which small wrong changes no test notices.

    .venv/bin/python scripts/mutants.py                    all targets
    .venv/bin/python scripts/mutants.py learner.shaping    one of them
    .venv/bin/python scripts/mutants.py --sample 20        so many mutants of each, always the same
    .venv/bin/python scripts/mutants.py --again            only those that the report names

In: `TARGETS`, modules or single functions with the test files that guard them. Out: a line for each
mutant that survives, `docs/mutants.md` (only the targets that ran are written anew), exit code 1
if a survivor has no reason there. Reasons are written by hand under the survivors and kept as
long as they survive. Promises: everything runs in a copy, never in the tree; every mutant has a
time limit, and to pass it counts as killed; the tests draw the same cases every time.

Each mutant is a process forked from one that has torch loaded already.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mutations import Mutant, mutants_of

ROOT = Path(__file__).resolve().parent.parent
REPORT = ROOT / "docs" / "mutants.md"
LOADED = ("hypothesis", "numpy", "pydantic", "pytest", "torch")
UNEXPLAINED = "NO REASON YET"
HEAD = """# Mutants that survive

Made by `make mutants`; the reasons are written by hand and kept. A mutant is a module with one
small wrong change: a comparison, an operator, a constant by one, an argument left out and the like.
It is killed if a test of the files named with its module fails or runs too long. What survives is
equivalent (nothing can tell it from the original) or accepted, with the reason below it.
Where fewer ran than there are, they are a sample drawn with a fixed seed.
"""

# A module, or `module:function`, and the tests that guard it, fast ones first.
TARGETS: dict[str, tuple[str, ...]] = {
    "learner.advantages": ("tests/learner/test_advantages.py", "tests/learner/test_golden.py"),
    "learner.aggregation": ("tests/learner/test_losses.py", "tests/learner/test_golden.py"),
    "learner.groups": ("tests/learner/test_groups.py",),
    "learner.penalties": ("tests/learner/test_divergence.py", "tests/learner/test_losses.py"),
    "learner.policy_losses": ("tests/learner/test_losses.py",),
    "learner.ratios": ("tests/learner/test_ratios.py",),
    "learner.segments": (
        "tests/learner/test_advantages.py",
        "tests/learner/test_targets.py",
        "tests/learner/test_ratios.py",
    ),
    "learner.shaping": ("tests/learner/test_shaping.py",),
    "learner.targets": ("tests/learner/test_targets.py",),
    "learner.value_losses": ("tests/learner/test_losses.py",),
    "coordinator.masks:mask_window": (
        "tests/coordinator/test_masks.py",
        "tests/coordinator/test_turns.py",
        "tests/coordinator/test_staleness.py",
        "tests/coordinator/test_state.py",
    ),
}


@dataclass(frozen=True)
class Outcome:
    """A target's run: how many mutants there are, how many ran, and which no test noticed."""

    target: str
    tests: Sequence[str]
    mutants: int
    ran: int
    survivors: Sequence[Mutant]

    def section(self, reasons: dict[str, str]) -> str:
        """Its part of the report."""
        ran = f"{self.ran} of {self.mutants} mutants" if self.ran < self.mutants else (
            f"all {self.mutants} mutants"
        )  # fmt: skip
        lines = [
            f"## {self.target}",
            "",
            f"{ran} ran, {self.ran - len(self.survivors)} killed, {len(self.survivors)} survived; "
            f"tests: {', '.join(f'`{test}`' for test in self.tests)}.",
            "",
        ]
        for key in dict.fromkeys(mutant.key for mutant in self.survivors):
            lines += [f"- {key}", f"  {reasons.get(key, UNEXPLAINED)}"]
        return "\n".join(lines).rstrip() + "\n"


def copied(folder: Path) -> None:
    """The files of the repository as git sees them, changes included."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listing.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)


def passes(folder: Path, tests: Sequence[str], *, limit_s: float) -> bool:
    """Whether the tests pass in the copy, within the limit."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = _run_tests(folder, tests)
        finally:
            os._exit(code)
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def _run_tests(folder: Path, tests: Sequence[str]) -> int:
    """In the forked process: as if it had been started in the copy."""
    os.setsid()
    os.chdir(folder)
    os.environ["CI"] = "1"  # hypothesis draws the same cases every time
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)
    sys.dont_write_bytecode = True
    here = {str(ROOT), str(ROOT / "scripts"), ""}
    sys.path[:] = [str(folder), *(path for path in sys.path if path not in here)]
    import pytest

    return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests]))


def run(
    target: str,
    folder: Path,
    *,
    sample: int | None,
    seed: int,
    limit_s: float,
    before: str | None = None,
) -> Outcome:
    """All mutants of a target, or as many as the sample has; or only the survivors that its
    section of the report named `before`."""
    module, _, function = target.partition(":")
    path, tests = folder / (module.replace(".", "/") + ".py"), TARGETS[target]
    source = path.read_text(encoding="utf-8")
    began = time.monotonic()
    if not passes(folder, tests, limit_s=10 * limit_s):
        raise SystemExit(f"{target}: its tests fail without any change")
    mutants = mutants_of(source, function or None)
    chosen = mutants
    if sample is not None and sample < len(mutants):
        places = sorted(random.Random(seed).sample(range(len(mutants)), sample))
        chosen = [mutants[i] for i in places]
    ran = len(chosen)
    if before is not None:
        known = reasons_of(before)
        chosen = [mutant for mutant in mutants if mutant.key in known]
        ran = ran_in(before)
    print(f"{target}: {len(chosen)} of {len(mutants)} mutants, "
          f"{time.monotonic() - began:.1f} s each at most", flush=True)  # fmt: skip
    survivors = []
    for mutant in chosen:
        path.write_text(mutant.source, encoding="utf-8")
        if passes(folder, tests, limit_s=limit_s):
            survivors.append(mutant)
            print(f"  survived: {mutant.key}", flush=True)
    path.write_text(source, encoding="utf-8")
    print(f"  {len(chosen) - len(survivors)} killed, {len(survivors)} survived", flush=True)
    return Outcome(target, tests, len(mutants), ran, survivors)


def sections(report: str) -> dict[str, str]:
    """The report's parts by target."""
    parts = report.split("\n## ")[1:]
    return {part.splitlines()[0]: "## " + part.rstrip() + "\n" for part in parts}


def reasons_of(section: str) -> dict[str, str]:
    """What is written under each survivor of a part."""
    found: dict[str, str] = {}
    key = ""
    for line in section.splitlines():
        if line.startswith("- "):
            key = line.removeprefix("- ")
        elif line.startswith("  ") and key:
            found[key] = f"{found[key]}\n{line}" if key in found else line.strip()
    return found


def ran_in(section: str) -> int:
    """How many mutants a part says that ran."""
    found = re.search(r"^(?:all )?(\d+) .*mutants ran", section, re.MULTILINE)
    return int(found[1]) if found else 0


def written(report: str, outcomes: Sequence[Outcome]) -> str:
    """The report with the sections of these outcomes made anew, in the order of `TARGETS`."""
    parts = sections(report)
    for outcome in outcomes:
        known = reasons_of(parts.get(outcome.target, ""))
        parts[outcome.target] = outcome.section(known)
    ordered = [parts[target] for target in TARGETS if target in parts]
    return "\n".join([HEAD, *ordered])


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Which wrong changes no test notices.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--sample", type=int, help="mutants of each target (default: all)")
    parser.add_argument("--again", action="store_true", help="survivors of the report only")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for each mutant")
    options = parser.parse_args(arguments)
    unknown = set(options.targets) - set(TARGETS)
    if unknown:
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    return options


def _outcomes(options: argparse.Namespace) -> Iterator[Outcome]:
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        folder = Path(name).resolve()
        copied(folder)
        parts = sections(REPORT.read_text(encoding="utf-8")) if options.again else {}
        for target in options.targets or parts or TARGETS:
            yield run(
                target, folder, sample=options.sample, seed=options.seed, limit_s=options.limit,
                before=parts.get(target),
            )  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    for module in LOADED:
        importlib.import_module(module)
    missing = False
    for outcome in _outcomes(options):
        report = REPORT.read_text(encoding="utf-8") if REPORT.exists() else HEAD
        report = written(report, [outcome])
        REPORT.write_text(report, encoding="utf-8")
        missing |= UNEXPLAINED in sections(report)[outcome.target]
    if missing:
        print(f"{REPORT.relative_to(ROOT)}: give every survivor a test or a reason")
    return int(missing)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
