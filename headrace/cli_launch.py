"""Options of `headrace launch`.

In: the maker of commands. Out: nothing; the command is there.
"""

import argparse
from pathlib import Path

from headrace.cli_options import Maker, take_overrides, take_recipe, take_root


def add_launch(command: Maker) -> None:
    """The command and its options."""
    launch = command(
        "launch", "train over several hosts of a cluster",
        "headrace launch recipe.toml --on slurm --nodes 4 --gpus-per-node 8 --time 12:00:00",
    )  # fmt: skip
    take_recipe(launch, optional=True)
    take_overrides(launch)
    launch.add_argument(
        "--on", required=True, choices=("slurm", "ray"),
        help="slurm: write the scripts of a job into a new run folder; ray: run on a Ray cluster",
    )  # fmt: skip
    launch.add_argument("--resume", metavar="RUN", help="go on with this run")
    take_root(launch)
    on_ray = launch.add_argument_group("on Ray")
    on_ray.add_argument(
        "--address", default="auto", metavar="HOST:PORT", help="the cluster (the one of this host)"
    )
    on_ray.add_argument("--plain", action="store_true", help="plain lines, no live display")
    _slurm(launch)


def _slurm(launch: argparse.ArgumentParser) -> None:
    job = launch.add_argument_group("on Slurm")
    job.add_argument("--nodes", type=int, default=1, metavar="N", help="nodes of the job (1)")
    job.add_argument("--gpus-per-node", type=int, default=0, metavar="N", help="of each node (0)")
    job.add_argument(
        "--cpus-per-node", type=int, default=0, metavar="N",
        help="cores of each node (default: as many as the plan needs)",
    )  # fmt: skip
    job.add_argument(
        "--learner-nodes", type=int, default=0, metavar="N",
        help="nodes that share the learner's ranks (default: as few as have the GPUs)",
    )  # fmt: skip
    for name, metavar in (("time", "HH:MM:SS"), ("partition", "NAME"), ("account", "NAME")):
        job.add_argument(f"--{name}", metavar=metavar, help="as for sbatch")
    job.add_argument(
        "--sbatch", action="append", default=[], metavar="OPTION",
        help="a further option of sbatch, e.g. --sbatch=--qos=high; repeat for more",
    )  # fmt: skip
    # What the written script says to this command within the job.
    job.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    job.add_argument("--hosts", nargs="+", help=argparse.SUPPRESS)
