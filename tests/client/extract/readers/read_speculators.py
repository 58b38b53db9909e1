"""Loads a folder with speculators' own reader and says what it found, as JSON. Runs where speculators is installed."""

import json
import sys
from pathlib import Path

from datasets import Dataset
from speculators.data_generation.offline import check_hidden_states
from speculators.train.data import ArrowDataset, CollateFn

folder = Path(sys.argv[1])
if not (folder / "state.json").exists():  # made where pyarrow is not installed; the lines of the docs
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    Dataset.from_list(rows).with_format("torch").save_to_disk(folder)
dataset = ArrowDataset(max_len=64, datapath=folder, on_missing="raise")
samples = [dataset[row] for row in range(len(dataset))]
for row, sample in enumerate(samples):
    check_hidden_states(dataset.transfer.get_cached(row), sample["input_ids"].tolist())
hidden_size = samples[0]["verifier_last_hidden_states"].shape[-1]
num_taps = samples[0]["hidden_states"].shape[-1] // hidden_size
batch = CollateFn(64, hidden_size, num_taps)(samples[:2])
print(
    json.dumps(
        {
            "samples": [
                {
                    "input_ids": sample["input_ids"].tolist(),
                    "loss_mask": sample["loss_mask"].tolist(),
                    "taps": sample["hidden_states"].float().tolist(),
                    "last": sample["verifier_last_hidden_states"].float().tolist(),
                    "dtype": str(sample["hidden_states"].dtype),
                }
                for sample in samples
            ],
            "lengths": dataset.approx_lengths,
            "batch": {name: list(value.shape) for name, value in batch.items() if hasattr(value, "shape")},
        }
    )
)
