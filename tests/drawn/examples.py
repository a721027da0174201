"""How many examples a test draws: few and always the same, or, with the profile `nightly`, many new ones.

`pytest --hypothesis-profile nightly` takes them; `--hypothesis-seed N` draws the same ones again.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

NIGHTLY = "nightly"
settings.register_profile(NIGHTLY, print_blob=True)


def examples(*, ci: int, nightly: int) -> settings:
    """Settings without time limits, since an example may compile a kernel twice."""
    many = settings.get_current_profile_name() == NIGHTLY
    return settings(
        max_examples=nightly if many else ci,
        derandomize=not many,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
