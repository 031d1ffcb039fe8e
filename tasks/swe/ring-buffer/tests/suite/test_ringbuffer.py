import unittest

from ringbuffer import RingBuffer


class BufferTest(unittest.TestCase):
    def test_fewer_items_than_its_size(self):
        buffer = RingBuffer(3)
        buffer.append(1)
        buffer.append(2)
        self.assertEqual(list(buffer), [1, 2])

    def test_pop(self):
        buffer = RingBuffer(2)
        for item in (1, 2, 3):
            buffer.append(item)
        self.assertEqual([buffer.pop(), buffer.pop()], [2, 3])

    def test_empty(self):
        with self.assertRaises(IndexError):
            RingBuffer(1).pop()
