"""Three recorded updates of each recipe against the numbers that commit 84e96df computed of them,
but gradient norms: they are means of an update's steps now.

`python -m tests.recorded.updates --against 84e96df` compares all twenty to the bit on one machine.
"""

import json
from pathlib import Path

import pytest

from tests.recorded.updates import FOLDER, RECIPES, ROOT, compute_in

UPDATES = 3


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, object]]]:
    out: Path = tmp_path_factory.mktemp("recorded") / "computed.json"
    compute_in(ROOT, out, UPDATES)
    return json.loads(out.read_text())


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("update", range(1, UPDATES + 1))
def test_a_recorded_update_has_its_recorded_metrics(
    computed: dict[str, list[dict[str, dict[str, float]]]], name: str, update: int
) -> None:
    expected = json.loads((FOLDER / "expected.json").read_text())[name][update - 1]["metrics"]
    found = computed[name][update - 1]["metrics"]
    assert found.keys() == expected.keys()
    # Processors round differently; the same one computes the same bits. A largest or smallest
    # figure is a single token's, in which no rounding averages out.
    for figure in expected:
        is_extreme = figure.removesuffix("[]").endswith(("/min", "/max", "_max"))
        tolerance = 1e-3 if is_extreme else 1e-4
        near = pytest.approx(expected[figure], rel=tolerance, abs=tolerance, nan_ok=True)
        assert found[figure] == near, figure
