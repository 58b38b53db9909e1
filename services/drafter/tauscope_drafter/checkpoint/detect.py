"""Which family and which format: a verdict with its evidence. Ambiguity is an error that lists the choices."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from tauscope_wire.errors import CheckpointError, ErrorCode

# Evidence among canonical tensor names, strongest first.
_FAMILY_TENSORS = (
    ("domino", ("prefix_gru.",)),
    ("dflash2", ("candidate_selector.",)),
    ("dspark", ("markov_head.", "markov_w1.", "confidence_head.", "confidence_proj.")),
    ("peagle", ("mask_hidden",)),
    ("mtp", ("mtp.", "mtp_layers.")),
)
_SPECULATORS = {
    "dflash": "dflash",
    "dspark": "dspark",
    "eagle3": "eagle3",
    "peagle": "peagle",
    "mtp": "mtp",
    "dflash2": "dflash2",
}


class Verdict(NamedTuple):
    """Family and format of a checkpoint, and the facts that decided."""

    family: str
    format: str
    evidence: tuple[str, ...]


def detect(
    names: Mapping[str, tuple[int, ...]],
    config: Mapping[str, Any],
    *,
    origin: str,
    raw_names: tuple[str, ...],
    state_key: str,
    family: str | None,
) -> Verdict:
    """Decide.

    Args:
        names: canonical name -> shape.
        config: the configuration, empty when there is none.
        origin: for messages.
        raw_names: names as the file has them.
        state_key: key under which the weights lay in a pickled file, empty for bare ones.
        family: what the user says; overrides the evidence for the family.

    Raises:
        CheckpointError: no family fits (`checkpoint_unsupported`) or several do (`checkpoint_ambiguous`).
    """
    evidence: list[str] = []
    format_ = _format(config, raw_names, state_key, evidence)
    if family is not None:
        return Verdict(family, format_, ("family given as an option", *evidence))
    candidates: dict[str, str] = {}
    declared = config.get("speculators_model_type")
    if isinstance(declared, str) and declared in _SPECULATORS:
        candidates[_SPECULATORS[declared]] = f"speculators_model_type={declared}"
    for name, prefixes in _FAMILY_TENSORS:
        if hit := next((n for n in names if n.startswith(prefixes)), None):
            candidates[name] = f"tensor {hit}"
    if hit := next((n for n in names if n.endswith(("attention_conv.base_kernel", "mlp_conv.base_kernel"))), None):
        candidates.setdefault("dflash2", f"tensor {hit}")
    if not candidates:
        candidates = _plain(names, evidence)
    if len(candidates) > 1:
        choices = "; ".join(f"family={name} ({why})" for name, why in candidates.items())
        raise CheckpointError(
            f"{origin}: the family is ambiguous, give one of: {choices}", ErrorCode.CHECKPOINT_AMBIGUOUS
        )
    if not candidates:
        shown = ", ".join(list(names)[:6]) or "no tensor"
        raise CheckpointError(
            f"{origin}: looks like no drafter known here (found {shown}, ..); give family=... if it is one",
            ErrorCode.CHECKPOINT_UNSUPPORTED,
        )
    found, why = next(iter(candidates.items()))
    return Verdict(found, format_, (why, *evidence))


def _plain(names: Mapping[str, tuple[int, ...]], evidence: list[str]) -> dict[str, str]:
    query = names.get("layers.0.self_attn.q_proj.weight")
    if "fc.weight" not in names or query is None or len(query) != 2 or len(names["fc.weight"]) != 2:
        return {}
    hidden = names["fc.weight"][0]
    if query[1] == 2 * hidden:
        return {"eagle3": f"layer 0 reads rows of width {query[1]}, twice the hidden size"}
    if "hidden_norm.weight" in names:
        return {"dflash": "fc, hidden_norm and plain layers, no head of another family"}
    evidence.append("no hidden_norm.weight")
    return {}


def _format(config: Mapping[str, Any], raw: tuple[str, ...], state_key: str, evidence: list[str]) -> str:
    """Who wrote the files; decides how names of settings are to be understood."""

    def verdict(name: str, why: str) -> str:
        evidence.append(why)
        return name

    if "speculators_model_type" in config or "transformer_layer_config" in config:
        return verdict("speculators", "speculators_model_type in the configuration")
    if state_key == "draft_state_dict":
        return verdict("specforge", "weights under draft_state_dict")
    if config.get("model_type") == "dflash" or any("context_proj." in n for n in raw):
        return verdict("torchspec", "model_type dflash, or tensors named context_proj")
    if "num_anchors" in config or any(str(a).endswith("DSparkModel") for a in config.get("architectures") or ()):
        return verdict("deepspec", "flat configuration with num_anchors, or architecture ..DSparkModel")
    if any(n.startswith(("dflash_module.", "markov_w1.", "confidence_proj.")) for n in raw):
        return verdict("modelopt", "tensor names of ModelOpt")
    nested = config.get("dflash_config")
    if isinstance(nested, Mapping) and ("use_swa" in nested or "swa_window_size" in nested):
        return verdict("modelopt", "dflash_config.use_swa")
    if any(n.startswith("mtp.") or ".mtp." in n for n in raw):
        return verdict("target", "mtp tensors inside a target checkpoint")
    if state_key:
        return verdict("training-checkpoint", f"weights under {state_key}")
    if isinstance(nested, Mapping):
        return verdict("z-lab", "dflash_config in the configuration")
    if any("midlayer." in n for n in raw) or any("Eagle3" in str(a) for a in config.get("architectures") or ()):
        return verdict("eagle", "tensors named midlayer, or an Eagle3 architecture")
    return verdict("state-dict", "bare weights")
