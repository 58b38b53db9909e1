"""Fetches the states of one sample and puts them into its file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tauscope_client.extract.fleet import Fleet
from tauscope_client.extract.index import Entry, file_xxh3
from tauscope_client.extract.sample import Sample
from tauscope_client.extract.settings import ExtractSettings
from tauscope_client.references.retries import Retries
from tauscope_client.runs.files import write_atomically
from tauscope_wire.checksums import checksum
from tauscope_wire.errors import CheckpointError, ErrorCode, MismatchError
from tauscope_wire.layers import FINAL_NORM, Plane
from tauscope_wire.messages import HiddenRequest
from tauscope_wire.tensors import HiddenAnswer

__all__ = ["SampleWriter"]


class SampleWriter:
    """Makes files of samples. Safe to use from several threads."""

    def __init__(
        self, folder: Path, settings: ExtractSettings, fleet: Fleet, retries: Retries, *, note: Callable[[str], None]
    ) -> None:
        """Bind what every sample needs; `note` is told when a request has to be sent again."""
        self._note = note
        self._folder = folder
        self._settings = settings
        self._fleet = fleet
        self._retries = retries
        num_layers = fleet.info.model.num_layers
        self.planes: tuple[Plane, ...] = settings.planes(num_layers)

    def write(self, sample: Sample) -> Entry:
        """Fetch and write one sample; its file is on the disk afterwards.

        Raises:
            MismatchError: a service was replaced by one with another model or, where not allowed, other numerics.
            CheckpointError: the file cannot be written.
            TauscopeError: no service gave the states, after retries.
        """
        answer = self._fetch(sample)
        self._check(answer)
        path = self._settings.layout.path(sample.row)
        states = [answer.plane(name) for name in self.planes]
        digest = answer.digest or checksum([answer.plane(name) for name in answer.planes])
        facts = self._facts(sample, answer, digest)
        try:
            write_atomically(self._folder / path, lambda file: self._settings.layout.write(file, sample, states, facts))
            nbytes, xxh3 = (self._folder / path).stat().st_size, file_xxh3(self._folder / path)
        except OSError as error:
            raise CheckpointError(
                f"{self._folder / path}: cannot be written ({error.strerror or error}); what was finished is kept"
            ) from error
        return Entry(
            row=sample.row,
            id=sample.id,
            path=str(path),
            nbytes=nbytes,
            xxh3_128=xxh3,
            digest=digest,
            num_tokens=sample.num_tokens,
            num_loss_tokens=sample.num_loss_tokens,
            request_id=answer.request_id,
        )

    def _fetch(self, sample: Sample) -> HiddenAnswer:
        wanted = dict.fromkeys(self.planes)
        request = HiddenRequest(
            token_ids=list(sample.token_ids),
            layers=[plane for plane in wanted if isinstance(plane, int)],
            final_norm=FINAL_NORM in wanted,
            dtype=self._settings.dtype,
            deadline_s=self._settings.deadline_s,
        )

        def ask() -> HiddenAnswer:
            with self._fleet.take(sample.num_tokens) as client:
                return client.hidden(request)  # labels, ids and checksums are verified by the reader

        return self._retries.run(
            ask, on_wait=lambda error, pause_s: self._note(f"{error.message}; again in {pause_s:.1f} s")
        )

    def _check(self, answer: HiddenAnswer) -> None:
        info = self._fleet.info
        if answer.model.revision != info.model.revision:
            raise MismatchError(
                f"the service answers with {answer.model.revision}; this data set is of {info.model.revision}",
                ErrorCode.TARGET_MISMATCH,
            )
        if answer.numerics != info.numerics and not self._settings.mixed_numerics:
            raise MismatchError(
                "the service computes in another way than when the extraction began; allow it with --mixed-numerics",
                ErrorCode.NUMERICS_MISMATCH,
            )

    def _facts(self, sample: Sample, answer: HiddenAnswer, digest: str) -> dict[str, str]:
        facts: dict[str, Any] = {
            "id": sample.id,
            "model": answer.model.id,
            "revision": answer.model.revision,
            "planes": list(self.planes),
            "numerics": answer.numerics.model_dump(),
            "digest": digest,
        }
        # Under one name: the safetensors library writes several in a random order, and equal samples give equal files.
        return {"tauscope": json.dumps(facts)}
