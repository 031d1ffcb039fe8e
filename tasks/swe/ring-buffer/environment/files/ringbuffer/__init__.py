"""A buffer of fixed size."""

from ringbuffer.buffer import RingBuffer

__all__ = ["RingBuffer"]
