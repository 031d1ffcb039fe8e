import unittest

from eventbus import Bus


class ChangeTest(unittest.TestCase):
    def setUp(self):
        self.bus, self.seen = Bus(), []

    def test_two_handlers_for_one_event_only(self):
        self.bus.once("a", lambda: self.seen.append(1))
        self.bus.once("a", lambda: self.seen.append(2))
        self.assertEqual(self.bus.emit("a"), 2)
        self.assertEqual(self.bus.emit("a"), 0)
        self.assertEqual(self.seen, [1, 2])

    def test_a_handler_that_adds_one(self):
        self.bus.on("a", lambda: len(self.seen) < 5 and (self.seen.append(1), self.bus.on("a", lambda: None)))
        self.assertEqual(self.bus.emit("a"), 1)
