"""Train the recorded updates again, and compare two source trees to the bit.

In: the first 20 updates of three recipes, recorded with commit 84e96df on its torch engine,
float32, one learner thread (`tppo`: recipes/quickstart.toml, `grpo`:
recipes/algorithms/grpo.toml with shared prompts, `code-prm`: recipes/code-prm.toml; smaller
batches). NAME.json is the resolved
configuration, NAME.npz the batches: `updates`, JSON in UTF-8, in which
{"array": [dtype, start, size]} stands for a part of the array of that dtype. The weights are the
shipped models'.
Out: per update its metrics, and a SHA-256 of the weights after it.

    python -m tests.recorded.updates --against 84e96df    this tree against another commit
"""

import argparse
import hashlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
RECIPES = ("tppo", "grpo", "code-prm")
CLOCK = ("timing_s/", "perf/")
"""Metrics that no two computations share."""


def first_of(*names: str) -> ModuleType:
    """The first of these modules that the tree has: a file's place before and after the move."""
    for name in names[:-1]:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    return importlib.import_module(names[-1])


def recorded(name: str) -> list[tuple[Any, Any]]:
    """Each update's Batch and the Shard of its single rank."""
    import msgspec

    messages = first_of("headrace.protocol.messages.control", "headrace.protocol.messages")
    batches = first_of("headrace.protocol.messages.batches", "headrace.protocol.batches")
    with np_load(FOLDER / f"{name}.npz") as arrays:
        parts = {key: arrays[key] for key in arrays.files}
    updates = json.loads(parts.pop("updates").tobytes())

    def give_array(_: type, value: Any) -> Any:
        dtype, start, size = value["array"]
        return parts[dtype][start : start + size]

    return [
        (
            msgspec.convert(update["batch"], messages.Batch, dec_hook=give_array),
            msgspec.convert(update["shard"], batches.Shard, dec_hook=give_array),
        )
        for update in updates
    ]


def np_load(path: Path) -> Any:
    """The file's arrays; no pickle."""
    import numpy as np

    return np.load(path, allow_pickle=False)


def configuration(name: str, tree: Path) -> Any:
    """The recorded RunConfig, its models those of `tree`."""
    config = first_of("headrace.config.sections.run", "headrace.config.run")
    raw = json.loads((FOLDER / f"{name}.json").read_text())
    for key in ("path", "critic_path"):
        if raw["model"].get(key):
            raw["model"][key] = str(tree / raw["model"][key])
    return config.RunConfig.model_validate_json(json.dumps(raw))


def train(name: str, tree: Path, updates: int) -> list[dict[str, Any]]:
    """Train the first `updates` of a recipe in this process, which has joined its single rank:
    `metrics` and `weights` (SHA-256) of each."""
    import torch

    trainers = first_of("learner.process.trainer", "learner.trainer")
    torch.set_num_threads(1)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainers.Trainer(
            configuration(name, tree), Path(folder), rank=0, device=torch.device("cpu")
        )
        models = getattr(trainer, "models", trainer)  # An older tree's trainer has the weights.
        for batch, shard in recorded(name)[:updates]:
            done = trainer.train(batch, shard, None)
            whole = models.whole() if hasattr(models, "whole") else models.whole_weights()
            weights = {name: getattr(model, "weights", model) for name, model in whole.items()}
            results.append({"metrics": flat(done.metrics), "weights": digest(weights)})
    return results


def flat(metrics: Any) -> dict[str, float]:
    """Metrics but the clock's and absent ones; each entry of a list under a name of its own."""
    found = {}
    for key, value in metrics.items():
        if not key.startswith(CLOCK):
            entries = enumerate(value) if isinstance(value, list) else [("", value)]
            found.update({f"{key}[{i}]": entry for i, entry in entries if entry is not None})
    return found


def digest(weights: Any) -> str:
    """SHA-256 over the names and bytes of all models' weights."""
    found = hashlib.sha256()
    for model in sorted(weights):
        for key, tensor in sorted(weights[model].items()):
            found.update(f"{model}/{key}".encode())
            found.update(tensor.contiguous().view(-1).numpy().tobytes())
    return found.hexdigest()


def compute(tree: Path, out: Path, updates: int) -> None:
    """Write every recipe's results as JSON. Imports come from `tree`."""
    engine = first_of("learner.models.deepspeed_engine", "learner.engines")
    hardware = first_of("headrace.host.hardware", "headrace.hardware")
    import torch

    engine.join_ranks(rank=0, world_size=1, port=hardware.free_port(), device=torch.device("cpu"))
    try:
        found = {name: train(name, tree, updates) for name in RECIPES}
    finally:
        torch.distributed.destroy_process_group()
    out.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


def compute_in(tree: Path, out: Path, updates: int) -> None:
    """`compute` in a process of its own that sees `tree` alone."""
    environment = os.environ | {
        "PYTHONPATH": str(tree),
        "PYTHONSAFEPATH": "1",
        "MKL_CBWR": "AUTO",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, str(Path(__file__)), "--compute", str(tree), str(out)]
    subprocess.run([*command, "--updates", str(updates)], env=environment, check=True, cwd=tree)


def differences(old: Any, new: Any) -> list[str]:
    """What differs between two results, one line each; NaN equals NaN."""
    found = []
    for name in RECIPES:
        for index, (a, b) in enumerate(zip(old[name], new[name], strict=True), 1):
            if a["weights"] != b["weights"]:
                found.append(f"{name}, update {index}: weights")
            for key in sorted(a["metrics"].keys() | b["metrics"].keys()):
                values = [json.dumps(x["metrics"].get(key)) for x in (a, b)]
                if values[0] != values[1]:
                    found.append(f"{name}, update {index}: {key} {values[0]} != {values[1]}")
    return found


def main() -> int:
    """Exit code 0: equal to the bit; 1: not, the differences printed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--against", help="the commit to compare with")
    parser.add_argument("--updates", type=int, default=20, help="of each recipe (default 20)")
    parser.add_argument("--compute", nargs=2, metavar=("TREE", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.compute:
        compute(Path(options.compute[0]), Path(options.compute[1]), options.updates)
        return 0
    if not options.against:
        parser.error("give --against COMMIT")
    with tempfile.TemporaryDirectory() as folder:
        tree, results = Path(folder) / "tree", []
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", "-q", str(tree), options.against], check=True)
        try:
            for number, source in enumerate((tree, ROOT)):
                out = Path(folder) / f"{number}.json"
                compute_in(source, out, options.updates)
                results.append(json.loads(out.read_text()))
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)
    found = differences(*results)
    print(
        "\n".join(found) or f"{options.updates} updates of {', '.join(RECIPES)}: equal to the bit"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
