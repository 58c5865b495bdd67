"""The clock that everything here uses. Tests and simulations put another one in its place."""

from __future__ import annotations

import time

monotonic = time.monotonic
"""Call it as ``clock.monotonic()``: a name that is imported from here keeps the old one."""
