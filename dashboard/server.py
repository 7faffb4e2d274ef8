"""The server of the pages: Streamlit's, told to the browser, with its imports read ahead.

In: `python -m dashboard.server HOST PORT ROOT [RUN]`. What the first visitor would wait for, most
of two seconds of a processor, is done once the server answers, unless it is the page of a run that
trains, which nobody may open; who comes earlier waits for the rest of it.
"""

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import streamlit as st
from starlette.middleware import Middleware
from starlette.responses import HTMLResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from streamlit import file_util, runtime

from headrace.host import memory

_LOOK_S = 0.05
_ROOT = "<script>window.__streamlit={BACKEND_BASE_URL:new URL('.',location.href).href}</script>"
"""Where the server is, from the root's address or any page's. Without it a browser asks below the
page's own address first, and gets a 404."""


class PagesWithRoot:
    """Pages that know where their server is."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        index = Path(file_util.get_static_dir(), "index.html").read_text(encoding="utf-8")
        page = index.replace("<head>", f"<head>{_ROOT}", 1)
        self.page = HTMLResponse(page, headers={"Cache-Control": "no-cache"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope.get("path", "").removeprefix("/")
        is_page = scope["type"] == "http" and "/" not in name and "." not in name
        await (self.page if is_page else self.app)(scope, receive, send)


def read_ahead(is_up: Callable[[], bool]) -> None:
    """Import the pages as soon as the server is up: not before, for that would keep it waiting."""
    while not is_up():
        time.sleep(_LOOK_S)
    import dashboard.app  # noqa: F401 - what it imports is what takes the time


def main() -> None:
    """Serve until told to end."""
    memory.give_back()
    host, port, *sys.argv[1:] = sys.argv[1:]
    if len(sys.argv) == 2:
        threading.Thread(target=read_ahead, args=(runtime.exists,), daemon=True).start()
    pages = st.App(Path(__file__).with_name("app.py"), middleware=[Middleware(PagesWithRoot)])
    pages.run(config={"server.address": host, "server.port": int(port)})


if __name__ == "__main__":
    main()
