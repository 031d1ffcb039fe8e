"""Replayed clients talk to the same gateway as the tests of the serving room."""

from tests.serve.conftest import renderers, site, start

__all__ = ["renderers", "site", "start"]
