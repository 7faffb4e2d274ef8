"""TRL's own Python environment: built from its lock at the first use, below `.cache`.

In: `requirements/trl.lock`. Out: the environment's Python. The project does not depend on TRL, and
TRL's environment does not know the project's packages. An environment that another lock made is
brought to this one; one that was not finished is made anew.
"""

import subprocess
import sys
from pathlib import Path

from headrace.errors import UserError
from headrace.install import ROOT

LOCK = ROOT / "requirements" / "trl.lock"


def trl_python(root: Path = ROOT) -> Path:
    """The environment's Python, the environment built by the set-up if need be; UserError when it
    cannot be. Of several that ask at once, one builds and the others wait."""
    done = subprocess.run([sys.executable, str(root / "scripts" / "setup.py"), "trl"])
    if done.returncode != 0:
        raise UserError("TRL's environment could not be built, as said above")
    return root / ".cache" / "trl" / "bin" / "python"
