"""A run's images for a browser: re-encoded, small, embedded in the page.

In: a file in the run's folder. Out: a data URL and the image's own size, kept by content. Promise:
no file gets to the browser as it is, and what is wrong with one is a MediaError of one line.
"""

from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import streamlit as st

from headrace.data.media import MediaError, MediaStore, data_url, open_rgb

LARGE, SMALL = 640, 64
"""Pixels of the longer side, on the answer's page and in a list."""
_SHARP = 256
"""Images of up to this many pixels stay lossless; larger ones become JPEG files."""


class EmbeddedImage(NamedTuple):
    """An image in the page, and its pixels there."""

    url: str
    width: int
    height: int


@st.cache_data(max_entries=512, show_spinner=False)
def picture(file: Path, side: int = LARGE) -> EmbeddedImage:
    """An image of a run; MediaError where it is missing or damaged."""
    image = open_rgb(MediaStore(file.parent).read(file.name), side=side)
    drawn = BytesIO()
    image.save(drawn, "PNG" if max(image.size) <= _SHARP else "JPEG", quality=90)
    return EmbeddedImage(data_url(drawn.getvalue()), *image.size)


def thumbnail(file: Path) -> str | None:
    """A small one as a data URL; None where there is none."""
    try:
        return picture(file, SMALL).url
    except MediaError:
        return None
