import unittest

from lrucache import Cache


class CacheTest(unittest.TestCase):
    def test_get(self):
        cache = Cache(2)
        cache.put("a", 1)
        self.assertEqual((cache.get("a"), cache.get("b", 5)), (1, 5))

    def test_the_oldest_entry_goes(self):
        cache = Cache(2)
        for key in "abc":
            cache.put(key, key)
        self.assertEqual([key in cache for key in "abc"], [False, True, True])

    def test_writing_is_using(self):
        cache = Cache(2)
        for key in "abac":
            cache.put(key, key)
        self.assertIn("a", cache)
