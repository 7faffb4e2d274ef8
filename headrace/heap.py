"""Memory that a process has freed and that the system may have back.

Promise: a process that now and then needs many megabytes for a moment holds, after it, about what
it held before. glibc alone; elsewhere nothing happens.
"""

import ctypes
import platform

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
OWN_MAP_BYTES = 1 << 20
"""What is as large lies in a map of its own, which goes back when it is freed."""
ARENAS = 2


def give_back() -> None:
    """Call it when the process begins, before it has threads.

    Left alone, glibc raises that size with what is freed, up to 32 MiB, and keeps a heap for each
    thread; a heap is as long as its last piece, however little is left of it.
    """
    if platform.libc_ver()[0] == "glibc":
        heap = ctypes.CDLL(None)
        heap.mallopt(_M_MMAP_THRESHOLD, OWN_MAP_BYTES)
        heap.mallopt(_M_ARENA_MAX, ARENAS)
