"""run_watched: a result comes back, an error and a hang fail the test by name."""

from __future__ import annotations

import pytest

from tests.gpu.watched import run_watched


def test_the_result_comes_back() -> None:
    assert run_watched("json:dumps", seconds=60, arguments={"obj": [1, 2]}) == "[1, 2]"


def test_an_error_shows_the_end_of_the_output() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"json:loads ends with 1\n(.|\n)*JSONDecodeError"):
        run_watched("json:loads", seconds=60, arguments={"s": "{"})


def test_a_hang_is_a_failure_with_the_functions_name() -> None:
    with pytest.raises(pytest.fail.Exception, match="signal:sigwait hangs"):
        run_watched("signal:sigwait", seconds=1, arguments={"sigset": []})
