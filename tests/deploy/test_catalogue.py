"""Many drafters on few places, with the real drafter engine and real checkpoints."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from catalogue import Catalogue

from kit import drafters
from tauscope_drafter.checkpoint.options import LoadOptions
from tauscope_drafter.engine import Engine
from tauscope_drafter.loading import open_place
from tauscope_wire.errors import NotFoundError, PermissionDeniedError

NAMES = ("a", "b", "c")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("catalogue")
    for seed, name in enumerate(NAMES):
        drafters.write_folder(folder / name, drafters.dflash_config(), drafters.dflash_tensors(seed=seed))
    drafters.write_target(folder / "target")
    return folder


@pytest.fixture
def catalogue(root: Path) -> Catalogue:
    engine = Engine(open_place(torch.device("cpu"), torch.float32, root / "target"))
    return Catalogue(engine, {name: (root / name, LoadOptions()) for name in NAMES}, max_loaded=2)


def test_every_drafter_has_its_card_and_no_more_than_the_places_are_held(catalogue: Catalogue) -> None:
    assert [card.name for card in catalogue.cards()] == list(NAMES)
    assert len({card.sha256 for card in catalogue.cards()}) == 3
    assert catalogue.loaded() == ["b", "c"]


def test_a_drafter_that_is_asked_for_is_loaded_in_place_of_the_one_that_waited_longest(catalogue: Catalogue) -> None:
    catalogue.lease("b")  # now "c" has waited longest
    lease = catalogue.lease("a")
    assert catalogue.loaded() == ["b", "a"]
    assert lease.card == catalogue.cards()[0]
    assert catalogue.num_loads == 4
    catalogue.lease("a")
    assert catalogue.num_loads == 4


def test_callers_of_all_drafters_at_once_get_the_one_they_asked_for(catalogue: Catalogue) -> None:
    together = threading.Barrier(6)

    def ask(number: int) -> bool:
        together.wait(60)
        return all(catalogue.lease(name).card.name == name for name in (NAMES[number % 3], NAMES[(number + 1) % 3]))

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(ask, range(6)))
    assert len(catalogue.loaded()) == 2


def test_the_catalogue_is_that_of_the_configuration(catalogue: Catalogue) -> None:
    with pytest.raises(NotFoundError, match="'nothing' is not here; there are: a, b, c"):
        catalogue.lease("nothing")
    with pytest.raises(PermissionDeniedError, match="takes no drafters at run time"):
        catalogue.load("d", Path("/nowhere"))
    with pytest.raises(PermissionDeniedError, match="gives no drafter away"):
        catalogue.unload("a")
