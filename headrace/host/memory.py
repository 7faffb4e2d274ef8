"""Memory of a process: freed blocks go back to the system, imports skip collection.

`give_back` promises: a process that now and then needs many megabytes for a moment holds, after it,
about what it held before. glibc alone; elsewhere nothing happens. Left alone, glibc raises the size
from which on a block has a map of its own with what is freed, up to 32 MiB, and keeps a heap for
each thread; a heap is as long as its last piece, however little is left of it, and before version
2.38 it does not find a block of the right size again. `lasting` promises: no garbage collection
looks at what is imported within, neither meanwhile, which would take a fifth of the time for the
libraries of models, nor later, at the process's end least of all.
"""

import contextlib
import gc
import os
from collections.abc import Iterator

OWN_MAP_BYTES = 1 << 20
"""Minimum size of a block with a map of its own, which goes back when it is freed. New pages take
time, so that it is only for processes that hold too much without."""
OWN_MAP, ARENA_MAX = "MALLOC_MMAP_THRESHOLD_", "MALLOC_ARENA_MAX"
"""Environment variables by which glibc takes both; values that are set there count."""
_MALLOPT = {OWN_MAP: (-3, OWN_MAP_BYTES), ARENA_MAX: (-8, 2)}


def give_back() -> None:
    """Call it when the process begins, before it has threads."""
    # Here, and not above: `lasting` is imported before it holds garbage collections back.
    import ctypes
    import platform

    if platform.libc_ver()[0] != "glibc":
        return
    heap = ctypes.CDLL(None)
    for name, (option, value) in _MALLOPT.items():
        if name not in os.environ:
            heap.mallopt(option, value)


@contextlib.contextmanager
def lasting() -> Iterator[None]:
    """For imports within: they live as long as their process."""
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()
