"""A stand-in for a role's process, with a life told by its arguments.

python scripted_role.py coordinator RUN_DIR STOP_FILE     has an address until STOP_FILE exists
python scripted_role.py coordinator RUN_DIR STOP_FILE N   the same; killed N times as it takes over
python scripted_role.py reads RUN_DIR STOP_FILE LINES     the same, after so many lines of its log
python scripted_role.py waits RUN_DIR STOP_FILE SECONDS   the same, after it waited for a disk
python scripted_role.py die CODE [DELAY]                  prints a line and ends
python scripted_role.py die-once MARK CODE                dies the first time, then stays
python scripted_role.py stay [PID_FILE]                   until SIGTERM
python scripted_role.py listens PID_FILE                  stays, and says what it does when asked
python scripted_role.py stubborn PID_FILE                 ignores SIGTERM and has a child that does
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from headrace.host import stack_dumps


def forever(pid_file: str | None = None) -> None:
    """Stay; who finds the process id in the file finds this function in the stack."""
    if pid_file:
        Path(pid_file).write_text(str(os.getpid()))
    while True:
        time.sleep(0.05)


def coordinator(run_dir: Path, stop_file: Path, deaths: int = 0) -> None:
    port = 1 if "--resume" not in sys.argv else 2
    marks = [run_dir / f"killed-{number}" for number in range(deaths)]
    if port == 2 and (left := [mark for mark in marks if not mark.exists()]):
        left[0].write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
    address = {"address": f"tcp://127.0.0.1:{port}", "pid": os.getpid(), "run_id": "r"}
    part = run_dir / "part"
    part.write_text(json.dumps(address))
    part.replace(run_dir / "coordinator.json")
    while not stop_file.exists():
        time.sleep(0.02)


def main() -> None:
    life, *words = (word for word in sys.argv[1:] if word not in ("--resume", "--patient"))
    if life == "coordinator":
        coordinator(Path(words[0]), Path(words[1]), *map(int, words[2:]))
    elif life == "reads":
        for number in range(int(words[2])):
            print(number, flush=True)
            time.sleep(0.2)
        coordinator(Path(words[0]), Path(words[1]))
    elif life == "waits":
        print("waits: room for 1,024 bytes in /some/where, and 0 are free", flush=True)
        time.sleep(float(words[2]))
        print("tries again", flush=True)
        coordinator(Path(words[0]), Path(words[1]))
    elif life == "die":
        time.sleep(float(words[1]) if len(words) > 1 else 0.0)
        print("error: something is wrong here", file=sys.stderr, flush=True)
        if int(words[0]) < 0:
            os.kill(os.getpid(), -int(words[0]))
        sys.exit(int(words[0]))
    elif life == "die-once":
        mark = Path(words[0])
        if mark.exists():
            forever()
        mark.write_text("")
        sys.exit(int(words[1]))
    elif life == "stay":
        forever(*words)
    elif life == "listens":
        stack_dumps.listen()
        forever(words[0])
    elif life == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, __file__, "stay"], stdin=subprocess.DEVNULL)
        Path(words[0]).write_text(f"{os.getpid()} {child.pid}")
        forever()


if __name__ == "__main__":
    main()
