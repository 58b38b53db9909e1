"""Loads a folder with SpecForge's own reader and says what it found, as JSON. Runs where SpecForge is installed."""

import json
import sys

from specforge.algorithms.common import dflash_family_data
from specforge.algorithms.eagle3 import data as eagle3_data
from specforge.runtime.data_plane.feature_store import load_feature_file

MAX_LEN = 2048
folder, layout = sys.argv[1:]
options = {"run_id": "test", "ttt_length": 1, "max_len": MAX_LEN}
if layout == "specforge":
    reader = eagle3_data.build_offline_reader(folder, **options)
    normalize = eagle3_data.build_offline_normalizer(MAX_LEN)
elif layout == "specforge-dflash":
    reader = dflash_family_data.build_offline_reader("dflash", folder, **options)
    normalize = dflash_family_data.build_offline_normalizer(MAX_LEN)
else:
    reader = dflash_family_data.build_dspark_offline_reader("dspark", folder, **options)
    normalize = dflash_family_data.build_dspark_offline_normalizer(MAX_LEN)
reader.validate_files = True
found = []
for reference in reader.read():
    sample = normalize(load_feature_file(reference.feature_store_uri.removeprefix("file://")))
    found.append({name: value.float().tolist() for name, value in sample.items()})
    found[-1]["dtypes"] = {name: str(value.dtype) for name, value in sample.items()}
print(json.dumps({"samples": found}))
