"""The doctor notices what is missing and who else owns a name."""

import json
import sys
from pathlib import Path

import pytest

from headrace.host.hardware import GIB, Gpu, Hardware
from headrace.host.install import PACKAGES, is_ours, package_origin
from headrace_cli.cli import main
from headrace_cli.commands.system.doctor import examine


def test_a_good_installation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"]
    topics = {finding["topic"] for finding in answer["findings"]}
    assert set(PACKAGES) <= topics
    assert {"torch", "vllm", "memory", "/dev/shm", "C++ compiler", "CURVE keys", "images"} <= topics


def test_a_package_of_somebody_else_is_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rewards").mkdir()
    (tmp_path / "rewards" / "__init__.py").write_text("")
    for name in [name for name in sys.modules if name.split(".")[0] == "rewards"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    origin = package_origin("rewards")
    assert origin is not None
    assert not is_ours(origin)
    assert main(["doctor"]) == 2
    assert "which is not Headrace" in capsys.readouterr().out


def test_little_memory_and_an_idle_gpu_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "headrace_cli.commands.system.doctor.dependency_version",
        lambda name: None if name == "vllm" else "1",
    )
    poor = Hardware((0,), 2 * GIB, GIB, (Gpu(0, "card", 80 * GIB),))
    notes = [finding.text for finding in examine(poor) if finding.level == "note"]
    assert any("the demonstration needs" in text for text in notes)
    assert any("CPU build is installed although" in text for text in notes)
    assert any("break transformers" in text for text in notes)
