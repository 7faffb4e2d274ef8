"""The small recipe of `tests.headrace.conftest`, for tests of the command line."""

from tests.headrace.conftest import make_config, recipe

__all__ = ["make_config", "recipe"]
