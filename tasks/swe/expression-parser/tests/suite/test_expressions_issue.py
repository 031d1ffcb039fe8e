import unittest

from expressions import evaluate


class PowerTest(unittest.TestCase):
    def test_powers_of_powers(self):
        for text in ("2 ** 3 ** 2", "2 ** 2 ** 3 * 2", "(2 ** 3) ** 2"):
            with self.subTest(text):
                self.assertEqual(evaluate(text), eval(text))

    def test_a_sign_in_the_exponent(self):
        for text in ("2 ** -1", "2 ** -2 ** 2", "4 ** +2"):
            with self.subTest(text):
                self.assertEqual(evaluate(text), eval(text))
