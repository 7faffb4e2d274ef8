"""The layer `landlock`: file rules that a process sets for itself, without namespaces.

The program reads the interpreter, its libraries and four devices, and writes nowhere. All that
Landlock does not hold (sockets, signals, processes, metadata of files) the filter's `single` form
refuses, so the program is one process with one thread. It can still see paths that exist and file
sizes.
"""

import os
import stat
import struct
from pathlib import Path

from sandbox.isolation import kernel
from sandbox.isolation.namespaces import DEVICES

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Version to the number of rights on files it knows; later ones know no more."""
_ALL_SCOPES = 3
"""Signals and abstract sockets (from version 6 on)."""
_ALL_TCP = 3
"""Bind and connect (from version 4 on)."""


def version() -> int:
    """The kernel's Landlock; OSError where it has none."""
    return kernel.syscall("landlock", _CREATE_RULESET, None, 0, 1)


def open_to_all(readable: list[str]) -> bool:
    """Return whether all folders above these paths let a user without rights through."""
    above = {parent for path in readable for parent in Path(path).parents}
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in above)


def restrict_files(readable: list[str], covered: list[str]) -> None:
    """Let this process read the given paths but for those covered, and no others."""
    known = version()
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    handled = (1 << _RIGHTS[min(known, 5)]) - 1
    network = _ALL_TCP if known >= 4 else 0
    scopes = _ALL_SCOPES if known >= 6 else 0
    words = struct.pack("<QQQ", handled, network, scopes)
    size = 24 if known >= 6 else 16 if known >= 4 else 8
    rules = kernel.syscall("landlock_create_ruleset", _CREATE_RULESET, words[:size], size, 0)
    for path in readable:
        _allow(rules, path, covered)
    for device in DEVICES:
        _add(rules, device, _READ_FILE | _WRITE_FILE)
    kernel.syscall("landlock_restrict_self", _RESTRICT_SELF, rules, 0)
    os.close(rules)


def _allow(rules: int, path: str, covered: list[str]) -> None:
    """Reading below `path`, but not below what is covered there."""
    if path in covered or os.path.islink(path):
        return  # what a link leads to has rights of its own
    if not os.path.isdir(path):
        _add(rules, path, _READ_FILE | _EXECUTE)
    elif any(other.startswith(f"{path}/") for other in covered):
        _add(rules, path, _READ_DIR)
        for name in os.listdir(path):
            _allow(rules, f"{path}/{name}", covered)
    else:
        _add(rules, path, _READ_FILE | _READ_DIR | _EXECUTE)


def _add(rules: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # a link that leads nowhere
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= ~_READ_DIR
        packed = struct.pack("<Qi", rights, descriptor)
        kernel.syscall("landlock_add_rule", _ADD_RULE, rules, 1, packed, 0)
    finally:
        os.close(descriptor)
