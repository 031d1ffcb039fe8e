"""Replayed clients talk to the same gateway as the tests of the serve stage."""

from tests.serve.conftest import empty_store, renderers, site, start

__all__ = ["empty_store", "renderers", "site", "start"]
