"""Format and size of images from their first bytes; Pillow writes them, and is the reference."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from openclaw_rl.serve.images.image_header import ImageHeader, read_header


def encoded(form: str, **options: object) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (37, 21), (1, 2, 3)).save(out, form, **options)
    return out.getvalue()


IMAGES = {
    "png": encoded("PNG"),
    "jpeg": encoded("JPEG"),
    "progressive jpeg": encoded("JPEG", progressive=True, exif=b"Exif\0\0" + bytes(60_000)),
    "gif": encoded("GIF"),
    "webp": encoded("WEBP"),
    "lossless webp": encoded("WEBP", lossless=True),
    "extended webp": encoded("WEBP", exif=b"Exif\0\0" + bytes(99)),
}


@pytest.mark.parametrize("name", IMAGES)
def test_the_size_is_that_of_the_image(name: str) -> None:
    assert read_header(IMAGES[name]) == ImageHeader(f"image/{name.split()[-1]}", 37, 21)


@pytest.mark.parametrize("name", IMAGES)
def test_cut_bytes_are_no_image(name: str) -> None:
    for length in range(10):
        assert read_header(IMAGES[name][:length]) is None


def test_other_bytes_are_no_image() -> None:
    jpeg = b"\xff\xd8"
    others = (
        b"",
        b"%PDF-1.7",
        b"<svg/>",
        encoded("BMP"),
        jpeg + b"\xff\xe0\0\0" * 9,
        jpeg + b"\xff" * 2**20,
        jpeg + b"\0" * 9,
    )
    for data in others:
        assert read_header(data) is None
