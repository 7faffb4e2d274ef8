"""The server reads what pages import before somebody asks for one."""

import subprocess
import sys
from typing import Any

from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from dashboard.server import PagesWithRoot

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


def test_a_page_says_where_its_server_is() -> None:
    """So that a browser need not ask below the page's own address, in vain, first."""

    async def other(scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse("other")(scope, receive, send)

    client = TestClient(PagesWithRoot(other))
    for path in ("/", "/learning?run=a.b"):
        page = client.get(path)
        assert page.headers["cache-control"] == "no-cache"
        assert page.text.index("BACKEND_BASE_URL") < page.text.index("<script type")
    for path in ("/favicon.png", "/_stcore/health", "/static/js/index.js"):
        assert client.get(path).text == "other"
