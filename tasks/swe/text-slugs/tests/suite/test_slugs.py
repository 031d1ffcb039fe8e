import unittest

from slugs import slugify, unique_slug


class SlugTest(unittest.TestCase):
    def test_words(self):
        self.assertEqual(slugify("Hello, World!"), "hello-world")

    def test_accents(self):
        self.assertEqual(slugify("Café à Paris"), "cafe-a-paris")

    def test_unique(self):
        self.assertEqual(unique_slug("A b", {"a-b", "a-b-2"}), "a-b-3")
