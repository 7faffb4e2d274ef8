"""Tries the wrong updates of mutants.toml: each has to make a quick test fail.

    python -m tests.learner.mutants [WORD ...]      all, or those whose name holds one of the words

Every mutant gets a process that has torch loaded already, and a copy of the tree. Prints one line
each and ends with 1 if more than three live or the tests fail without any.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parents[2]
TESTS = [
    "tests/learner/algorithms", "tests/learner/batching", "tests/learner/updates",
    "tests/learner/test_asides.py", "tests/learner/test_divergence.py",
    "tests/learner/test_golden.py", "tests/learner/test_losses.py",
    "tests/learner/test_shaping.py", "tests/learner/test_twins.py",
    "tests/learner/models/test_prefix_cache.py",
]  # fmt: skip
MOST_ALIVE = 3


def tree() -> Path:
    """A copy of what git knows."""
    place = Path(tempfile.mkdtemp(prefix="mutants-"))
    names = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name)
    return place


def status_of(place: Path) -> int:
    """The exit status of the tests, run on a tree by a fork of this process."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    status = 70
    try:
        os.chdir(place)
        for name in [n for n in sys.modules if n.partition(".")[0] == "tests"]:
            del sys.modules[name]
        sys.path[:0] = [str(place)]
        log = os.open(place / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        import pytest

        status = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", *TESTS])
    finally:
        os._exit(status)


def tried(mutant: dict[str, str], places: "SimpleQueue[Path]") -> tuple[str, bool, float, str]:
    """Its name, whether a test failed, in how many seconds, and which one."""
    place, began = places.get(), time.monotonic()
    file = place / mutant["file"]
    text = file.read_text()
    assert text.count(mutant["text"]) == 1, mutant["name"]
    file.write_text(text.replace(mutant["text"], mutant["becomes"]))
    try:
        status = status_of(place)
        failed = [x for x in (place / "log").read_text().splitlines() if x.startswith("FAILED")]
        return mutant["name"], status == 1, time.monotonic() - began, "".join(failed[:1])
    finally:
        file.write_text(text)
        places.put(place)


def main(words: list[str]) -> int:
    """The exit status."""
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    import deepspeed  # noqa: F401
    import hypothesis  # noqa: F401
    import transformers  # noqa: F401

    mutants = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["mutant"]
    chosen = [m for m in mutants if not words or any(word in m["name"] for word in words)]
    places: SimpleQueue[Path] = SimpleQueue()
    trees = [tree() for _ in range(os.cpu_count() or 1)]
    try:
        began = time.monotonic()
        if status_of(trees[0]) != 0:
            print((trees[0] / "log").read_text()[-2000:])
            return 1
        print(f"no mutant: passed in {time.monotonic() - began:.0f} s")
        for place in trees:
            places.put(place)
        alive = 0
        with ThreadPoolExecutor(len(trees)) as pool:
            for name, dead, seconds, test in pool.map(lambda m: tried(m, places), chosen):
                alive += not dead
                print(
                    f"{'dead' if dead else 'ALIVE':5} {seconds:4.0f} s  {name}  {test}", flush=True
                )
        print(f"{len(chosen) - alive} of {len(chosen)} are dead")
        return int(alive > MOST_ALIVE)
    finally:
        for place in trees:
            shutil.rmtree(place)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
