"""The server reads what pages import before somebody asks for one."""

import subprocess
import sys

SCRIPT = """
import sys
from dashboard.server import read_ahead

looks = iter([False, True])
assert not {"altair", "pandas", "dashboard.app"} & set(sys.modules)
read_ahead(lambda: next(looks))
assert {"altair", "pandas", "dashboard.views.compare"} <= set(sys.modules)
print(list(looks))
"""


def test_what_pages_import_is_read_once_the_server_is_up() -> None:
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, timeout=300
    )
    assert found.stdout.strip() == "[]", found.stderr
