"""The profile `nightly`, which `pytest tests/drawn --hypothesis-profile nightly` takes."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("nightly", print_blob=True)
