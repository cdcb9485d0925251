"""Tests; pytest explains a failed assertion in these shared modules as it does in test files."""

import pytest

pytest.register_assert_rewrite("tests.night")
