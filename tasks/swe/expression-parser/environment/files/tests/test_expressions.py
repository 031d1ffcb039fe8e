import unittest

from expressions import evaluate


class EvaluateTest(unittest.TestCase):
    def test_precedence(self):
        for text in ("1 + 2 * 3", "(1 + 2) * 3", "8 / 4 / 2", "5 - 2 - 1", "2 * 3 ** 2", "-2 ** 2", "--3", "2 * -3"):
            with self.subTest(text):
                self.assertEqual(evaluate(text), eval(text))

    def test_errors(self):
        for text in ("", "1 +", "(1", "1 2", "1 $ 2", ")"):
            with self.subTest(text), self.assertRaises(ValueError):
                evaluate(text)
