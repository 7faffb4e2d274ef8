"""The command line of a benchmark: what `headrace bench NAME --help` shows.

In: a benchmark's name and what it says of itself. Out: a parser whose help keeps that text as it
is written and tells the default of every option that has one. All results go out in one way:
`--json` prints one JSON object as the last line.
"""

import argparse
from pathlib import Path

from headrace.install import ROOT


class _Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Text as it stands, and defaults where they say something, paths from the project's folder."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        default = action.default
        if default is None or isinstance(default, bool) or default in ([], argparse.SUPPRESS):
            return action.help
        if isinstance(default, list):
            default = " ".join(map(str, default))
        elif isinstance(default, Path) and default.is_relative_to(ROOT):
            default = default.relative_to(ROOT)
        return f"{action.help} (default: {str(default).replace('%', '%%')})"


def command_line(name: str, text: str | None, *, json: bool = True) -> argparse.ArgumentParser:
    """A parser for `headrace bench NAME`; `text`: the module's docstring. `json`: there is a result
    to print."""
    parser = argparse.ArgumentParser(
        prog=f"headrace bench {name}", description=text, formatter_class=_Help
    )
    if json:
        parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    return parser
