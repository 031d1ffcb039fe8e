"""Read format and size of an image from its header. Nothing is decompressed, so a decompression bomb does no harm."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

# Segments that state the size.
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Parts of a file before its pixels.
_MAX_SEGMENTS = 4096
_JPEG_SCAN = 0xDA
_GIF_FRAME = 0x2C
_GIF_EXTENSION = 0x21
# Markers without a length.
_JPEG_BARE = frozenset({0x01, *range(0xD0, 0xD9)})


class ImageHeader(NamedTuple):
    """Format and size of an image."""

    media_type: str
    width: int  # pixels
    height: int


def read_header(data: bytes) -> ImageHeader | None:
    """Return the header of a PNG, JPEG, GIF or WebP image; None for other or cut bytes."""
    reader = next((read for start, read in _READERS if data.startswith(start)), None)
    try:
        return None if reader is None else reader(data)
    except (struct.error, IndexError):
        return None


def _read_png(data: bytes) -> ImageHeader | None:
    """Read the size; None if it is stated again before the pixels, of which decoders take the last."""
    width, height = struct.unpack_from(">II", data, 16)
    at = 8
    for number in range(_MAX_SEGMENTS):
        (length,) = struct.unpack_from(">I", data, at)
        kind = data[at + 4 : at + 8]
        if (kind == b"IHDR") != (number == 0):
            return None
        if kind == b"IDAT":
            return ImageHeader("image/png", width, height)
        at += 12 + length
    return None


def _read_gif(data: bytes) -> ImageHeader | None:
    """Read the size that holds the screen and the first frame, which decoders enlarge the screen for."""
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    if data[4:6] not in (b"7a", b"9a"):
        return None
    at = 13 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
    for _ in range(_MAX_SEGMENTS):
        if data[at] == _GIF_FRAME:
            left, top, own_width, own_height = struct.unpack_from("<HHHH", data, at + 1)
            return ImageHeader(
                "image/gif", max(width, left + own_width), max(height, top + own_height)
            )
        if data[at] != _GIF_EXTENSION:
            return None
        at = _skip_gif_blocks(data, at + 2)
    return None


def _skip_gif_blocks(data: bytes, at: int) -> int:
    """Return where the blocks of an extension end: each begins with its length, and one of length 0 is the last."""
    for _ in range(_MAX_SEGMENTS):
        length = data[at]
        at += 1 + length
        if length == 0:
            return at
    raise IndexError("too many blocks")


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
    """Read the size; None if it is stated again before the pixels, of which decoders take the last."""
    at = 2
    header = None
    for _ in range(_MAX_SEGMENTS):
        marker = data[at + 1] if data[at] == 0xFF else 0
        # A fill byte.
        if marker == 0xFF:
            at += 1
        elif marker in _JPEG_BARE:
            at += 2
        elif marker in _JPEG_FRAMES:
            if header is not None:
                return None
            height, width = struct.unpack_from(">HH", data, at + 5)
            header = ImageHeader("image/jpeg", width, height)
            at += 2 + int(struct.unpack_from(">H", data, at + 2)[0])
        elif marker == _JPEG_SCAN:
            return header
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
