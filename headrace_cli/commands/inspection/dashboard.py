"""`headrace dashboard`: the web page of a folder of runs."""

import argparse
import os
import sys
from pathlib import Path

from headrace.errors import UserError
from headrace_cli.launch.plan import LARGEST_PORT, dashboard_argv, page_port, role_environment


def dashboard(arguments: argparse.Namespace) -> int:
    """Become the page's server; the process is replaced."""
    root = Path(arguments.folder or arguments.root or "runs")
    if not 0 <= arguments.port <= LARGEST_PORT:
        raise UserError(
            f"--port {arguments.port}: ports go from 1 to {LARGEST_PORT}; 0: a free one"
        )
    if not root.is_dir():
        raise UserError(f"no folder of runs at {root}; `headrace train RECIPE` makes one")
    port = page_port(arguments.host, arguments.port)
    argv = dashboard_argv(arguments.host, port, root.resolve(), ahead=True)
    print(f"dashboard  http://{arguments.host}:{port}  (Ctrl-C ends it)")
    sys.stdout.flush()
    os.execve(argv[0], argv, {**os.environ, **role_environment(threads=1)})
