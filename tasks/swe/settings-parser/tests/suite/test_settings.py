import unittest

from settings import SettingsError, parse


class ParserTest(unittest.TestCase):
    def test_sections(self):
        self.assertEqual(parse("a = 1\n[x]\nb = yes"), {"": {"a": 1}, "x": {"b": True}})

    def test_comments(self):
        self.assertEqual(parse("# all\na = 1 # one"), {"": {"a": 1}})

    def test_equals_in_a_value(self):
        self.assertEqual(parse("a = b=c"), {"": {"a": "b=c"}})

    def test_an_error_has_the_line(self):
        with self.assertRaisesRegex(SettingsError, "line 2"):
            parse("a = 1\nb")
