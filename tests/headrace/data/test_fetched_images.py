"""Images by http, from a server of this machine: `task.image_urls = true`."""

import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from headrace.config.sections.task import DatasetConfig
from headrace.data import media
from headrace.data.media import MediaError, image_bytes
from tasks.datasets.source import image_files
from tasks.procedural.shapes import draw
from tasks.rows import TaskRow

PICTURE = draw({"red": (0, 0, 1, 1)})


class Handler(BaseHTTPRequestHandler):
    """What each path answers."""

    def do_GET(self) -> None:
        """One reply."""
        redirects = {"/moved": "/good", "/twice": "/moved", "/loop": "/loop", "/away": "ftp://a/b"}
        if self.path in redirects:
            self.send_response(302)
            self.send_header("Location", redirects[self.path])
            self.end_headers()
            return
        if self.path == "/silent":
            time.sleep(3)
        self.send_response(404 if self.path == "/gone" else 200)
        self.end_headers()
        if self.path == "/page":
            self.wfile.write(b"<html>")
        if self.path in ("/good", "/cut"):
            self.wfile.write(PICTURE if self.path == "/good" else PICTURE[:70])
        for _ in range(30 if self.path == "/slow" else 0):
            self.wfile.write(b"x")
            time.sleep(0.1)

    def log_message(self, *_: object) -> None:
        """Nothing on the terminal."""


@pytest.fixture(name="url")
def _url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("NO_PROXY", "*")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def fetched(url: str, *, urls: bool = True) -> list[bytes]:
    """The image of a row that names it by this URL."""
    task = DatasetConfig(
        kind="dataset", path="rows.jsonl", eval_fraction=0.1, max_prompt_length=8,
        max_response_length=8, image_urls=urls,
    )  # fmt: skip
    content = [{"type": "image", "image": url}]
    row = TaskRow("r1", [{"role": "user", "content": content}], "1")
    return image_files(task, row, check=True)


@pytest.mark.parametrize("path", ["good", "moved", "twice"])
def test_redirects_are_followed(url: str, path: str) -> None:
    assert fetched(f"{url}/{path}") == [PICTURE]
    with pytest.raises(MediaError, match=r"task\.image_urls = true"):
        fetched(f"{url}/{path}", urls=False)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("gone", "cannot be fetched: .*404"),
        ("loop", "cannot be fetched: .*redirects"),
        ("away", "cannot be fetched: .*unsupported protocol"),
        ("silent", "cannot be fetched: .*timed out"),
        ("slow", "cannot be fetched: it takes too long"),
        ("page", "the image is empty, damaged"),
        ("cut", "the image is damaged"),
        ("empty", "the image is empty"),
    ],
)
def test_what_cannot_be_had_is_one_line_with_its_row(
    url: str, path: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if path in ("silent", "slow"):  # All others have the time that they need.
        monkeypatch.setattr(media, "URL_TIMEOUT_S", 0.7)
    began = time.monotonic()
    with pytest.raises(MediaError, match=f"(?i)^row r1, image 1: .*{why}") as refused:
        fetched(f"{url}/{path}")
    assert "\n" not in str(refused.value)
    assert time.monotonic() - began < 2.5


def test_a_file_over_the_bound_is_not_read_to_its_end(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(media, "MAX_FILE_BYTES", 5)
    with pytest.raises(MediaError, match="has more than 5 bytes"):
        image_bytes(f"{url}/good", Path(), urls=True)


def test_nobody_listens() -> None:
    with pytest.raises(MediaError, match="cannot be fetched: "):
        image_bytes("http://127.0.0.1:9/a.png", Path(), urls=True)


@pytest.mark.parametrize("host", ["a..b", "a" * 64 + ".org"])
def test_a_host_that_can_have_no_address(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    with pytest.raises(MediaError, match="cannot be fetched: "):
        image_bytes(f"http://{host}/a.png", Path(), urls=True)
