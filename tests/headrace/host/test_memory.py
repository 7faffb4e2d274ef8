"""What a process has freed goes back to the system."""

import os
import platform
import subprocess
import sys

import pytest

SCRIPT = """
import ctypes
from pathlib import Path
from headrace.host.memory import give_back

if {gives_back}:
    give_back()
heap = ctypes.CDLL(None)
heap.malloc.restype = ctypes.c_void_p
heap.malloc.argtypes, heap.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]

def held():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

def need(size):
    place = heap.malloc(size)
    ctypes.memset(place, 1, size)
    return place

heap.free(need(30 << 20))  # From now on glibc takes pieces of this size from a heap.
before = held()
places = []
for _ in range(8):
    places += [need(8 << 20), need(100_000)]
for place in places[::2]:
    heap.free(place)
print(held() - before)
"""


def left(gives_back: bool, **said: str) -> int:
    script = SCRIPT.format(gives_back=gives_back)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env={**os.environ, **said}
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than glibc")
def test_what_is_freed_between_pieces_that_stay_goes_back() -> None:
    assert left(False) > 40 << 20  # Else this test shows nothing.
    assert left(True) < 4 << 20
    assert left(True, MALLOC_MMAP_THRESHOLD_=str(32 << 20)) > 40 << 20  # as the user said
