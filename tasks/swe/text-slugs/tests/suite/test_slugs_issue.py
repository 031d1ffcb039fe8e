import unittest

from slugs import slugify


class LimitTest(unittest.TestCase):
    def test_no_dash_at_the_end(self):
        self.assertEqual(slugify("one two three", limit=8), "one-two")

    def test_the_limit_holds(self):
        self.assertEqual(slugify("abcdef", limit=3), "abc")
