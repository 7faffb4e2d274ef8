"""Launcher of a host's learner ranks; its exit code is the first failed rank's.

`python -m learner.process.ranks TORCHRUN-OPTIONS... -m learner.run ...`. In: the command line of
torchrun, which starts the ranks and ends all of them when one fails. Out: the exit code, as if the
rank had been started alone (torchrun's own is always 1): 2 the user's mistake, 128 + N killed by
signal N; 143 when ended by SIGTERM.
"""

import sys
from collections.abc import Sequence

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the ranks to their end; return the exit code."""
    try:
        run.main(argv)
    except ChildFailedError as error:
        _, failure = error.get_first_failure()
        print(f"learner rank {failure.local_rank} of this host failed first", file=sys.stderr)
        return failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0


if __name__ == "__main__":
    sys.exit(main())
