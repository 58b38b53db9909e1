"""The data set that goes with the files of the layout `speculators`: ids, loss masks and lengths in the files' order.

`rows.jsonl` holds the rows as text. With pyarrow installed the folder is also what `datasets.load_from_disk` opens, so
that training can begin at once; without it, `datasets` makes that of the rows wherever training runs.
"""

import json
from pathlib import Path
from typing import Any, BinaryIO

from tauscope_client.extract.index import file_xxh3
from tauscope_client.extract.samples import SampleTable
from tauscope_client.runs.files import write_atomically, write_json

__all__ = ["ROWS_NAME", "write_dataset"]

ROWS_NAME = "rows.jsonl"
ARROW_NAME = "data-00000-of-00001.arrow"
BATCH_ROWS = 1000


def write_dataset(table: SampleTable, folder: Path) -> bool:
    """Write the rows of all samples, and the data set where pyarrow is there.

    Returns:
        Whether the folder can be opened as a data set.
    """
    write_atomically(folder / ROWS_NAME, lambda file: _write_rows(file, table))
    try:
        import pyarrow as pa
    except ImportError:
        return False
    # The features go into the file's own description as well: `datasets` reads them from there.
    ids = {"feature": {"dtype": "int64", "_type": "Value"}, "_type": "List"}
    features = {"input_ids": ids, "loss_mask": ids, "seq_len": {"dtype": "int64", "_type": "Value"}}
    about = {"huggingface": json.dumps({"info": {"features": features}})}
    schema = pa.schema(
        [("input_ids", pa.list_(pa.int64())), ("loss_mask", pa.list_(pa.int64())), ("seq_len", pa.int64())], about
    )

    def write(file: BinaryIO) -> None:
        with pa.ipc.new_stream(file, schema) as stream:
            for start in range(0, len(table), BATCH_ROWS):
                samples = [table.read(row) for row in range(start, min(start + BATCH_ROWS, len(table)))]
                columns: list[Any] = [
                    pa.array([sample.ids() for sample in samples], schema.field(0).type),
                    pa.array([sample.loss_mask() for sample in samples], schema.field(1).type),
                    pa.array([sample.num_tokens for sample in samples], schema.field(2).type),
                ]
                stream.write_batch(pa.record_batch(columns, schema=schema))

    write_atomically(folder / ARROW_NAME, write)
    write_json(folder / "dataset_info.json", {"citation": "", "description": "", "features": features})
    write_json(
        folder / "state.json",
        {
            "_data_files": [{"filename": ARROW_NAME}],
            "_fingerprint": file_xxh3(folder / ROWS_NAME)[:16],
            "_format_columns": ["input_ids", "loss_mask", "seq_len"],
            "_format_kwargs": {},
            "_format_type": "torch",
            "_output_all_columns": False,
            "_split": None,
        },
    )
    return True


def _write_rows(file: BinaryIO, table: SampleTable) -> None:
    for sample in table:
        mask = sample.loss_mask().tolist()
        row = {"input_ids": sample.token_ids, "loss_mask": mask, "seq_len": sample.num_tokens}
        file.write(json.dumps(row).encode() + b"\n")
