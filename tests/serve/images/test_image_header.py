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


def test_a_size_that_decoders_replace_by_another_is_not_taken() -> None:
    png, jpeg = IMAGES["png"], IMAGES["jpeg"]
    chunk = png[8:33]
    assert read_header(png[:8] + chunk + chunk + png[33:]) is None
    at = jpeg.index(b"\xff\xc0")
    frame = jpeg[at : at + 2 + int.from_bytes(jpeg[at + 2 : at + 4], "big")]
    assert read_header(jpeg[:at] + frame + jpeg[at:]) is None


def test_the_first_frame_of_a_gif_may_be_larger_than_its_screen() -> None:
    gif = IMAGES["gif"]
    small = gif[:6] + bytes((1, 0, 1, 0)) + gif[10:]
    assert read_header(small) == ImageHeader("image/gif", 37, 21)
    comment = b"\x21\xfe" + (b"\x02ab" * 3) + b"\x00"
    at = 13 + (3 << (gif[10] & 7) + 1 if gif[10] & 0x80 else 0)
    assert read_header(small[:at] + comment + small[at:]) == ImageHeader("image/gif", 37, 21)


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
