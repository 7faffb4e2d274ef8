"""The server of the pages: Streamlit's, with what they import read before anybody asks for one.

In: Streamlit's own command line. What the first visitor would wait for, most of two seconds of a
processor, is done once the server answers; who comes earlier waits for the rest of it.
"""

import threading
import time
from collections.abc import Callable

_LOOK_S = 0.05


def read_ahead(is_up: Callable[[], bool]) -> None:
    """Import the pages as soon as the server is up: not before, for that would keep it waiting."""
    while not is_up():
        time.sleep(_LOOK_S)
    import dashboard.app  # noqa: F401 - what it imports is what takes the time


def main() -> None:
    """Serve until told to end."""
    from streamlit import runtime
    from streamlit.web import cli

    threading.Thread(target=read_ahead, args=(runtime.exists,), daemon=True).start()
    cli.main(prog_name="streamlit")


if __name__ == "__main__":
    main()
