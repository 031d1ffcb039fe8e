import unittest

from ringbuffer import RingBuffer


class OrderTest(unittest.TestCase):
    def test_after_it_was_full(self):
        buffer = RingBuffer(3)
        for item in range(5):
            buffer.append(item)
        self.assertEqual(list(buffer), [2, 3, 4])

    def test_after_a_pop(self):
        buffer = RingBuffer(3)
        for item in range(3):
            buffer.append(item)
        buffer.pop()
        self.assertEqual(list(buffer), [1, 2])
