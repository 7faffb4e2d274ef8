"""Memory of a process is its own and that of all that it started."""

import os
import subprocess
import sys

from coordinator.memory import resident

HOLDS = """
import subprocess, sys
if int(sys.argv[1]):
    child = [sys.executable, "-c", sys.argv[2], str(int(sys.argv[1]) - 1), sys.argv[2]]
    subprocess.run(child, stdin=sys.stdin)
else:
    held = bytearray(b"x" * (64 << 20))
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_children_of_children_count() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, "2", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        found = resident([process.pid, os.getpid()])
        assert found[process.pid] > 64 << 20
        assert found[os.getpid()] > found[process.pid]
        process.stdin.close()
    assert resident([process.pid]) == {}
