"""Where the engines, their models and their reports lie: under `.engines/` in the repository root, ignored by git."""

from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[2]
ENGINES: Final = REPOSITORY / ".engines"
MODELS: Final = ENGINES / "models"
REPORTS: Final = ENGINES / "reports"
LOGS: Final = ENGINES / "logs"
VECTORS: Final = REPOSITORY / "tests" / "vectors" / "engines"

DEMO_MODELS: Final = REPOSITORY / "deploy" / "demo" / "models"
"""The bundled pair, a hybrid."""

PROGRAMS: Final = REPOSITORY / "tests" / "engines" / "programs"
"""Scripts that run in an engine's environment and import nothing of this project."""

SHIMS: Final = REPOSITORY / "tests" / "engines" / "shims"
"""Small modules that an engine needs on a CPU machine, put first on the path of its processes.

They replace what no package ships for a CPU (`sgl_kernel`), declare what a CUDA wheel expects to find (torchvision's
operators), or take pinned memory and CUDA events out of a path that is otherwise free of devices (vLLM's connector).
"""

SMOLLM2: Final = MODELS / "smollm2"
"""SmolLM2-135M-Instruct as safetensors, BF16 as in the release."""

SMOLLM2_GGUF: Final = MODELS / "SmolLM2-135M-Instruct.Q4_1.gguf"
"""The file it is converted from; llama.cpp serves it as it is."""

SMOLLM2_DRAFTER: Final = MODELS / "smollm2-dflash"
"""A small DFlash drafter for SmolLM2, trained by `engines.drafter`."""
