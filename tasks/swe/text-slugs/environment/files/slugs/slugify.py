"""Turns titles into parts of addresses."""

import re
import unicodedata


def slugify(title, limit=60):
    """Return a title in small letters and digits, joined by single dashes, at most `limit` characters."""
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode()
    slug = re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")
    return slug[:limit]


def unique_slug(title, taken):
    """Return a slug that is not in `taken`, with a number from 2 where needed."""
    slug = slugify(title)
    number, found = 1, slug
    while found in taken:
        number += 1
        found = f"{slug}-{number}"
    return found
