"""A service whose compute thread is not there says so; what else makes one not ready is in `test_faults`."""

from typing import Any

import httpx
import pytest

from kit.serve import running


@pytest.mark.parametrize("which", ["target_app", "drafter_app"])
def test_a_service_without_its_compute_thread_is_not_ready(which: str, request: pytest.FixtureRequest) -> None:
    app: Any = request.getfixturevalue(which)
    assert any("the compute thread" in reason for reason in app.state.not_ready())
    with running(app) as url:
        assert httpx.get(f"{url}/readyz").status_code == 200
        assert not app.state.not_ready()
    assert any("the compute thread" in reason for reason in app.state.not_ready())
