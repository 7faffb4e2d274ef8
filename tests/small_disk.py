"""Small disks for tests: a tmpfs that can be filled, made larger, and closed."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


class SmallDisk:
    """A mounted tmpfs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / ".ballast"

    def fill(self) -> None:
        """Leave no room at all."""
        with self._ballast.open("ab", buffering=0) as file:
            for size in (1 << 20, 4096, 1):
                with contextlib.suppress(OSError):
                    while file.write(bytes(size)):
                        pass
        assert os.statvfs(self.path).f_bfree == 0

    def free(self) -> None:
        """Give the room back."""
        self._ballast.unlink()

    def change(self, options: str) -> None:
        """Mount it otherwise: another size, `ro`, `rw`."""
        command = ["mount", "-o", f"remount,{options}", str(self.path)]
        subprocess.run(command, check=True, capture_output=True)


@contextlib.contextmanager
def small_disk(path: Path, size: str) -> Iterator[SmallDisk]:
    """A disk of its own at a path; the test is skipped where nothing can be mounted."""
    path.mkdir(parents=True, exist_ok=True)
    if shutil.which("mount") is None:
        pytest.skip("no `mount` on this machine")
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        # Lazily: a process of a test that failed may still have a file open.
        subprocess.run(["umount", "--lazy", str(path)], check=True, capture_output=True)
