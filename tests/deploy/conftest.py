"""Both services with tiny models, as applications that a test serves."""

import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from fastapi import FastAPI

from kit import drafters
from kit.models import tiny_qwen3
from kit.serve import SMALL_LIMITS
from tauscope_drafter.app import DrafterService
from tauscope_drafter.app import create_app as create_drafter
from tauscope_drafter.checkpoint.options import LoadOptions
from tauscope_drafter.engine import Engine
from tauscope_drafter.loading import open_place
from tauscope_drafter.states import StatesSource
from tauscope_serving.settings import ServingSettings
from tauscope_target.app import create_app as create_target
from tauscope_target.engine import TorchEngine
from tauscope_target.settings import TargetSettings
from tauscope_target.startup import EngineSettings, start_engine
from tauscope_target.tokens import load_tokens

sys.path.append(str(Path(__file__).parents[2] / "deploy" / "ray"))  # its modules are found by name, as a replica does


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_qwen3(tmp_path_factory.mktemp("target") / "model")


@pytest.fixture(scope="session")
def target_engine(target_folder: Path) -> TorchEngine:
    return start_engine(EngineSettings(target_folder, "cpu"))


@pytest.fixture
def target_app(target_folder: Path, target_engine: TorchEngine) -> FastAPI:
    settings = TargetSettings(serving=ServingSettings(limits=SMALL_LIMITS), store_bytes=1 << 24)
    return create_target(target_engine, load_tokens(target_folder), settings)


@pytest.fixture(scope="session")
def drafter_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root: Path = tmp_path_factory.mktemp("drafter")
    drafters.write_folder(root / "good", drafters.dflash_config(), drafters.dflash_tensors())
    return root


@pytest.fixture(scope="session")
def drafter_engine(drafter_root: Path) -> Engine:
    engine = Engine(open_place(torch.device("cpu"), torch.float32, drafters.write_target(drafter_root / "target")))
    engine.load("good", drafter_root / "good", LoadOptions(), roots=None)
    return engine


@pytest.fixture
def drafter_app(drafter_root: Path, drafter_engine: Engine) -> FastAPI:
    return create_drafter(
        DrafterService(
            engine=drafter_engine,
            states=StatesSource(None),
            limits=SMALL_LIMITS,
            version=version("tauscope"),
            roots=(drafter_root,),
        )
    )
