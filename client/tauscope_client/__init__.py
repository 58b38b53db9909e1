"""The evaluation client of tauscope: no model code, no torch."""
