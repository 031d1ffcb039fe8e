"""Read format and size of an image from its header. Nothing is decompressed, so a decompression bomb does no harm."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # segments that state the size
_MAX_SEGMENTS = 4096  # of a JPEG, before the one that states the size
_JPEG_BARE = frozenset({0x01, *range(0xD0, 0xD9)})  # markers without a length


class ImageHeader(NamedTuple):
    """Format and size of an image."""

    media_type: str
    width: int  # pixels
    height: int


def read_header(data: bytes) -> ImageHeader | None:
    """Return the header of a PNG, JPEG, GIF or WebP image; None for other or cut bytes."""
    found = next((read for start, read in _READERS if data.startswith(start)), None)
    try:
        return None if found is None else found(data)
    except (struct.error, IndexError):
        return None


def _read_png(data: bytes) -> ImageHeader | None:
    width, height = struct.unpack_from(">II", data, 16)
    return ImageHeader("image/png", width, height) if data[12:16] == b"IHDR" else None


def _read_gif(data: bytes) -> ImageHeader | None:
    width, height = struct.unpack_from("<HH", data, 6)
    return ImageHeader("image/gif", width, height) if data[4:6] in (b"7a", b"9a") else None


def _read_webp(data: bytes) -> ImageHeader | None:
    kind = data[8:16]
    if kind == b"WEBPVP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return ImageHeader("image/webp", width & 0x3FFF, height & 0x3FFF)
    if kind == b"WEBPVP8L":
        (packed,) = struct.unpack_from("<I", data, 21)
        return ImageHeader("image/webp", (packed & 0x3FFF) + 1, (packed >> 14 & 0x3FFF) + 1)
    if kind == b"WEBPVP8X":
        low, high = struct.unpack_from("<IH", data, 24)
        return ImageHeader("image/webp", (low & 0xFFFFFF) + 1, (low >> 24 | high << 8) + 1)
    return None


def _read_jpeg(data: bytes) -> ImageHeader | None:
    at = 2
    for _ in range(_MAX_SEGMENTS):
        marker = data[at + 1] if data[at] == 0xFF else 0
        if marker == 0xFF:  # a fill byte
            at += 1
        elif marker in _JPEG_BARE:
            at += 2
        elif marker in _JPEG_FRAMES:
            height, width = struct.unpack_from(">HH", data, at + 5)
            return ImageHeader("image/jpeg", width, height)
        elif marker == 0:
            return None
        else:
            at += 2 + int(struct.unpack_from(">H", data, at + 2)[0])
    return None


_READERS: tuple[tuple[bytes, Callable[[bytes], ImageHeader | None]], ...] = (
    (b"\x89PNG\r\n\x1a\n", _read_png),
    (b"\xff\xd8", _read_jpeg),
    (b"GIF8", _read_gif),
    (b"RIFF", _read_webp),
)
