"""Reward functions as users write them on a bad day: the completion says what to do."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FOREVER_S = 3600


def behave(prompt: str, completion: str, answer: str, **info: Any) -> Any:
    """Do what the first word says; any other text is scored by equality with the answer."""
    match completion.split(" ")[0]:
        case "hang":
            time.sleep(FOREVER_S)
        case "spin":
            while True:
                pass
        case "exit":
            os._exit(7)
        case "quit":
            sys.exit("enough")
        case "raise":
            raise RuntimeError("no such luck")
        case "spawn":
            # A grandchild that would outlive the child, and hold its pipes open.
            child = subprocess.Popen(["sleep", str(FOREVER_S)])
            Path(info["note"]).write_text(str(child.pid))
            time.sleep(FOREVER_S)
        case "pid":
            Path(info["note"]).write_text(str(os.getpid()))
            time.sleep(FOREVER_S)
        case "nan":
            return float("nan")
        case "inf":
            return {"score": float("inf")}
        case "text":
            return "1.0"
        case "none":
            return None
        case "huge":
            return {"score": 1.0, "log": "x" * (8 << 20)}
        case "many":
            return {"score": 1.0, **{f"part{i}": 1.0 for i in range(100_000)}}
        case "memory":
            return float(len(bytearray(64 << 30)))
        case "print":
            print("y" * (1 << 20), flush=True)
            os.write(1, b"\0\0\0\x01x")
            return float(sys.stdin.read() == "")
        case "parts":
            return {"score": 0.5, "format": 1.0, "length": len(completion)}
        case "half":
            raise RuntimeError("no \ud83d")
        case "named":
            return {"score": 0.5, "of \ud83d": 1.0}
    return float(completion == answer)


def strict(prompt: str, completion: str, answer: str, weight: float) -> float:
    """Takes one entry of `info` by name and no others."""
    return weight * (completion == answer)


NOT_A_FUNCTION = 3
