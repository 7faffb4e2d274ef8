"""A service that is not here: skipped on a laptop, a failure where nobody watches."""

import pytest
from _pytest.outcomes import Failed, Skipped

from tests.services import cannot_have


def test_a_missing_service_skips_on_a_laptop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(Skipped, match="install the package chromium"):
        cannot_have("Chromium", "chromium")


def test_a_missing_service_fails_under_continuous_integration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(Failed, match="install the package chromium"):
        cannot_have("Chromium", "chromium")
