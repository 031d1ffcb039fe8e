"""The contract of tests/engines/test_contract.py, on a real vLLM."""

from __future__ import annotations

from tests.engines import test_contract

globals().update(
    {name: test for name, test in vars(test_contract).items() if name.startswith("test_")}
)
