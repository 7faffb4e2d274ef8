"""Input and output of a cell. Standard library only: cells import it too."""

from dataclasses import dataclass, field
from typing import Literal

MIB = 1 << 20
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Environment of programs that see packages: libraries would start a thread for each core."""

Status = Literal["ok", "failed", "timeout", "memory", "killed"]
"""ok: ended with exit code 0; with checks, all of them held. failed: another exit code, or a check
that did not hold. timeout: the deadline came first. memory: took more than it may. killed: ended by
a signal."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one program; all of them are held from outside of it."""

    seconds: float = 10.0
    """By the wall clock, from the moment it gets its source."""
    memory_bytes: int = 512 * MIB
    """Of all its processes together, beside the interpreter; files in /tmp are counted apart."""
    processes: int = 16
    """Processes and threads at a time, itself included. The layer `landlock` allows one."""
    open_files: int = 64
    """In each process."""
    file_bytes: int = 32 * MIB
    """In one file."""
    disk_bytes: int = 64 * MIB
    """In /tmp. The layer `landlock` has no place to write."""
    files: int = 1024
    """Files and folders in /tmp."""
    output_bytes: int = 64 * 1024
    """Kept of standard output and of standard error; what comes after is read and forgotten."""


@dataclass(frozen=True, slots=True)
class Checks:
    """Code that judges a program from a process of its own, and sees only its answers.

    Names that neither this code nor Python defines are the program's; `names` are taken from the
    program even where `setup` defines them too.
    """

    each: tuple[str, ...]
    """Run in this order; one that raises does not hold, and the others go on."""
    setup: str = ""
    """Run before them; where it raises, none of them holds."""
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """Python source. With `checks` it is loaded like a module, else it runs as `__main__`."""

    source: str
    stdin: str = ""
    checks: Checks | None = None
    seconds: float | None = None
    """A deadline shorter than the pool's."""


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """Result of a program."""

    status: Status
    exit_code: int | None
    """Of the program; negative: the signal that ended it. None where it did not end by itself."""
    stdout: str
    stderr: str
    seconds: float
    cut: bool = False
    """True if it wrote more to standard output than is kept."""
    passed: int = 0
    """Checks that held."""
    total: int = 0
    errors: tuple[str, ...] = field(default=())
    """Reasons why the others did not hold, in their order."""
