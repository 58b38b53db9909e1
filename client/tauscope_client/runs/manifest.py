"""`manifest.json`: what a run was made with, and whether a run may be continued with what is asked now."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tauscope_wire.errors import ErrorCode, MismatchError

__all__ = ["RUN_SCHEMA", "Manifest", "differences"]

RUN_SCHEMA = "tauscope.run/1"

_MAX_SHOWN = 8


class Manifest(BaseModel):
    """What a run was made with.

    Attributes:
        created_at: UTC, ISO 8601.
        versions: of tauscope, Python, numpy, and the two services.
        settings_passed: what the user said, keys left out.
        settings_in_force: what that came to, defaults included.
        prompts: `name`, `sha256`, `count` of the prompts file.
        reference: facts of the reference source.
        target: model, numerics, mode and self-tests of the target service.
        drafter_service: numerics of the drafter service.
        drafters: card of every drafter by name.
        warnings: what the services said about each other.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    schema_: Literal["tauscope.run/1"] = Field(default="tauscope.run/1", alias="schema")
    created_at: str
    versions: dict[str, str]
    platform: str = ""
    settings_passed: dict[str, Any]
    settings_in_force: dict[str, Any]
    prompts: dict[str, Any]
    reference: dict[str, Any]
    target: dict[str, Any]
    drafter_service: dict[str, Any]
    drafters: dict[str, dict[str, Any]]
    warnings: list[str] = Field(default_factory=list)

    def identity(self) -> dict[str, Any]:
        """Everything that decides the numbers; two runs with equal identities may share work."""
        return {
            "settings": self.settings_in_force,
            "prompts": {"sha256": self.prompts.get("sha256")},
            "reference": {key: value for key, value in self.reference.items() if key not in _LEARNT_LATER},
            "target": {key: self.target.get(key) for key in ("model", "numerics")},
            "drafter_service": {"numerics": self.drafter_service.get("numerics")},
            "drafters": {name: {key: card.get(key) for key in _CARD_KEYS} for name, card in self.drafters.items()},
        }

    def check_resume(self, now: "Manifest", *, folder: str) -> None:
        """Make sure that work of this manifest's run can be continued as `now`.

        Drafters may be added: they draft on the same references. Everything else must be equal.

        Raises:
            MismatchError: names each setting that differs, with both values.
        """
        before, after = self.identity(), now.identity()
        missing = sorted(set(before["drafters"]) - set(after["drafters"]))
        after["drafters"] = {name: card for name, card in after["drafters"].items() if name in before["drafters"]}
        before["drafters"] = {name: card for name, card in before["drafters"].items() if name not in missing}
        found = [f"{key}: {was!r} there, {want!r} now" for key, was, want in differences(before, after)]
        found += [f"drafter {name!r} is part of that run and was not asked for" for name in missing]
        if found:
            shown = "\n  ".join(
                found[:_MAX_SHOWN] + ([f"and {len(found) - _MAX_SHOWN} more"] * (len(found) > _MAX_SHOWN))
            )
            raise MismatchError(
                f"{folder} holds a run with other settings; it is not touched:\n  {shown}\n"
                "say the same settings to continue it, or give another folder with --out",
                ErrorCode.TARGET_MISMATCH,
                details={"differences": found},
            )


# Facts of an engine that are known only after its first completion.
_LEARNT_LATER = frozenset({"dialect", "returns_ids"})
_CARD_KEYS = ("sha256", "family", "layout", "block_size", "taps", "rope", "mask_token_id")


def differences(before: Any, after: Any, *, prefix: str = "") -> list[tuple[str, Any, Any]]:
    """Leaves that differ between two JSON-like values, as (dotted name, before, after)."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        keys = [*before, *(key for key in after if key not in before)]
        return [
            item
            for key in keys
            for item in differences(before.get(key), after.get(key), prefix=f"{prefix}.{key}" if prefix else str(key))
        ]
    same = (
        list(before) == list(after)
        if isinstance(before, (list, tuple)) and isinstance(after, (list, tuple))
        else before == after
    )
    return [] if same else [(prefix, before, after)]
