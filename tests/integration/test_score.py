"""`headrace score` and `select` on a mixture: a run that dies at any moment goes on and asks
nothing twice, and what is selected can be trained on."""

import json
import os
import random
import signal
import time
from pathlib import Path

from headrace.config.sections.task import ChainSumsConfig
from storage.queries import list_runs, prompt_scores, trajectory_page
from tasks.datasets.source import build_source
from tests.integration.runs import QUICKSTART, headrace
from tests.warm_roles import Started, warm

PROMPTS, SAMPLES = 40, 16
KILLS = int(os.environ.get("HEADRACE_SCORE_KILLS", "1"))


TASK = """\
[task]
kind = "mixture"
max_prompt_length = 80
max_response_length = 240

[task.datasets.short]
kind = "dataset"
path = "pool.jsonl"
only = { domain = "short" }

[task.datasets.long]
kind = "dataset"
path = "pool.jsonl"
only = { domain = "long" }

"""


def recipe(folder: Path) -> Path:
    """The quickstart on a mixture of a file of sums."""
    lines = []
    for domain, least, most in (("short", 3, 4), ("long", 5, 8)):
        sums = ChainSumsConfig(kind="chain_sums", min_terms=least, max_terms=most)
        for row in build_source(sums, 0).training_rows(40):
            lines.append({"prompt": row.prompt, "answer": row.answer, "domain": domain})
    (folder / "pool.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    head, rest = QUICKSTART.read_text().split("[task]\n")
    models = f'path = "{QUICKSTART.parent}/models'
    path = folder / "mixture.toml"
    after = rest[rest.index("[schedule]") :]
    path.write_text((head + TASK + after).replace('path = "models', models))
    return path


def started(root: Path, *arguments: str) -> Started:
    with (root / "score.log").open("wb") as log:
        return warm(["score", *arguments, "--json", "--root", str(root)], stdout=log)


def killed(process: Started, root: Path, share: float) -> Path:
    """The run's folder, when this share of the answers was there and the whole job was killed."""
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if (lines := list_runs(root)) and lines[0].status == "evaluating":
            run_dir = root / lines[0].run_id
            found = trajectory_page(run_dir, where="finished_at > 0", limit=1)
            if found.total > share * PROMPTS * SAMPLES:
                break
        time.sleep(0.05)
    assert process.poll() is None, (root / "score.log").read_text()
    coordinator = json.loads((run_dir / "coordinator.json").read_text())["pid"]
    for pid in (coordinator, process.pid):  # The others end when they hear of nobody.
        os.kill(pid, signal.SIGKILL)
    process.wait(10)
    return run_dir


def test_a_score_run_that_is_killed_goes_on(tmp_path: Path) -> None:
    draw = random.Random(0)
    arguments = (
        str(recipe(tmp_path)), "--samples", str(SAMPLES), "--prompts", str(PROMPTS),
        "generator.engine=torch", "generator.max_num_seqs=32",
    )  # fmt: skip
    process = started(tmp_path, *arguments)
    for number in range(KILLS):
        run_dir = killed(process, tmp_path, (number + draw.random()) / (KILLS + 1))
        process = started(tmp_path, "--resume", run_dir.name)
    code = process.wait(120)
    shown = (tmp_path / "score.log").read_text()
    assert code == 0, shown
    scores = prompt_scores(run_dir)
    assert len(scores) == PROMPTS
    assert (scores.samples == SAMPLES).all()
    assert (scores.scored == SAMPLES).all()
    audited = headrace("audit", run_dir.name, "--root", str(tmp_path))
    assert audited.returncode == 0, audited.stdout
    (source,) = json.loads(shown.splitlines()[-1])["sources"]
    assert (source["prompts"], source["answers"], source["failed"]) == (40, 640, 0)

    out = tmp_path / "hard.jsonl"
    done = headrace("select", "latest", "--root", str(tmp_path), "--keep", "10", "--out", str(out))
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert {row["domain"] for row in rows} == {"short", "long"}
    kept = [row["id"] for row in rows[:10]]
    assert all(row["id"].partition("/")[0] == row["domain"] for row in rows)
    assert not {row["id"] for row in rows[10:]} & set(scores.prompt_id)
    means = dict(zip(scores.prompt_id, scores["mean"], strict=True))
    sound = sorted(
        means[key] for key, best in zip(scores.prompt_id, scores.best, strict=True) if best
    )
    assert [means[key] for key in kept] == sound[:10]
    selected = [f"task.datasets.{domain}.path={out}" for domain in ("short", "long")]
    checked = headrace(
        "config", "check", str(tmp_path / "mixture.toml"), *selected, "dashboard.enabled=false"
    )
    assert checked.returncode == 0, checked.stdout
