import unittest

from eventbus import Bus


class BusTest(unittest.TestCase):
    def setUp(self):
        self.bus, self.seen = Bus(), []

    def test_handlers_are_called_in_their_order(self):
        self.bus.on("a", lambda x: self.seen.append(("first", x)))
        self.bus.on("a", lambda x: self.seen.append(("second", x)))
        self.assertEqual(self.bus.emit("a", 1), 2)
        self.assertEqual(self.seen, [("first", 1), ("second", 1)])

    def test_off(self):
        remove = self.bus.on("a", self.seen.append)
        remove()
        remove()
        self.assertEqual((self.bus.emit("a", 1), self.seen), (0, []))

    def test_an_event_without_handlers(self):
        self.assertEqual(self.bus.emit("none"), 0)
