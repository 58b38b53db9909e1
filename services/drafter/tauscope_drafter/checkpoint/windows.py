"""Which layers of a block drafter slide, and whether a block row sees later rows."""

from tauscope_drafter.checkpoint.facts import Facts
from tauscope_drafter.checkpoint.options import missing
from tauscope_drafter.spec import Window
from tauscope_wire.errors import CheckpointError

_SLIDING, _FULL = "sliding_attention", "full_attention"


def read_windows(facts: Facts, num_layers: int) -> tuple[tuple[Window, ...], tuple[str, ...]]:
    """One window per layer, and warnings.

    Order of authority for causality: the option, `is_causal`, `dflash_config.causal`, and last the kind of layer
    (sliding layers are causal in the block unless told otherwise).
    """
    own, network, options = facts.own, facts.network, facts.options
    types = _declared_types(facts)
    if options.layer_types is not None:  # on a command line, one word stands for all layers
        types = options.layer_types * (num_layers if len(options.layer_types) == 1 else 1)
    warnings: tuple[str, ...] = ()
    if types is None and network.flag("use_sliding_window"):
        raise missing("layer_types (use_sliding_window is set)", "layer_types", "sliding_attention", facts.origin)
    if types is None:
        types = (_FULL,) * num_layers
        if not facts.has_config:
            warnings = ("layer_types not recorded: full attention in every layer assumed",)
    if len(types) != num_layers:
        raise CheckpointError(f"{facts.origin}: {len(types)} layer_types for {num_layers} layers")
    if unknown := sorted(set(types) - {_SLIDING, _FULL}):
        raise CheckpointError(f"{facts.origin}: layer_types {unknown} are not known ({_FULL}, {_SLIDING})")
    causal = options.causal
    if causal is None:
        causal = own.flag("is_causal")
    if causal is None:
        causal = network.flag("is_causal")  # speculators keeps settings of layers in a section of their own
    if causal is None:
        causal = own.flag("causal")
    if own.flag("use_swa") and _SLIDING not in types:
        size = options.sliding_window or own.integer("swa_window_size")
        if size is None:
            raise missing("swa_window_size", "sliding_window", "2048", facts.origin)
        return (Window(size, bool(causal), per_row=True, in_block=False),) * num_layers, warnings
    if _SLIDING not in types:
        return (Window(None, bool(causal)),) * num_layers, warnings
    size = options.sliding_window or network.integer("sliding_window")
    if size is None:
        raise missing("sliding_window (layers slide)", "sliding_window", "2048", facts.origin)
    if facts.format == "speculators" or own.find("sliding_window_placement") == "block":
        sliding = Window(size, _speculators_causal(facts, causal), per_row=False, in_block=False)
    else:
        sliding = Window(size, causal is not False)
    return tuple(sliding if t == _SLIDING else Window(None, bool(causal)) for t in types), warnings


def _speculators_causal(facts: Facts, causal: bool | None) -> bool:
    non_causal = facts.own.flag("sliding_window_non_causal")
    if non_causal is not None:
        return not non_causal
    return causal is not False


def _declared_types(facts: Facts) -> tuple[str, ...] | None:
    types = facts.network.find("layer_types")
    if types is None:
        return None
    if not isinstance(types, list) or not all(isinstance(t, str) for t in types):
        raise CheckpointError(f"{facts.origin}: layer_types={types!r} is not a list of names")
    return tuple(types)
