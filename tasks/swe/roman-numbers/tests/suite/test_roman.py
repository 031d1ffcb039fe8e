import unittest

from roman import from_roman, to_roman


class RomanTest(unittest.TestCase):
    def test_there_and_back(self):
        for number in range(1, 4000):
            self.assertEqual(from_roman(to_roman(number)), number)

    def test_small_letters(self):
        self.assertEqual(from_roman("mcmxc"), 1990)

    def test_other_letters(self):
        with self.assertRaises(ValueError):
            from_roman("MXZ")
