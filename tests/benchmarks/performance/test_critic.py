"""The figures of `headrace bench critic`, worked out by hand."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.performance import critic
from benchmarks.performance.critic import ContinuedPrefix, HeldOutAnswer, figures
from headrace.errors import UserError
from tests.storage.samples import run_config


def test_figures_of_two_answers() -> None:
    """Values 0.8 of a right answer and 0.2 of a wrong one leave 0.04 of a variance of 0.25."""
    held = [HeldOutAnswer(place, [1], [2] * 4, [-1.0] * 4, 1.0 - place) for place in range(2)]
    longer = HeldOutAnswer(0, [1], [2] * 8, [-1.0] * 8, 1.0)
    prefixes = [
        ContinuedPrefix(held[0], 0, [1.0, 1.0]), ContinuedPrefix(held[1], 0, [0.0, 0.0]),
        ContinuedPrefix(longer, 7, [0.0, 1.0]), ContinuedPrefix(held[1], 3, [0.0, 0.0]),
    ]  # fmt: skip
    values, returns = np.repeat([0.8, 0.2], 4), np.repeat([1.0, 0.0], 4)
    found = figures(held, prefixes, values, returns)
    assert (found["answers"], found["tokens"], found["mean return"]) == (2, 8, 0.5)
    # Of resampled prompts, those that are the same one twice have no variance, and do not count.
    share = [0.84, 0.84, 0.84]
    quarters = [found[f"quarter {quarter}"] for quarter in (1, 2, 3, 4)]
    assert [found["explained variance"], found["by answers"], *quarters] == [share] * 6
    # Within: 1/8 of 15/64 by tokens, 1/14 of 45/196 by answers; nothing, and 1/4 of 3/16.
    whole = [found[f"attainable{of}"][0] for of in (" share", ", by answers")]
    assert whole == [0.467, 0.689]
    assert found["attainable, quarter 1"] == [1.0, 1.0, 1.0]
    assert [found[f"attainable, quarter {q}"] for q in (2, 3)] == [[], []]
    assert found["attainable, quarter 4"][0] == -0.333
    assert found["of the attainable"] == round(0.84 / 0.467, 3)


def test_the_line_of_a_comparison_has_the_benchmarks_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(critic, "_join", lambda config: None)
    critic._again(tmp_path, run_config(), [], as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found == {"name": "critic", "run": tmp_path.name, "again": {}}


def test_answers_of_an_environment_are_not_sampled_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = run_config().model_copy(update={"environment": "calculator"})
    monkeypatch.setattr(critic, "find_run", lambda root, name: tmp_path)
    monkeypatch.setattr(critic, "read_config", lambda run_dir: config)
    monkeypatch.setattr(critic, "resolve", lambda config, machine: SimpleNamespace(config=config))
    with pytest.raises(UserError, match="has an environment"):
        critic.main(["run"])
