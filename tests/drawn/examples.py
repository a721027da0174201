"""How many examples a test draws: few and always the same, or, with the profile `nightly`, many new ones."""

from __future__ import annotations

from hypothesis import HealthCheck, settings


def examples(*, ci: int, nightly: int) -> settings:
    """Settings without time limits, since an example may compile a kernel twice."""
    many = settings.default is settings.get_profile("nightly")
    return settings(
        max_examples=nightly if many else ci,
        derandomize=not many,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
