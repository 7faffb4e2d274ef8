"""Search for the isolation that works on this machine.

Out: the first layer under which every escape of `escapes.py` is held, or a UserError that says what
is missing. Trying takes some seconds, so the answer is kept in the user's cache folder for as long
as machine, user, interpreter and this package stay the same.
"""

import contextlib
import hashlib
import json
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import RunFailedError, UserError
from sandbox.cell import Cell
from sandbox.escape_tests import escapes
from sandbox.interpreter import Interpreter, interpreter
from sandbox.isolation import kernel
from sandbox.isolation.factory_client import CellFactoryClient
from sandbox.limits import Checks, Limits, Program, ProgramResult

LAYERS = {
    "namespaces": "own namespaces, a syscall filter, limits by user",
    "landlock": "Landlock, a syscall filter, one process without threads",
}
"""Name to what it is made of, best first."""
ADVICE = (
    "start as root, or allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, "
    "kernel.apparmor_restrict_unprivileged_userns=0, or `docker run --cap-add SYS_ADMIN`), or use "
    "a kernel with Landlock"
)


@dataclass(frozen=True)
class LayerTrial:
    """Trial of a layer. It works where it could be had and nothing escaped."""

    layer: str
    tried: int = 0
    escaped: tuple[str, ...] = ()
    """One `name: what happened` per escape."""
    refused: str = ""
    """Reason why the machine does not allow it."""

    @property
    def works(self) -> bool:
        """True if programs may run in it."""
        return bool(self.tried) and not self.escaped and not self.refused

    def __str__(self) -> str:
        if self.refused:
            return f"not to be had: {self.refused}"
        if self.escaped:
            return f"{len(self.escaped)} of {self.tried} escapes succeed ({self.escaped[0]})"
        return f"holds {self.tried} of {self.tried} escapes"


async def try_layer(layer: str, python: Interpreter | None = None) -> LayerTrial:
    """Try every escape under a layer, with the programs' interpreter (None: ours)."""
    if kernel.MACHINE is None:
        return LayerTrial(layer, refused="needs Linux on x86-64 or AArch64")
    try:
        ordinary = await _run_ordinary(layer, python)
        if ordinary.status != "ok":
            refused = f"an ordinary program fails in it: {ordinary.stderr[-200:]}"
            return LayerTrial(layer, refused=refused)
        outcomes = await escapes.try_all(layer, python)
    except RunFailedError as error:
        return LayerTrial(layer, refused=str(error).partition(": ")[2] or str(error))
    escaped = tuple(f"{each.name}: {each.escaped[0]}" for each in outcomes if each.escaped)
    return LayerTrial(layer, len(outcomes), escaped)


async def _run_ordinary(layer: str, python: Interpreter | None) -> ProgramResult:
    """Run a program that does nothing special; where it fails, holding proves nothing."""
    source = "import decimal, json, re\ndef answer(x):\n    return [x, decimal.Decimal(1)]\n"
    factory = await CellFactoryClient.start(python)
    try:
        cell = await Cell.make(factory, layer, Limits())
        return await cell.run(Program(source, checks=Checks(("assert answer(4) == [4, 1]",))))
    finally:
        await factory.close()


async def known_trials() -> list[LayerTrial]:
    """All layers, best first."""
    return [await _known_trial(layer) for layer in LAYERS]


async def working_layer(python: Interpreter | None = None) -> str:
    """The best layer that works; UserError where model-written code cannot be run."""
    trials = []
    for layer in LAYERS:
        trials.append(await _known_trial(layer, python))
        if trials[-1].works:
            return layer
    reasons = "; ".join(f"{trial.layer} {trial}" for trial in trials)
    raise UserError(f"no sandbox for programs on this machine: {reasons}. {ADVICE}")


async def _known_trial(layer: str, python: Interpreter | None = None) -> LayerTrial:
    """Return a trial of a layer, now or earlier; only success is remembered."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "headrace")
    # One file for each interpreter, so that two that are used in turns are tried once.
    known = python or interpreter()
    mark = hashlib.sha256(repr(known).encode()).hexdigest()[:8]
    file, key = folder / f"sandbox-{layer}-{mark}.json", _fingerprint(known)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(file.read_text())
        if kept["key"] == key:
            return LayerTrial(layer, int(kept["tried"]))
    trial = await try_layer(layer, python)
    if trial.works:
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            part = file.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps({"key": key, "tried": trial.tried}))
            part.replace(file)
    return trial


def _fingerprint(python: Interpreter) -> str:
    """Return a hash of all that an answer depends on."""
    # This process's rights: another container on the same machine may have fewer.
    status = Path("/proc/self/status").read_text().splitlines()
    rights = "".join(line for line in status if line.startswith(("Cap", "Seccomp", "NoNewPrivs")))
    boot = Path("/proc/sys/kernel/random/boot_id")
    facts = [platform.release(), str(os.geteuid()), repr(python), rights]
    facts.append(boot.read_text() if boot.exists() else "")
    digest = hashlib.sha256(json.dumps(facts).encode())
    folder = Path(__file__).parent
    for path in sorted([*folder.rglob("*.py"), *folder.rglob("attempts/*")]):
        digest.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return digest.hexdigest()
