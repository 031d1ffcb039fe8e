"""Frames of a byte stream: eight bytes of length (little-endian), then one message body."""

from __future__ import annotations

from collections.abc import Iterator

_HEADER_BYTES = 8
# msgpack's own limit.
_MAX_FRAME_BYTES = 2**32


class InvalidFrame(ValueError):
    """The byte stream does not consist of frames."""


def encode_frame(body: bytes) -> bytes:
    """Return a message body as a frame."""
    return len(body).to_bytes(_HEADER_BYTES, "little") + body


class FrameDecoder:
    """Decoder from a byte stream to message bodies."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the bodies that `data` completes. Raises `InvalidFrame` if a frame is too large."""
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= _HEADER_BYTES:
            begin = start + _HEADER_BYTES
            size = int.from_bytes(buffer[start:begin], "little")
            if size > _MAX_FRAME_BYTES:
                raise InvalidFrame(
                    f"frame of {size} bytes (limit {_MAX_FRAME_BYTES}); is it another program?"
                )
            if len(buffer) - begin < size:
                break
            yield bytes(buffer[begin : begin + size])
            start = begin + size
        del buffer[:start]
