"""A scripted judge as a process, in the place of a run's judge: `python -m
tests.rewards.judging.served --run-dir DIR --name NAME`.

It says where it serves and by which key as a run's judge does, and says `y` to what has no 9 in it.
One of the name `broken` ends at once, with a line of its own.
"""

import argparse
import asyncio
import os
import sys
from pathlib import Path

from aiohttp import web

from headrace.protocol.messages.judges import FOLDER, JudgeAddress, write_address
from tests.rewards.judging.scripted import KEY, Body, completed, scripted_judge


async def by_the_nine(body: Body) -> web.StreamResponse:
    """No to every text with a 9."""
    yes, no = (-2.4, -0.1) if "9" in body["prompt"] else (-0.1, -2.4)
    return completed("y" if yes > no else "n", {"y": yes, "n": no})


async def serve(folder: Path, name: str) -> None:
    """Serve until a signal; 1 where somebody asked without the key."""
    async with scripted_judge(by_the_nine) as judge:
        write_address(folder, name, JudgeAddress(judge.url, name, KEY, os.getpid()))
        while all(key == f"Bearer {KEY}" for key in judge.keys):
            await asyncio.sleep(0.02)
    raise SystemExit(1)


def main() -> None:
    """Entry point of the process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", required=True, type=Path)
    parser.add_argument("--name", required=True)
    parser.add_argument("--cpus")
    options = parser.parse_args()
    if options.name == "broken":
        sys.exit("error: it has no voice")
    asyncio.run(serve(options.run_dir / FOLDER, options.name))


if __name__ == "__main__":
    main()
