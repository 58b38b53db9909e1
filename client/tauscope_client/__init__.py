"""The evaluation client of tauscope: no model code, no torch.

`load_run` reads a run folder back, for notebooks; the program is `tauscope`.
"""

from tauscope_client.runs.loading import Run, load_run

__all__ = ["Run", "load_run"]
