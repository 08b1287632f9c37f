"""Who is at this machine, and who only pretends."""

import pytest

from headway.errors import Forbidden
from headway.server.auth.local import check_local, is_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost", "LOCALHOST"])
def test_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "", "127.1.evil.org"])
def test_not_this_machine(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "127.0.0.1:8000"},
        {"host": "localhost"},
        {"host": "[::1]:8000"},
        {"host": "localhost:8000", "origin": "http://localhost:8000"},
        {"host": "localhost:8000", "sec-fetch-site": "same-origin"},
        {"host": "localhost:8000", "sec-fetch-site": "none"},
    ],
)
def test_somebody_at_this_machine_may(headers: dict[str, str]) -> None:
    check_local(headers)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": ""},
        {"host": "rebound.example.org:8000"},  # points to 127.0.0.1 by now
        {"host": "localhost.example.org"},
        {"host": "localhost:8000", "origin": "https://example.org"},
        {"host": "localhost:8000", "origin": "http://localhost:3000"},
        {"host": "localhost:8000", "origin": "null"},
        {"host": "localhost:8000", "sec-fetch-site": "cross-site"},
        {"host": "localhost:8000", "sec-fetch-site": "same-site"},
        {"host": "127.0.0.1:8000", "x-forwarded-for": "10.0.0.7"},
        {"host": "127.0.0.1:8000", "forwarded": "for=10.0.0.7"},
        {"host": "[::1"},
    ],
)
def test_a_web_page_a_proxy_and_a_wrong_name_may_not(headers: dict[str, str]) -> None:
    with pytest.raises(Forbidden):
        check_local(headers)
