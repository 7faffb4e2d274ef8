"""What is imported lives as long as its process: no garbage collection looks at it, neither
meanwhile, which would take a fifth of the time for the libraries of models, nor later, at the
process's end least of all.
"""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def lasting() -> Iterator[None]:
    """For imports within."""
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()
