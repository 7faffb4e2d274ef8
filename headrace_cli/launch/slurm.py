"""A run on Slurm: the scripts of its job, and its processes as steps of that job.

In: the plan of `hosts.py` and a `SlurmJob`. Out: the texts of `job.sbatch` and of one script for
each kind of step; the plan with each process as such a step. Slurm chooses hosts, cores and GPUs;
the supervisor, which runs on the first host with the coordinator beside it, starts steps, restarts
them and ends them. All learner ranks are one step, which torchrun divides on each of its hosts.
"""

import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.errors import UserError
from headrace.host.install import ROOT
from headrace_cli.launch.hosts import HOST, ResourceShare
from headrace_cli.launch.plan import ADDRESS, MASTER_PORT, ProcessSpec, learner_argv

HostPlan = Sequence[tuple[ProcessSpec, ResourceShare]]
FOLDER = "slurm"
JOB = "job.sbatch"
WORKERS = ("generator", "reward", "environment")
WARNING_S = 300
"""Seconds before a job's time limit at which it receives the signal to drain and checkpoint."""


@dataclass(frozen=True)
class SlurmJob:
    """Resources of a Slurm job. `learner_nodes` of the first nodes share the learner's ranks;
    `more` are further options of sbatch as they are written on its command line."""

    nodes: int
    cpus_per_node: int
    gpus_per_node: int = 0
    learner_nodes: int = 1
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    more: tuple[str, ...] = ()


def job_of(plan: HostPlan, asked: SlurmJob) -> SlurmJob:
    """The job as it was asked for, with what was left open (0) filled in: as few cores of each node
    as the plan needs, as few nodes for the learner as its GPUs need. UserError where the plan has
    no room in it."""
    ranks = [share for spec, share in plan if spec.role == "learner"]
    on_gpus = bool(ranks and ranks[0].gpus)
    widest = max(1, asked.gpus_per_node if on_gpus else len(ranks))
    job = replace(asked, learner_nodes=asked.learner_nodes or -(-len(ranks) // widest) or 1)
    if len(ranks) % job.learner_nodes:
        raise UserError(
            f"learner.ranks = {len(ranks)} cannot be shared evenly by {job.learner_nodes} nodes; "
            "choose another learner.ranks or --learner-nodes"
        )
    most = sum(share.cpus for _, share in plan)
    if not _has_room(plan, replace(job, cpus_per_node=most)):
        cards = sum(share.gpus for _, share in plan)
        raise UserError(
            f"the plan's {cards} GPU(s) and {job.learner_nodes} node(s) of the learner have no "
            f"room on {job.nodes} node(s) with {job.gpus_per_node} GPU(s) each; ask for more by "
            "--nodes or --gpus-per-node"
        )
    needed = next(n for n in range(1, most + 1) if _has_room(plan, replace(job, cpus_per_node=n)))
    if job.cpus_per_node and job.cpus_per_node < needed:
        raise UserError(
            f"the plan needs {needed} cores on each of {job.nodes} node(s); ask for more by "
            "--cpus-per-node or --nodes"
        )
    return replace(job, cpus_per_node=job.cpus_per_node or needed)


def _has_room(plan: HostPlan, job: SlurmJob) -> bool:
    """Return whether each step finds a node, where each takes the first one that has room."""
    ranks = [share for spec, share in plan if spec.role == "learner"]
    own = _per_node(ranks, job) if ranks else ResourceShare(0)
    learners = job.learner_nodes if ranks else 0
    if learners > job.nodes:
        return False
    free = [
        [job.cpus_per_node - own.cpus * taken, job.gpus_per_node - own.gpus * taken]
        for taken in (index < learners for index in range(job.nodes))
    ]
    if any(left < 0 for node in free for left in node):
        return False
    for share in (share for spec, share in plan if spec.role in WORKERS):
        node = next((n for n in free if n[0] >= share.cpus and n[1] >= share.gpus), None)
        if node is None:
            return False
        node[0] -= share.cpus
        node[1] -= share.gpus
    return True


def _per_node(ranks: Sequence[ResourceShare], job: SlurmJob) -> ResourceShare:
    each = len(ranks) // job.learner_nodes
    return ResourceShare(ranks[0].cpus * each, ranks[0].gpus * each)


# -- scripts -----------------------------------------------------------------------------------


def write_scripts(plan: HostPlan, job: SlurmJob, run_dir: Path) -> Path:
    """Write all scripts into the run's folder; the one to hand to sbatch."""
    folder = run_dir / FOLDER
    folder.mkdir(exist_ok=True)
    for name, text in scripts(plan, job, run_dir).items():
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    return folder / JOB


def scripts(plan: HostPlan, job: SlurmJob, run_dir: Path) -> dict[str, str]:
    """Name and text of each script."""
    shares = {spec.role: share for spec, share in plan}
    found = {JOB: _job_script(job, run_dir)}
    for role in WORKERS:
        if role in shares:
            found[f"{role}.sh"] = _step_script(role, shares[role], job)
    ranks = [share for spec, share in plan if spec.role == "learner"]
    if ranks:
        found["learner.sh"] = _learner_script(_per_node(ranks, job), job, run_dir)
        found["ranks.sh"] = _ranks_script(len(ranks) // job.learner_nodes, job)
    return found


def _options(job: SlurmJob, run_dir: Path) -> Iterator[str]:
    yield f"--job-name={run_dir.name}"
    yield f"--nodes={job.nodes}"
    yield "--ntasks-per-node=1"
    yield f"--cpus-per-task={job.cpus_per_node}"
    if job.gpus_per_node:
        yield f"--gres=gpu:{job.gpus_per_node}"
    for name in ("time", "partition", "account"):
        if value := getattr(job, name):
            yield f"--{name}={value}"
    yield f"--output={shlex.quote(str(run_dir / 'logs'))}/slurm-%j.log"
    yield "--open-mode=append"
    yield "--requeue"
    yield "--no-kill"
    yield f"--signal=B:USR2@{WARNING_S}"
    yield from job.more


def _job_script(job: SlurmJob, run_dir: Path) -> str:
    options = "\n".join(f"#SBATCH {option}" for option in _options(job, run_dir))
    gpus = f" --gpus-per-node {job.gpus_per_node}" if job.gpus_per_node else ""
    return f"""\
#!/bin/bash
{options}
#
# Starts the run in this folder, or goes on with it. Its first node runs the supervisor and the
# coordinator; everything else is a step that a script of its role starts (learner.sh, ...). A node
# that fails takes its steps with it, not the job; before the end of its time the run is told to
# drain and to write a checkpoint, and the job is queued again.
set -eu

# Each step asks for itself: what the job asked for must not become its default.
unset SLURM_CPUS_PER_TASK SLURM_TRES_PER_TASK SLURM_NTASKS_PER_NODE SLURM_NTASKS SLURM_NPROCS
unset SLURM_GPUS_PER_NODE SLURM_MEM_PER_NODE SLURM_MEM_PER_CPU SLURM_DISTRIBUTION

mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export PYTHONPATH={shlex.quote(str(ROOT))}${{PYTHONPATH:+:$PYTHONPATH}}
cd {shlex.quote(str(Path.cwd()))}
exec {shlex.quote(sys.executable)} -m headrace launch --on slurm{gpus} \\
  --inside {shlex.quote(str(run_dir))} --hosts "${{hosts[@]}}"
"""


_BEFORE = """\
set -eu
# A step of this name whose srun was killed may still be there: it goes first.
squeue --steps --jobs="$SLURM_JOB_ID" --noheader --format="%i %j" | while read -r step name; do
  if [ "$name" = "$1" ]; then scancel --signal=KILL "$step"; fi
done
left=$(dirname "$0")/$1.left
rm -f "$left".*
# Wait for the end of srun, which a SIGTERM to this group tells to end the step.
trap : TERM
"""
_AFTER = """\
# srun ends with 0 as well when a node of its step fails; a task that ended well said so.
for ((task = 0; task < {tasks}; task++)); do
  if [ ! -e "$left.$task" ]; then echo "a node of this step failed" >&2; exit 1; fi
done
"""
_TASK = """bash -c '"$@" && touch "$0.$SLURM_PROCID"' "$left\""""
"""A task that leaves a mark where it ends well."""


def _asked(share: ResourceShare, job: SlurmJob) -> str:
    """Options of a step: its share, and no more of the node than that."""
    cards = f" --gres={f'gpu:{share.gpus}' if share.gpus else 'none'}" if job.gpus_per_node else ""
    return f"--exact --mem=0 --export=ALL --unbuffered --cpus-per-task={share.cpus}{cards}"


def _step_script(role: str, share: ResourceShare, job: SlurmJob) -> str:
    return f"""\
#!/bin/bash
# One {role} process on a node of Slurm's choice: {role}.sh NAME COMMAND...
{_BEFORE}
srun --job-name="$1" --nodes=1 --ntasks=1 {_asked(share, job)} \\
  {_TASK} "${{@:2}}"

{_AFTER.format(tasks=1)}"""


def _learner_script(share: ResourceShare, job: SlurmJob, run_dir: Path) -> str:
    ranks = shlex.quote(str(run_dir / FOLDER / "ranks.sh"))
    return f"""\
#!/bin/bash
# All learner ranks, on the first nodes: learner.sh NAME MASTER_HOST MASTER_PORT ARGUMENTS...
{_BEFORE}
srun --job-name="$1" --nodes={job.learner_nodes} --relative=0 --ntasks={job.learner_nodes} \\
  --ntasks-per-node=1 --kill-on-bad-exit=1 {_asked(share, job)} \\
  {_TASK} bash {ranks} "${{@:2}}"

{_AFTER.format(tasks=job.learner_nodes)}"""


def _ranks_script(each: int, job: SlurmJob) -> str:
    return f"""\
#!/bin/bash
# The learner ranks of one node: ranks.sh MASTER_HOST MASTER_PORT ARGUMENTS...
set -eu
exec {shlex.quote(sys.executable)} -m learner.process.ranks --nnodes={job.learner_nodes} \\
  --nproc-per-node={each} --node-rank="$SLURM_PROCID" --master-addr="$1" --master-port="$2" \\
  "${{@:3}}"
"""


# -- steps -------------------------------------------------------------------------------------


def steps(plan: HostPlan, run_dir: Path, host: str) -> list[ProcessSpec]:
    """The processes as the supervisor in the job starts them. `host`: the first node, as the others
    know it; the coordinator and learner rank 0 are there."""
    found: list[ProcessSpec] = []
    for spec, _ in plan:
        script = str(run_dir / FOLDER / f"{spec.role}.sh")
        match spec.role:
            case "coordinator":
                argv = tuple(word.replace(HOST, host) for word in spec.argv)
                found.append(replace(spec, argv=argv))
            case "learner":
                if any(other.role == "learner" for other in found):
                    continue
                rank = learner_argv(ADDRESS, run_dir)[1:]
                argv = ("bash", script, "learner", host, MASTER_PORT, *rank)
                found.append(replace(spec, name="learner", argv=argv,
                                     log=spec.log.with_name("learner.log")))  # fmt: skip
            case "generator" | "reward" | "environment":
                found.append(replace(spec, argv=("bash", script, spec.name, *spec.argv)))
            case _:
                found.append(spec)
    return found
