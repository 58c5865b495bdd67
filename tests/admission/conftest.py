"""Fixtures of the tests of an admission."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.admission.places import Places
from tests.shared.redisserver import needs_server


@pytest.fixture(params=["folder", "memory", pytest.param("redis", marks=needs_server)])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Places]:
    places = Places(request.param, tmp_path)
    yield places
    places.stop()
