"""Several target services: who gets what, and who does not belong together."""

import pytest

from kit.client import table_services
from tauscope_client.extract.extracting import extract
from tauscope_client.extract.fleet import REST_S, Fleet
from tauscope_client.extract.layouts import LAYOUTS
from tauscope_client.extract.rate import SilentMeter
from tauscope_client.extract.settings import ExtractSettings
from tauscope_client.references.retries import Retries
from tauscope_client.target import TargetClient
from tauscope_wire.connection import Connection
from tauscope_wire.errors import MismatchError, RequestError, UnreachableError


class Named(TargetClient):
    """The running service under another address."""

    def __init__(self, connection, url, **changed):
        super().__init__(connection)
        self.named, self.changed = url, changed

    @property
    def url(self):
        return self.named

    def info(self):
        found = super().info()
        return found.model_copy(
            update={part: getattr(found, part).model_copy(update=change) for part, change in self.changed.items()}
        )


@pytest.fixture
def connection(services):
    with Connection(services.target_url) as connection:
        yield connection


def test_a_request_goes_where_the_fewest_tokens_are_in_work(connection):
    fleet = Fleet([Named(connection, "a"), Named(connection, "b")])
    with fleet.take(100) as first, fleet.take(10) as second:
        assert {first.url, second.url} == {"a", "b"}
        for _ in range(3):
            with fleet.take(10) as third:
                assert third.url == second.url
        with fleet.take(95), fleet.take(1) as last:
            assert last.url == first.url
    urls = []
    for _ in range(4):
        with fleet.take(1) as client:
            urls.append(client.url)
    assert sorted(urls) == ["a", "a", "b", "b"]


def test_a_service_that_is_gone_is_left_alone_for_a_while(connection):
    now_s = [0.0]
    fleet = Fleet([Named(connection, "a"), Named(connection, "b")], clock=lambda: now_s[0])
    with pytest.raises(UnreachableError), fleet.take(1) as gone:
        raise UnreachableError("planned")
    for _ in range(4):
        with fleet.take(1) as client:
            assert client.url != gone.url
    now_s[0] = REST_S
    urls = set()
    for _ in range(2):
        with fleet.take(1) as client:
            urls.add(client.url)
    assert urls == {"a", "b"}


def test_one_data_set_comes_from_one_model_and_one_way_to_compute(connection):
    first = Named(connection, "a")
    with pytest.raises(MismatchError, match="one data set comes from one model"):
        Fleet([first, Named(connection, "b", model={"revision": "sha256:other"})])
    other = Named(connection, "b", numerics={"linear_attention": "fla"})
    with pytest.raises(MismatchError, match="linear_attention None / 'fla'"):
        Fleet([first, other])
    assert Fleet([first, other], mixed_numerics=True).max_tokens == 400
    for clients in ([], [first, Named(connection, "a")]):
        with pytest.raises(RequestError, match="--target"):
            Fleet(clients)


def test_two_services_share_the_work(run, services, texts, tmp_path, cli):
    with table_services() as other:
        code, _ = cli(
            texts, "--out", tmp_path / "out", "--layers", "1", "--concurrency", "2", "--target", other.target_url
        )
        assert code == 0
        assert services.ledger.count("hidden") + other.ledger.count("hidden") == 4
        assert services.ledger.count("hidden") and other.ledger.count("hidden")


def test_the_others_do_the_work_of_a_service_that_dies(connection, services, texts, tmp_path):
    class Dying(Named):
        def hidden(self, request):
            raise UnreachableError("planned")

    fleet = Fleet([Named(connection, "a"), Dying(connection, "b")])
    settings = ExtractSettings(layers=[1], layout=LAYOUTS["plain"], concurrency=2)
    pauses = []
    retries = Retries(sleep=pauses.append)
    done = extract(texts, tmp_path / "out", settings, fleet=fleet, meter=SilentMeter(), retries=retries)
    assert done.num_finished == 4 and services.ledger.count("hidden") == 4 and pauses
