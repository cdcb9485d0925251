"""Tests; a failed comparison in what they share is explained as it is in their own files."""

import pytest

pytest.register_assert_rewrite("tests.night", "tests.uses")
