"""How much memory the run's processes hold, as the host's /proc says.

In: process ids of this host. Out: bytes, of each process together with all that it started. Pages
that they share count in each of them. Linux only: elsewhere nothing is known.
"""

import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

_PROC = Path("/proc")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident(roots: Iterable[int]) -> dict[int, int]:
    """Bytes in memory by process id; who is gone is left out."""
    table = _processes()
    children = defaultdict[int, list[int]](list)
    for pid, (parent, _) in table.items():
        children[parent].append(pid)
    sums = {}
    for root in roots:
        if root not in table:
            continue
        family, sums[root] = [root], 0
        while family:
            pid = family.pop()
            sums[root] += table[pid][1]
            family += children[pid]
    return sums


def _processes() -> dict[int, tuple[int, int]]:
    """(parent, bytes in memory) of every process by its id."""
    found = {}
    for folder in _PROC.glob("[0-9]*"):
        try:
            # A command's name is in brackets and may hold any character.
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        found[int(folder.name)] = (int(fields[1]), int(fields[21]) * _PAGE)
    return found
