import unittest

from settings import parse


class QuoteTest(unittest.TestCase):
    def test_a_sign_in_quotes(self):
        self.assertEqual(parse('colour = "#ff0000"'), {"": {"colour": "#ff0000"}})

    def test_a_comment_after_quotes(self):
        self.assertEqual(parse('a = "x#y" # z'), {"": {"a": "x#y"}})
