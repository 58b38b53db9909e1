"""Requests and JSON answers of both services: frozen pydantic models, checked on both sides.

Tensor answers (`/hidden_states`, `/draft_block`) are written and read by `writer` and `reader`; the models here are
their small parts. Unknown fields of a request are refused (a typing error must not change a result in silence); unknown
fields of an answer are ignored, so that a newer service can be read.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tauscope_wire.dtypes import WireDtype
from tauscope_wire.layers import Convention

HIDDEN_SCHEMA = "tauscope.hidden/1"
DRAFT_SCHEMA = "tauscope.draft/1"
ACCEPTANCE_SCHEMA = "tauscope.acceptance/1"

Role = Literal["system", "user", "assistant", "tool", "developer"]


class Request(BaseModel):
    """Base of what a client sends."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Answer(BaseModel):
    """Base of what a service returns."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="null", protected_namespaces=())


class Message(Request):
    """One turn of a conversation, as chat templates take it."""

    role: Role
    content: str


TokenIds = list[Annotated[int, Field(ge=0, strict=True)]]


# --- what describes a service ---------------------------------------------------------------------------------------


class ModelInfo(Answer):
    """The target model; part of every hidden-states answer."""

    id: str
    revision: str
    config_sha256: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    stop_token_ids: list[int]


class Numerics(Answer):
    """Fingerprint of the arithmetic: two answers with equal fingerprints were computed by the same kernels.

    Attributes:
        revision: revision of the model's weights (`sha256:...` over the safetensors headers and sizes, or a hub hash).
        compute_dtype: dtype of activations and matrix products.
        weights_dtype: dtype of the weights as held.
        quantization: name of the checkpoint's quantisation, or None.
        device: `cpu` or `cuda`; `device_name` is the hardware's own name.
        attention: what really ran for full attention: `sdpa`, `eager`, ...
        weights_mode: `resident`, `streamed` or `cpu`.
        linear_attention: what really ran for gated delta layers: `fla`, `torch-reference`, or None without such layers.
        convolution: what really ran for their short convolution: `causal-conv1d`, `fla`, `torch`, or None.
        reference_kernels: True when a hybrid model runs on the slow reference functions.
        kernel_configs: pinned kernel configurations by kernel name.
        options: named faster paths that are switched on.
    """

    revision: str
    compute_dtype: str
    weights_dtype: str
    quantization: str | None = None
    device: str
    device_name: str = ""
    torch: str
    transformers: str
    fla: str | None = None
    attention: str
    weights_mode: str
    linear_attention: str | None = None
    convolution: str | None = None
    reference_kernels: bool = False
    kernel_configs: dict[str, str] = Field(default_factory=dict)
    options: list[str] = Field(default_factory=list)


class SelfTest(Answer):
    """One start-up self-test: `status` is `passed`, `failed` or `not_run`; `detail` says why, with numbers."""

    name: str
    status: Literal["passed", "failed", "not_run"]
    detail: str = ""


class Limits(Answer):
    """Bounds of a service; a request over one of them gets 413 with the bound's name."""

    max_body_bytes: int
    max_tokens: int
    max_layers: int = 0
    max_answer_bytes: int = 0
    max_queued: int
    max_new_tokens: int = 0
    max_anchors: int = 0
    max_top_k: int = 0
    default_deadline_s: float
    max_deadline_s: float


class TargetInfo(Answer):
    """`GET /info` of the target service.

    Attributes:
        passes: `pass_tokens`, the largest pass, `max_requests`, the most requests that share one, and `longest_tokens`,
            the longest prompt that fits into memory (None: memory does not bound it).
    """

    service: Literal["target"] = "target"
    version: str
    model: ModelInfo
    architecture: str
    layer_types: list[str]
    numerics: Numerics
    mode: str
    mode_cannot: list[str]
    limits: Limits
    self_tests: list[SelfTest]
    deepest_layer: int
    dtypes: list[WireDtype]
    chat_template: bool
    store: dict[str, Any] = Field(default_factory=dict)
    noise_floor: dict[str, Any] | None = None
    passes: dict[str, int | None] = Field(default_factory=dict)


class DrafterCard(Answer):
    """One loaded drafter.

    Attributes:
        windows: what each layer of a block drafter sees (`size` None: everything).
        rows_depend_on_drafts: rows read the drafts before them (see `DraftRequest.labels`), whatever the layout.
    """

    name: str
    family: str
    format: str
    block_size: int
    layout: Literal["fill-in", "anchor-first", "sequential"]
    drafts: int
    taps: list[int]
    mask_token_id: int | None
    hidden_size: int
    target_hidden_size: int
    vocab_size: int
    sha256: str
    path: str
    num_parameters: int
    memory_bytes: int
    rope: dict[str, Any] = Field(default_factory=dict)
    windows: list[dict[str, Any]] = Field(default_factory=list)
    rows_depend_on_drafts: bool = False
    from_target: list[str] = Field(default_factory=list)
    training_numerics: dict[str, Any] | None = None
    warnings: list[str] = Field(default_factory=list)


class DrafterServiceInfo(Answer):
    """`GET /info` of the drafter service."""

    service: Literal["drafter"] = "drafter"
    version: str
    drafters: list[DrafterCard]
    numerics: Numerics
    limits: Limits
    target_url: str | None
    target_model: ModelInfo | None = None
    families: list[str]


# --- target service ---------------------------------------------------------------------------------------------------


class LogitsRequest(Request):
    """Summary of the target's own distribution per position; needs the head.

    Attributes:
        top_k: how many ids and log-probs per position (0: none).
        next_token: also the log-prob of the token that follows in the request.
    """

    top_k: Annotated[int, Field(ge=0, le=1024)] = 0
    next_token: bool = True


class Prompt(Request):
    """Exactly one of `token_ids`, `text`, `messages`."""

    token_ids: TokenIds | None = None
    text: str | None = None
    messages: list[Message] | None = None
    template_kwargs: dict[str, Any] = Field(default_factory=dict)
    add_generation_prompt: bool = True

    @model_validator(mode="after")
    def _exactly_one(self) -> "Prompt":
        given = [n for n in ("token_ids", "text", "messages") if getattr(self, n) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of token_ids, text, messages; got {given or 'none'}")
        return self


class HiddenRequest(Prompt):
    """`POST /hidden_states`.

    Attributes:
        layers: ids in `convention`, in the order the planes come back.
        final_norm: append the plane `final_norm`.
        positions: half-open range [start, stop) of positions, `last`, or None for all.
        dtype: element type of the answer; `float32` only where the service computes in it.
        logits: ask for a summary of the target's distribution at the same positions.
        return_: `inline`, `handle` or `both`; spelled `return` on the wire.
        deadline_s: give up after this long (504).
        shared: whether other keys may read the handle.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    layers: list[int] = Field(default_factory=list)
    convention: Convention = "output"
    final_norm: bool = False
    positions: tuple[int, int] | Literal["last"] | None = None
    dtype: WireDtype = "bfloat16"
    logits: LogitsRequest | None = None
    return_: Literal["inline", "handle", "both"] = Field(default="inline", alias="return")
    deadline_s: Annotated[float, Field(gt=0)] | None = None
    shared: bool = False


class TokenizeRequest(Prompt):
    """`POST /tokenize`: text or messages to ids; `token_ids` are checked against the vocabulary."""


class TokenizeAnswer(Answer):
    """Ids of the rendered prompt."""

    token_ids: list[int]
    num_tokens: int


class DetokenizeRequest(Request):
    """`POST /detokenize`: ids to text; special tokens stay visible unless skipped."""

    token_ids: TokenIds
    skip_special_tokens: bool = False


class DetokenizeAnswer(Answer):
    """The text, and for each id its own piece."""

    text: str
    pieces: list[str]


class GenerateRequest(Prompt):
    """`POST /generate`: the embedded reference.

    Attributes:
        max_new_tokens: length limit, in tokens.
        temperature: 0 is greedy; above 0 samples with `seed`.
        stop_token_ids: in place of the model's own stop ids.
        tail_tokens: after the end, generate this many further tokens; they come back apart, as `tail_token_ids`
            (what an unclipped tau needs).
    """

    max_new_tokens: Annotated[int, Field(ge=1)] = 128
    temperature: Annotated[float, Field(ge=0)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    seed: int = 0
    stop_token_ids: list[int] | None = None
    tail_tokens: Annotated[int, Field(ge=0, le=256)] = 0
    deadline_s: Annotated[float, Field(gt=0)] | None = None


class GenerateAnswer(Answer):
    """Generated ids (a stop id that ended the text is included) and why it ended."""

    prompt_token_ids: list[int]
    token_ids: list[int]
    text: str
    tail_token_ids: list[int] = Field(default_factory=list)
    finish_reason: Literal["stop", "length"]
    numerics: Numerics
    timing_ms: dict[str, float] = Field(default_factory=dict)


class HiddenReceipt(Answer):
    """JSON answer of `POST /hidden_states` with `return: handle` and without `logits`: where the states are."""

    schema_: str = Field(default=HIDDEN_SCHEMA, alias="schema")
    request_id: str
    model: ModelInfo
    numerics: Numerics
    requested: dict[str, Any]
    planes: list[int | str]
    dtype: WireDtype
    positions: tuple[int, int]
    shape: tuple[int, int, int]
    num_tokens: int
    handle: str
    digest: str
    cached: bool = False
    timing_ms: dict[str, float] = Field(default_factory=dict)

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True, protected_namespaces=())


class HiddenFile(Answer):
    """`GET /hidden_states/{handle}/file`: stored states as a file that a reader on the same machine maps.

    Attributes:
        handle: as asked for.
        model, numerics: as in every answer with states.
        planes: names in the order of the data.
        dtype: element type.
        positions: half-open range that the file covers.
        shape: [P, n, H].
        num_tokens: length of the whole sequence, whose ids are in the file too.
        digest: xxh3_128 over the row-major states.
        path: absolute path on the machine of the service.
        nbytes: size of the file.
        offset: where the states begin in it.
        lease_s: eviction leaves the file for this long; open it at once.
    """

    handle: str
    model: ModelInfo
    numerics: Numerics
    planes: list[int | str]
    dtype: WireDtype
    positions: tuple[int, int]
    shape: tuple[int, int, int]
    num_tokens: int
    digest: str
    path: str
    nbytes: int
    offset: int
    lease_s: float


# --- drafter service --------------------------------------------------------------------------------------------------


class HiddenByHandle(Request):
    """Context by handle: the drafter service reads it from the target service it is configured with."""

    handle: str


class HiddenInline(Request):
    """Context inline (msgpack only): planes as the drafter lists its taps, row-major [P, T, H], little-endian.

    `num_tokens` rows per plane cover positions 0..num_tokens-1.
    """

    inline: bytes
    dtype: WireDtype


Place = Annotated[int, Field(ge=0)]


class DraftConditions(Request):
    """Deviations from what a drafter declares, for diagnosis (`tauscope probe`); a field left out means as declared.

    Changes of the states apply in this order: planes by `taps`, noise, swaps, means, zeros, norms. Places count the
    drafter's list of taps from 0.

    Attributes:
        taps: canonical ids of the planes read in place of the declared ones, as many.
        context_shift: -1 ends the context one position earlier, +1 lets it include the anchor's own state.
        layout: read the block this way.
        block_size: masks are appended or left out until the block has this size, the anchor slot included.
        rope_theta: base of the drafter's rotary embedding.
        plain_rope: leave the declared scaling (yarn, linear, llama3) of the rotary embedding out.
        sliding_window: window of the layers that slide, or of all layers where none does; 0 is full attention.
        causal: whether a row of the block sees only the rows up to itself, in every layer.
        noise: standard deviation of Gaussian noise on every state, relative to the rms of its row.
        noise_seed: of that noise; the same seed gives the same noise at the same position and place.
        swap_taps: pairs of places whose planes change places.
        mean_taps: places whose rows become the mean over the positions of the context.
        zero_taps: places whose rows become zero.
        state_norm: `rms` scales every row of every plane to rms 1; `final_norm` applies the target's final norm to the
            plane of the deepest layer.
    """

    taps: Annotated[list[Annotated[int, Field(ge=-1)]], Field(min_length=1, max_length=256)] | None = None
    context_shift: Annotated[int, Field(ge=-1, le=1)] = 0
    layout: Literal["fill-in", "anchor-first"] | None = None
    block_size: Annotated[int, Field(ge=2, le=256)] | None = None
    rope_theta: Annotated[float, Field(gt=1)] | None = None
    plain_rope: bool = False
    sliding_window: Annotated[int, Field(ge=0)] | None = None
    causal: bool | None = None
    noise: Annotated[float, Field(ge=0, le=10)] = 0.0
    noise_seed: Annotated[int, Field(ge=0, lt=1 << 32)] = 0
    swap_taps: Annotated[list[tuple[Place, Place]], Field(max_length=256)] = Field(default_factory=list)
    mean_taps: Annotated[list[Place], Field(max_length=256)] = Field(default_factory=list)
    zero_taps: Annotated[list[Place], Field(max_length=256)] = Field(default_factory=list)
    state_norm: Literal["rms", "final_norm"] | None = None

    def in_force(self) -> dict[str, Any]:
        """JSON-ready: the fields that deviate; empty when everything is as declared."""
        return self.model_dump(mode="json", exclude_defaults=True)


class DraftRequest(Request):
    """`POST /draft_block`.

    Attributes:
        drafter: name of a loaded drafter.
        hidden: context states, by handle or inline.
        token_ids: the whole sequence, prompt and response; int32 ids.
        response_start: position of the first response token.
        anchors: `response` (every position from response_start to the last but one) or explicit ascending positions.
        top_k: ids and log-probs per row, sorted by (logit descending, id ascending).
        labels: sequential heads take the labels (next tokens of the sequence) as previous tokens instead of their own
            drafts.
        conditions: draft under these instead of what the drafter declares; the answer says so.
    """

    drafter: str
    hidden: HiddenByHandle | HiddenInline
    token_ids: TokenIds
    response_start: Annotated[int, Field(ge=1)]
    anchors: Literal["response"] | list[Annotated[int, Field(ge=1)]] = "response"
    top_k: Annotated[int, Field(ge=1, le=1024)] = 8
    labels: bool = False
    conditions: DraftConditions | None = None
    deadline_s: Annotated[float, Field(gt=0)] | None = None


class AcceptanceRequest(Request):
    """`POST /expected_acceptance`: what sampling would accept, computed from both distributions.

    The answer is `tensors.AcceptanceAnswer`, a tensor body.

    Attributes:
        drafter: name of a loaded drafter.
        hidden: context states by handle; the handle must hold the plane `final_norm` as well.
        token_ids: the whole sequence; the expectation is along this text.
        response_start: position of the first response token.
        anchors: as in `DraftRequest`.
        temperature, top_k, top_p: sampling settings, the same for target and drafter; temperature 0 is greedy.
    """

    drafter: str
    hidden: HiddenByHandle
    token_ids: TokenIds
    response_start: Annotated[int, Field(ge=1)]
    anchors: Literal["response"] | list[Annotated[int, Field(ge=1)]] = "response"
    temperature: Annotated[float, Field(ge=0, le=100)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    deadline_s: Annotated[float, Field(gt=0)] | None = None


class DrafterLoadRequest(Request):
    """`POST /drafters`: load a checkpoint under a name; options fill what the files do not say."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    path: str
    family: str | None = None
    block_size: Annotated[int, Field(ge=2, le=256)] | None = None
    taps: list[int] | None = None
    convention: Convention = "output"
    mask_token_id: Annotated[int, Field(ge=0)] | None = None
    rope_theta: Annotated[float, Field(gt=0)] | None = None
    layout: Literal["fill-in", "anchor-first"] | None = None


class DrafterList(Answer):
    """`GET /drafters`."""

    drafters: list[DrafterCard]


# --- errors and health ------------------------------------------------------------------------------------------------


class ErrorInfo(Answer):
    """The error of an answer; `code` is stable."""

    code: str
    message: str
    request_id: str = ""
    details: dict[str, Any] = Field(default_factory=dict)


class ErrorBody(Answer):
    """Body of every answer that is not 2xx."""

    error: ErrorInfo


class Health(Answer):
    """`/healthz`, `/readyz`: `ok`, or the reasons why not."""

    status: Literal["ok", "not_ready"]
    reasons: list[str] = Field(default_factory=list)
