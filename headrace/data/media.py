"""Images: a store of files by content, their check, and their forms in rows.

In: image files as bytes; what a row says of an image. Out: digests, files, pixels. Promises:
a file is stored once, whole or not at all, under its SHA-256, and what is read is what was stored.
An image is judged by its header before anything is decoded. Whatever is wrong is a MediaError of
one line. Storing and reading need no Pillow.
"""

import base64
import hashlib
import os
import re
import secrets
import struct
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, unquote_to_bytes, urlparse

from headrace.errors import UserError
from headrace.host.disk import sync, writing

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_SIDE_PIXELS = 16_384
"""Pixels."""
MAX_PIXELS = 64 * 1024**2
MAX_FILE_BYTES = 64 * 1024**2
"""Of an image's file."""
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
SOURCES = ("bytes", "image", "image_url", "url", "path")
"""Keys under which a part of a message, or an object in its place, has its image."""
PART_PREFIX = ".part-"
"""Prefix of the names of files that are being written."""
URL_TIMEOUT_S = 30.0
_BEGINS = {b"\x89PNG": "png", b"\xff\xd8": "jpeg", b"RIFF": "webp", b"GIF8": "gif", b"BM": "bmp"}
"""First bytes of the formats' files; the other one is TIFF."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_ORIENTATION = 0x0112


class MediaError(UserError):
    """An image is missing, damaged, or none that can be used; the text is one line."""


class MediaStore:
    """A folder of image files, each under the SHA-256 of its bytes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._later: dict[str, bytes] = {}

    def path(self, digest: str) -> Path:
        """Return the path of a stored or future file. MediaError for a text that is no digest."""
        if not _DIGEST.fullmatch(digest):
            raise MediaError(f"{_shown(digest)} is no SHA-256 of an image")
        return self.folder / digest

    def put(self, data: bytes) -> str:
        """Store a file unless it is there; its digest. After that it survives a power cut.
        StorageBlockedError where the disk takes none now."""
        digest = digest_of(data)
        path = self.path(digest)
        if path.exists():
            return digest
        with writing(self.folder, len(data)):
            self.folder.mkdir(parents=True, exist_ok=True)
            # Several writers of one image each have a part of their own.
            part = self.folder / f"{PART_PREFIX}{secrets.token_hex(8)}"
            try:
                with part.open("xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(part, path)
            except OSError:
                part.unlink(missing_ok=True)
                raise
            sync(self.folder)
        return digest

    def later(self, digest: str, data: bytes) -> None:
        """Have `write` store a file, whose SHA-256 is known, unless it is there."""
        if not self.path(digest).exists():
            self._later[digest] = data

    @property
    def waits(self) -> bool:
        """Return whether `write` has something to store."""
        return bool(self._later)

    def write(self) -> None:
        """Store what was put off, in any thread. StorageBlockedError: no room; call again later."""
        for digest, data in list(self._later.items()):
            self.put(data)
            self._later.pop(digest, None)

    def clean(self) -> None:
        """Remove the partial file of a killed writer. No writer may run."""
        for part in self.folder.glob(f"{PART_PREFIX}*"):
            part.unlink(missing_ok=True)

    def read(self, digest: str) -> bytes:
        """A stored file; MediaError where it is missing, or is not what was stored."""
        path = self.path(digest)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise MediaError(f"image {path} cannot be read: {error.strerror}") from error
        if digest_of(data) != digest:
            raise MediaError(f"image {path} is damaged: its SHA-256 is not its name")
        return data


def digest_of(data: bytes) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(data).hexdigest()


def check_image(data: bytes) -> None:
    """Check an image file. MediaError: it cannot be decoded, has no pixels, is animated, has a side
    beyond MAX_SIDE_PIXELS or more than MAX_PIXELS."""
    with _opened(data) as image:
        image.load()


def open_rgb(data: bytes, *, side: int | None = None) -> "Image":
    """The pixels of an image file in RGB, upright as EXIF says, the same on every machine; of a
    larger one not more than `side` each way. Grey, palettes and CMYK are converted, transparency is
    left out. MediaError as `check_image`."""
    from PIL import ImageOps

    with _opened(data) as image:
        if side is not None:
            image.draft(None, (side, side))  # a JPEG is decoded small
        found = ImageOps.exif_transpose(image).convert("RGB")
        if side is not None:
            found.thumbnail((side, side))
        return found


def data_url(data: bytes) -> str:
    """An image file as a data URL."""
    kind = next((name for begins, name in _BEGINS.items() if data.startswith(begins)), "tiff")
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


@contextmanager
def _opened(data: bytes) -> "Iterator[Image]":
    """Open an image with a sound header, not decoded yet; errors of Pillow become MediaError."""
    from PIL import Image, UnidentifiedImageError

    if len(data) > MAX_FILE_BYTES:
        raise MediaError(f"the image has {len(data):,} bytes; at most {MAX_FILE_BYTES:,} are read")
    try:
        with warnings.catch_warnings():
            # Its own bound on pixels warns; ours refuses.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(BytesIO(data), formats=FORMATS) as image:
                _check_header(image)
                yield image
    except UnidentifiedImageError as error:
        known = ", ".join(FORMATS)
        raise MediaError(f"the image is empty, damaged, without pixels, or not {known}") from error
    except Image.DecompressionBombError as error:
        raise MediaError(f"the image has more than {MAX_PIXELS:,} pixels") from error
    except (OSError, SyntaxError, ValueError, EOFError, struct.error) as error:
        raise MediaError(f"the image is damaged: {' '.join(str(error).split())}") from error


def _check_header(image: "Image") -> None:
    width, height = image.size
    size = f"{width} x {height} pixels"
    if max(width, height) > MAX_SIDE_PIXELS:
        raise MediaError(f"the image has {size}; a side has at most {MAX_SIDE_PIXELS:,}")
    if width * height > MAX_PIXELS:
        raise MediaError(f"the image has {size}; at most {MAX_PIXELS:,} are decoded")
    # A photo of a telephone (MPO) has a preview, which is no second frame.
    if getattr(image, "is_animated", False) and image.format != "MPO":
        raise MediaError(f"the image is animated ({getattr(image, 'n_frames', 2)} frames)")
    image.getexif().get(_ORIENTATION)  # which `open_rgb` reads: damaged EXIF is found here


def named_image(image: Any) -> Any:
    """Return the bytes or text of an image in a row, out of the object that may hold it."""
    while isinstance(image, dict):
        image = next((image[key] for key in SOURCES if image.get(key) is not None), None)
    return image


def image_bytes(image: Any, base: Path, *, urls: bool = False) -> bytes:
    """The file of an image that a row names.

    Args:
        image: raw bytes; a path, relative to `base`, or a `file:` URL; a data URL; an http URL; or
        an object with one of them under a key of SOURCES: a part of a message, what Hugging Face
        datasets store (`bytes`, `path`). base: the folder of the row's file. urls: whether http
        URLs are fetched.

    MediaError: it cannot be had, or is larger than MAX_FILE_BYTES.
    """
    image = named_image(image)
    if isinstance(image, bytes | bytearray):
        return bytes(image)
    if not isinstance(image, str) or not image:
        raise MediaError(f"no image but {type(image).__name__}: give a path, bytes or a URL")
    scheme = image[:8].partition(":")[0].lower()
    if scheme == "data":
        return _from_data_url(image)
    if scheme in ("http", "https"):
        if not urls:
            raise MediaError(f"image {_shown(image)}: URLs are fetched with task.image_urls = true")
        return _fetched(image)
    try:
        name = unquote(urlparse(image).path) if scheme == "file" else image
    except ValueError as error:
        raise MediaError(f"image {_shown(image)}: {error}") from error
    return _from_file(name, base)


def _from_file(name: str, base: Path) -> bytes:
    path = base / Path(name).expanduser()
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise MediaError(f"image {_shown(str(path))} cannot be read: {why}") from error
    _check_size(len(data), str(path))
    return data


def _from_data_url(url: str) -> bytes:
    head, comma, body = url.partition(",")
    try:
        data = base64.b64decode(body, validate=True) if head.endswith(";base64") else None
    except ValueError as error:  # binascii.Error, or letters beyond ASCII
        raise MediaError(f"image {_shown(url)}: no base64 behind the comma") from error
    if not comma:
        raise MediaError(f"image {_shown(url)}: a data URL has a comma before its data")
    return unquote_to_bytes(body) if data is None else data


def _fetched(url: str) -> bytes:
    import httpx

    data, until = bytearray(), time.monotonic() + URL_TIMEOUT_S
    try:
        with httpx.stream("GET", url, timeout=URL_TIMEOUT_S, follow_redirects=True) as reply:
            reply.raise_for_status()
            for piece in reply.iter_bytes():
                data += piece
                _check_size(len(data), url)
                if time.monotonic() > until:
                    raise httpx.ReadTimeout("it takes too long")
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise MediaError(f"image {_shown(url)} cannot be fetched: {why}") from error
    return bytes(data)


def _check_size(size: int, where: str) -> None:
    if size > MAX_FILE_BYTES:
        raise MediaError(f"image {_shown(where)} has more than {MAX_FILE_BYTES:,} bytes")


def _shown(text: str) -> str:
    """Quoted; a long one without its middle, since a path's end names the file."""
    return repr(text if len(text) <= 160 else f"{text[:77]}...{text[-77:]}")
