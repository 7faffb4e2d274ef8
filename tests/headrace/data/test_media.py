"""Images by content: stored once, read whole or not at all, and refused with one line."""

import base64
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from PIL import Image

from headrace.data import media
from headrace.data.media import MediaStore, check_image, image_bytes, open_rgb
from headrace.errors import StorageBlockedError, UserError
from tests.small_disk import small_disk


def encoded(size: tuple[int, int] = (3, 2), mode: str = "RGB", kind: str = "PNG") -> bytes:
    out = BytesIO()
    Image.new(mode, size, 200 if mode == "L" else None).save(out, kind)
    return out.getvalue()


def header_only(width: int, height: int) -> bytes:
    """A PNG that says how large it is, and has no pixels behind that."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = (b"IHDR" + header, b"IDAT" + zlib.compress(b""), b"IEND")
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in chunks
    )


def animated() -> bytes:
    out = BytesIO()
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:])
    return out.getvalue()


BAD = [
    (b"", "empty, damaged"),
    (b"not an image", "empty, damaged"),
    (encoded((64, 64))[:60], "is damaged"),
    (header_only(4, 4), "is damaged"),
    (header_only(0, 4), "without pixels"),
    (header_only(20_000, 4), r"20000 x 4 pixels; a side has at most 16,384"),
    (header_only(12_000, 12_000), "12000 x 12000 pixels; at most"),
    (header_only(60_000, 60_000), "pixels"),
    (animated(), r"is animated \(2 frames\)"),
]


@pytest.mark.parametrize(("data", "message"), BAD)
@pytest.mark.parametrize("use", [check_image, open_rgb])
def test_images_that_are_refused(use: Callable[[bytes], Any], data: bytes, message: str) -> None:
    with pytest.raises(UserError, match=message) as refused:
        use(data)
    assert "\n" not in str(refused.value)


def test_what_an_image_is() -> None:
    assert open_rgb(encoded()).size == (3, 2)
    for mode, kind in (("CMYK", "JPEG"), ("L", "PNG"), ("RGBA", "WEBP"), ("P", "GIF")):
        data = encoded((8, 6), mode, kind)
        check_image(data)
        assert (open_rgb(data).mode, open_rgb(data).size) == ("RGB", (8, 6))


def test_a_turned_photo_is_upright() -> None:
    exif, out = Image.Exif(), BytesIO()
    exif[0x0112] = 6
    Image.new("RGB", (8, 6)).save(out, "JPEG", exif=exif)
    check_image(out.getvalue())
    assert open_rgb(out.getvalue()).size == (6, 8)


def test_an_image_is_stored_once(tmp_path: Path) -> None:
    store = MediaStore(tmp_path / "media")
    writers = [Thread(target=store.put, args=(encoded(),)) for _ in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    digest = store.put(encoded())
    assert [file.name for file in store.folder.iterdir()] == [digest]
    assert store.read(digest) == store.path(digest).read_bytes() == encoded()


def test_an_image_is_as_readable_as_the_run_s_other_files(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        store = MediaStore(tmp_path)
        digest = store.put(encoded())
    finally:
        os.umask(before)
    assert store.path(digest).stat().st_mode & 0o777 == 0o640


def test_missing_and_damaged_files_are_told(tmp_path: Path) -> None:
    store = MediaStore(tmp_path)
    digest = store.put(encoded())
    store.path(digest).write_bytes(b"other")
    with pytest.raises(UserError, match="is damaged: its SHA-256"):
        store.read(digest)
    store.path(digest).unlink()
    with pytest.raises(UserError, match="cannot be read: No such file"):
        store.read(digest)
    with pytest.raises(UserError, match="no SHA-256"):
        store.read("../secret")


def test_the_ways_to_name_an_image(tmp_path: Path) -> None:
    data = encoded()
    (tmp_path / "a b.png").write_bytes(data)
    inline = "data:image/png;base64," + base64.b64encode(data).decode()
    for image in (
        data,
        "a b.png",
        f"file://{tmp_path}/a%20b.png",
        inline,
        {"bytes": data, "path": "gone.png"},
        {"bytes": None, "path": "a b.png"},
        {"type": "image", "image": "a b.png"},
        {"type": "image_url", "image_url": {"url": inline}},
    ):
        assert image_bytes(image, tmp_path) == data


@pytest.mark.parametrize(
    ("image", "message"),
    [
        ("data:image/png;base64,\u00e9", "no base64"),
        ("file://[x", "Invalid IPv6"),
        ("gone.png", "gone.png' cannot be read: No such file"),
        ("a" * 5000, "cannot be read: File name too long"),
        ("a\0b", "cannot be read"),
        (".", "Is a directory"),
        ("data:image/png;base64,!!", "no base64"),
        ("data:image/png", "a comma"),
        ("https://example.org/a.png", r"task\.image_urls = true"),
        ({"path": None}, "no image but NoneType"),
        (3, "no image but int"),
    ],
)
def test_images_that_cannot_be_had(image: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        image_bytes(image, tmp_path)


def test_files_beyond_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "MAX_FILE_BYTES", 10)
    (tmp_path / "a.png").write_bytes(encoded())
    with pytest.raises(UserError, match="more than 10 bytes"):
        image_bytes("a.png", tmp_path)
    with pytest.raises(UserError, match="at most 10 are read"):
        check_image(encoded())


def test_a_disk_that_takes_no_image_is_no_error_of_the_image(tmp_path: Path) -> None:
    """The same image is taken when there is room, and nothing is left of the first try."""
    with small_disk(tmp_path / "disk", "1m") as disk:
        store = MediaStore(disk.path / "media")
        store.put(encoded((3, 3)))
        disk.fill()
        data = b"x" * 10_000
        with pytest.raises(StorageBlockedError, match=r"room for 10,000 bytes in .*/media"):
            store.put(data)
        assert len(list(store.folder.iterdir())) == 1
        disk.free()
        assert store.read(store.put(data)) == data


def test_what_a_killed_writer_left_goes_and_images_stay(tmp_path: Path) -> None:
    """SIGKILL comes between the file's last byte and its name."""
    code = (
        "import os, sys; from pathlib import Path; from headrace.data.media import MediaStore\n"
        "os.replace = lambda *_: os.kill(os.getpid(), 9)\n"
        "MediaStore(Path(sys.argv[1])).put(b'second')"
    )
    store = MediaStore(tmp_path / "media")
    store.clean()
    first = store.put(b"first")
    done = subprocess.run([sys.executable, "-c", code, str(store.folder)])
    assert done.returncode == -9
    assert len(list(store.folder.iterdir())) == 2
    store.clean()
    assert [path.name for path in store.folder.iterdir()] == [first]
