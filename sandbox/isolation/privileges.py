"""Loss of privileges before a program is met: user, capabilities, limits.

As root a cell runs as a user of its own: limits on processes count by user and exempt root.
"""

import os
import resource

from sandbox.isolation import kernel
from sandbox.limits import MIB, Limits

FIRST_USER = 0x70000000
"""A cell's user is this number plus a process id; systemd leaves the range to nobody."""
STACK_BYTES = 8 * MIB
INTERPRETER_BYTES = 192 * MIB
"""Address space of an interpreter that runs nothing, with room for its heap's reserves."""
OWN_PROCESSES = 2
"""Processes of a cell beside the program: init process and checker."""


def cell_user(process: int) -> int:
    """Return this cell's user, of the upper half where a container maps fewer users."""
    with open("/proc/self/uid_map", encoding="ascii") as file:
        ranges = [tuple(map(int, line.split())) for line in file]
    first, count = max(((inside, count) for inside, _, count in ranges), key=lambda r: r[1])
    wanted = FIRST_USER + process
    if first <= wanted < first + count:
        return wanted
    half = max(1, count // 2)
    return first + count - half + process % half


def limit_resources(limits: Limits, others: int) -> None:
    """Bound what a process may take, soft and hard alike.

    `others`: processes of the same user that belong to no cell, but are counted with it."""
    memory = limits.memory_bytes + INTERPRETER_BYTES + limits.processes * STACK_BYTES
    bounds = {
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_STACK: STACK_BYTES,
        resource.RLIMIT_NPROC: limits.processes + OWN_PROCESSES + others,
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: 256,
        resource.RLIMIT_NICE: 0,
        resource.RLIMIT_RTPRIO: 0,
    }
    for which, bound in bounds.items():
        _limit(which, bound)


def limit_processor(limits: Limits) -> None:
    """Bound processor time, a second wall behind the deadline; the init process may wait."""
    _limit(resource.RLIMIT_CPU, int(limits.seconds) + 2)


def _limit(which: int, bound: int) -> None:
    hard = resource.getrlimit(which)[1]
    least = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
    resource.setrlimit(which, (least, least))


def drop(user: int | None) -> None:
    """Become `user` (None: stay), without groups, capabilities, or a way to get any."""
    kernel.drop_capabilities()
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    kernel.clear_capabilities()
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
