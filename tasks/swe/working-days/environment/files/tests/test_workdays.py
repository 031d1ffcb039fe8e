import datetime
import unittest

from workdays import Calendar
from workdays.holidays import yearly

D = datetime.date


class CalendarTest(unittest.TestCase):
    def test_weekends_and_holidays(self):
        calendar = Calendar([yearly(1, 5), yearly(29, 2)])
        self.assertFalse(calendar.is_working(D(2026, 5, 1)))
        self.assertFalse(calendar.is_working(D(2026, 5, 2)))
        self.assertTrue(calendar.is_working(D(2026, 5, 4)))

    def test_count(self):
        self.assertEqual(Calendar().count(D(2026, 11, 2), D(2026, 11, 13)), 10)
        self.assertEqual(Calendar().count(D(2026, 11, 13), D(2026, 11, 2)), -10)

    def test_add(self):
        self.assertEqual(Calendar().add(D(2026, 11, 6), 1), D(2026, 11, 9))
        self.assertEqual(Calendar().add(D(2026, 11, 2), 5), D(2026, 11, 9))
