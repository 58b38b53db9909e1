"""Ends of a transfer as people write them."""

import pytest

from tauscope_client.ship.location import Location, parse_location
from tauscope_wire.errors import RequestError


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("box:/a/b.pt", Location("box", "/a/b.pt")),
        ("me@box.lan:/a b/c", Location("me@box.lan", "/a b/c")),
        ("box:runs/x", Location("box", "runs/x")),
        ("box:~/runs/x", Location("box", "runs/x")),
        ("[::1]:/a", Location("::1", "/a")),
        ("me@[fe80::1]:/a", Location("me@fe80::1", "/a")),
        ("ssh://me@box:2222/a/b%20c", Location("me@box", "/a/b c", 2222)),
        ("/local/a:b", Location(None, "/local/a:b")),
        ("./a:b", None),
        ("../up", None),
    ],
)
def test_ends_are_read_as_scp_reads_them(text: str, location: Location | None) -> None:
    parsed = parse_location(text)
    assert parsed == location if location is not None else parsed.host is None
    assert parsed.host is not None or parsed.path.startswith("/")


@pytest.mark.parametrize(
    "text", ["", "box:", "box:~", "-oProxyCommand=x:/a", "me@-x:/a", "ssh://u:secret@h/a", "a\nb", "ssh://h:99999/a"]
)
def test_what_cannot_be_an_end_is_refused_without_repeating_a_password(text: str) -> None:
    if text.startswith("-o"):
        assert parse_location(text).host is None  # a local file name: never handed to ssh
        return
    with pytest.raises(RequestError) as caught:
        parse_location(text)
    assert "secret" not in str(caught.value)
