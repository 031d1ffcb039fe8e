import datetime
import unittest

from workdays import Calendar
from workdays.holidays import yearly

D = datetime.date


class AddTest(unittest.TestCase):
    def test_backwards(self):
        self.assertEqual(Calendar().add(D(2026, 11, 9), -1), D(2026, 11, 6))
        self.assertEqual(Calendar().add(D(2026, 11, 9), -6), D(2026, 10, 30))

    def test_nothing_from_a_weekend(self):
        calendar = Calendar([yearly(9, 11)])
        self.assertEqual(calendar.add(D(2026, 11, 7), 0), D(2026, 11, 10))
        self.assertEqual(calendar.add(D(2026, 11, 6), 0), D(2026, 11, 6))

    def test_backwards_over_a_holiday(self):
        self.assertEqual(Calendar([yearly(6, 11)]).add(D(2026, 11, 9), -1), D(2026, 11, 5))
