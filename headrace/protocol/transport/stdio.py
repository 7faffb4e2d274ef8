"""The standard streams of a child that talks over them.

In: the stdin and stdout that a process was started with. Out: the same for messages alone. Promise:
whatever else runs in the process finds an empty stdin, and what it prints goes to stderr.
"""

import os
import sys
from typing import BinaryIO


def take_streams(*, buffering: int = -1) -> tuple[BinaryIO, BinaryIO]:
    """Keep stdin and stdout for messages; leave others an empty stdin and stderr. `buffering`: of
    stdin, as in `open`; 0 for a caller that waits for its file descriptor."""
    source, sink = os.fdopen(os.dup(0), "rb", buffering), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return source, sink
