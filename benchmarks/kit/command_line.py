"""The command line of a benchmark, as `headrace bench NAME --help` shows it.

In: a benchmark's name and its module's docstring. Out: a parser whose help keeps that text as
written and shows each option's default, and options that several benchmarks share. All results go
out in one way: `--json` prints one JSON object as the last line.
"""

import argparse
from pathlib import Path
from typing import get_args

from benchmarks.kit.rows import ResultFile
from headrace.config.sections.generator import GeneratorConfig
from headrace.host.install import ROOT


class _Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Formatter that keeps the text and shows defaults, paths relative to the project."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        default = action.default
        if default is None or isinstance(default, bool) or default in ([], argparse.SUPPRESS):
            return action.help
        shown = " ".join(map(str, default)) if isinstance(default, list) else str(default)
        return f"{action.help} (default: {shown.removeprefix(f'{ROOT}/').replace('%', '%%')})"


def command_line(name: str, text: str | None, *, json: bool = True) -> argparse.ArgumentParser:
    """Create a parser for `headrace bench NAME`; `text`: the module's docstring.

    `json`: there is a result to print."""
    parser = argparse.ArgumentParser(
        prog=f"headrace bench {name}", description=text, formatter_class=_Help
    )
    if json:
        parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    return parser


def add_rows_option(
    parser: argparse.ArgumentParser, default: Path | None = None, *, resumes: bool = False
) -> None:
    """Add `--rows`, a `ResultFile`; `resumes`: existing measurements are reused.

    It is opened with the options, before the measurement, so that it knows what is measured."""
    more = ", gone on with" if resumes else ""
    parser.add_argument(
        "--rows",
        type=ResultFile,
        default=default and str(default),
        help=f"JSONL file that gets the rows{more}",
    )


def add_engine_option(parser: argparse.ArgumentParser, default: str) -> None:
    """Add `--engine`, one of all engines that sample."""
    parser.add_argument(
        "--engine",
        choices=get_args(GeneratorConfig.model_fields["engine"].annotation),
        default=default,
        help="what samples; fake: scripted, with no model",
    )
