"""`headrace generator` and `headrace keys`: joining a run from outside."""

import argparse
import os
import re
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from shlex import quote

from headrace.errors import UserError
from headrace.protocol.transport.sockets import Link
from headrace.run_files.run_folder import find_run
from headrace_cli.launch.keys import link_of
from headrace_cli.launch.plan import generator_argv, role_environment

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 4.0
_ATTEMPT_S = 3.0
"""Seconds until an unanswered connection attempt is given up, reported as silent, and repeated."""


def _warn(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def generator(arguments: argparse.Namespace) -> int:
    """Become one more generator of a run; the process is replaced by the role's own."""
    if arguments.curve_keys is not None and not arguments.curve_keys.is_dir():
        raise UserError(f"--curve-keys {arguments.curve_keys}: no such folder")
    host = re.sub(r"[^A-Za-z0-9.-]+", "-", socket.gethostname())[:40]
    name = arguments.name or f"generator-{host}-{os.getpid()}"
    link = _link(arguments)
    await_listener(link.address)
    keys = str(arguments.curve_keys.resolve()) if arguments.curve_keys else link.curve_keys
    argv = generator_argv(link.address, name, keys)
    if arguments.cpus:
        argv += ("--cpus", arguments.cpus)
    sys.stdout.flush()
    os.execve(argv[0], argv, {**os.environ, **role_environment(threads=1)})


def _link(arguments: argparse.Namespace) -> Link:
    """The coordinator at the address, or of the run, that --connect names."""
    target: str = arguments.connect
    if re.fullmatch(r"tcp://\S+:\d+", target):
        return Link(target)
    if "://" in target:
        raise UserError(f"--connect {target}: an address looks like tcp://HOST:PORT")
    try:
        run_dir = find_run(Path(arguments.root or "runs"), target)
    except UserError as error:
        raise UserError(
            f"--connect {target}: neither tcp://HOST:PORT nor a run: {error}"
        ) from error
    return link_of(run_dir)


def await_listener(
    address: str, patience_s: float = 30.0, tell: Callable[[str], None] = _warn
) -> None:
    """Wait until tcp://HOST:PORT listens, trying less and less often; UserError if it never does.
    `tell` is called at once if no coordinator is there yet."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    deadline, pause = time.monotonic() + patience_s, _FIRST_PAUSE_S
    told = False
    while True:
        patience = max(0.01, min(_ATTEMPT_S, deadline - time.monotonic()))
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=patience):
                return
        except (OSError, OverflowError, UnicodeError) as error:
            reason = str(error)
        left = deadline - time.monotonic()
        if left <= 0:
            raise UserError(
                f"no run listens at {address} ({reason}): is it going on? its address is in "
                "coordinator.json of its folder"
            )
        if not told:
            tell(f"no run listens at {address} yet ({reason}): trying for {left:.0f} s")
            told = True
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def keys(arguments: argparse.Namespace) -> int:
    """Write CURVE key files and print how they are used."""
    from headrace.protocol.transport.curve import make_keys

    try:
        make_keys(arguments.folder)
    except OSError as error:
        raise UserError(
            f"cannot write keys into {arguments.folder}: {error.strerror}; name a folder that you "
            "can write to"
        ) from error
    folder = arguments.folder.resolve()
    print(f"keys in {folder} (readable by you alone)")
    keys = quote(f"transport.curve_keys={folder}")
    print(f"run:       headrace train RECIPE transport.host=0.0.0.0 {keys}")
    print("elsewhere: copy server.key and client.key_secret there, then")
    print("           headrace generator --connect tcp://HOST:PORT --curve-keys DIR")
    return 0
