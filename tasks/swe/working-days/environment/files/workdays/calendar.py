"""Counts and adds working days: Monday to Friday without holidays."""

import datetime

_DAY = datetime.timedelta(days=1)


class Calendar:
    """`holidays`: functions from a year to a date or None."""

    def __init__(self, holidays=()):
        self._holidays = tuple(holidays)

    def is_working(self, date):
        """Return whether a date is a working day."""
        return date.weekday() < 5 and all(holiday(date.year) != date for holiday in self._holidays)

    def count(self, first, last):
        """Return the number of working days from `first` to `last`, both included; negative if `last` is earlier."""
        if last < first:
            return -self.count(last, first)
        days = (last - first).days + 1
        return sum(self.is_working(first + number * _DAY) for number in range(days))

    def add(self, date, days):
        """Return the date `days` working days after `date`, or before it for a negative number.

        With 0, return the date itself if it is a working day, else the next working day.
        """
        step = _DAY
        left = days
        if left < 0:
            step, left = -_DAY, left + 1
        while left:
            date += step
            left -= self.is_working(date)
        return date
