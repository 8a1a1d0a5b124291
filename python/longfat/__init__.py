"""Results of `longfat lab run`, as xarray, pandas and Arrow.

    import longfat

    data = longfat.open("runs/sweep")          # an xarray Dataset over the sweep's axes, repeats and `of`
    data.goodput_bps.sel(of="measured").median("repeat")
    data.lab.plot("goodput_bps", of="measured", x="rtt")
    tcp = longfat.samples("runs/sweep", "tcp", rate="25Mbit")      # pandas; `arrow` for a pyarrow Table
    longfat.timeline("runs/sweep", "tcp", "cwnd_segments", rate="25Mbit", repeat=1)

    longfat.run("experiments/smoke.toml", "runs/smoke")             # in the simulator; then longfat.open("runs/smoke")

Everything is read from the run directories (docs/reference/run-format.md); nothing is written to them.
"""

from ._figures import Lab, timeline
from ._read import SCHEMA_VERSION, STATUSES, SchemaError, arrow, figures, manifests, open, samples
from ._run import program, run

__all__ = [
    "Lab",
    "SCHEMA_VERSION",
    "STATUSES",
    "SchemaError",
    "arrow",
    "figures",
    "manifests",
    "open",
    "program",
    "run",
    "samples",
    "timeline",
]
