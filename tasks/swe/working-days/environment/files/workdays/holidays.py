"""Holidays that return every year."""

import datetime


def yearly(day, month):
    """Return a function from a year to a date in it; None in a year without that day."""

    def in_year(year):
        try:
            return datetime.date(year, month, day)
        except ValueError:
            return None

    return in_year
