import unittest

from lrucache import Cache


class UseTest(unittest.TestCase):
    def test_reading_is_using(self):
        cache = Cache(2)
        cache.put("a", 1)
        cache.put("b", 2)
        cache.get("a")
        cache.put("c", 3)
        self.assertEqual([key in cache for key in "abc"], [True, False, True])

    def test_looking_is_not(self):
        cache = Cache(2)
        cache.put("a", 1)
        cache.put("b", 2)
        self.assertIn("a", cache)
        cache.put("c", 3)
        self.assertNotIn("a", cache)
