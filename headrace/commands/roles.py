"""`headrace generator` and `headrace keys`: joining a run from outside."""

import argparse
import os
import re
import socket
import sys
import time
from pathlib import Path

from headrace.errors import UserError
from headrace.processes.keys import link_of
from headrace.processes.launch import generator_argv, role_environment
from headrace.protocol.sockets import Link
from headrace.run_folder import find_run


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


def await_listener(address: str, patience_s: float = 10.0) -> None:
    """Wait until somebody listens at tcp://HOST:PORT; UserError where nobody does."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    deadline = time.monotonic() + patience_s
    while True:
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=patience_s):
                return
        except (OSError, OverflowError) as error:
            reason = str(error)
        if time.monotonic() >= deadline:
            raise UserError(
                f"no run listens at {address} ({reason}): is it going on? its address is in "
                "coordinator.json of its folder"
            )
        time.sleep(min(0.5, patience_s))


def keys(arguments: argparse.Namespace) -> int:
    """Write CURVE key files and say how they are used."""
    from headrace.protocol.curve import make_keys

    try:
        make_keys(arguments.folder)
    except OSError as error:
        raise UserError(
            f"cannot write keys into {arguments.folder}: {error.strerror}; name a folder that you "
            "can write to"
        ) from error
    folder = arguments.folder.resolve()
    print(f"keys in {folder} (readable by you alone)")
    print(f"run:       headrace train RECIPE transport.host=0.0.0.0 transport.curve_keys={folder}")
    print("elsewhere: copy server.key and client.key_secret there, then")
    print("           headrace generator --connect tcp://HOST:PORT --curve-keys DIR")
    return 0
