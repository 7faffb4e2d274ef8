"""A stand-in for Slurm's commands, under whose names it is called: it starts the tasks of a step on
this host.

In: the options that our scripts use; STAND_IN_LOG names the file that every call is written to. Out
(srun): the highest exit code of the tasks, 128 + N for one that signal N killed.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

Tasks = list["subprocess.Popen[bytes]"]


def srun(words: list[str]) -> int:
    """Run the tasks of a step to their end."""
    first = next(i for i, word in enumerate(words) if not word.startswith("--"))
    options = dict(word.removeprefix("--").partition("=")[::2] for word in words[:first])
    command, tasks = words[first:], int(options["ntasks"])
    running: Tasks = [
        subprocess.Popen(
            command,
            env={**os.environ, "SLURM_PROCID": str(index), "SLURM_NTASKS": str(tasks)},
            start_new_session=True,
        )
        for index in range(tasks)
    ]

    def pass_on(number: int, frame: FrameType | None) -> None:
        for task in running:
            if task.poll() is None:
                os.killpg(task.pid, number)

    signal.signal(signal.SIGTERM, pass_on)
    codes = [task.wait() for task in running]
    return max(code if code >= 0 else 128 - code for code in codes)


def scontrol(words: list[str]) -> int:
    """`show hostnames LIST`, one a line; `requeue` is only written down."""
    if words[:2] == ["show", "hostnames"]:
        print(words[2].replace(",", "\n"))
    return 0


def main() -> int:
    """Do what the command of this name does."""
    name, words = Path(sys.argv[0]).name, sys.argv[1:]
    with Path(os.environ["STAND_IN_LOG"]).open("a") as log:
        log.write(json.dumps([name, *words]) + "\n")
    if name == "srun":
        return srun(words)
    return scontrol(words) if name == "scontrol" else 0


if __name__ == "__main__":
    sys.exit(main())
