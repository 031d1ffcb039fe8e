import unittest

from roman import from_roman


class WrongTest(unittest.TestCase):
    def test_wrong_spellings(self):
        for text in ("IIII", "VV", "IXI", "CMD", "XCX", "MMMM"):
            with self.subTest(text), self.assertRaises(ValueError):
                from_roman(text)

    def test_nothing(self):
        with self.assertRaises(ValueError):
            from_roman("")
