"""Figures in one line, by matplotlib."""

import numpy
import xarray

from ._read import STATUSES, _arrow, _some, samples

#: Columns that tell one line of a sample table from another.
_LINES = ("case", "repeat", "flow", "stream", "role", "link", "direction", "relay", "connection")
#: Colours that people with any colour vision tell apart (Okabe and Ito 2008).
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000", "#F0E442")
#: What units are shown in: factor and name.
_SHOWN = {"bps": (1e-6, "Mbit/s"), "us": (1e-3, "ms"), "bytes": (1e-3, "kB"), "ratio": (100, "%")}


def _unit(name):
    factor, unit = _SHOWN.get(name.rsplit("_", 1)[-1], (1, ""))
    words = name.rsplit("_", 1)[0] if unit else name
    return factor, f"{words.replace('_', ' ')} [{unit}]" if unit else words.replace("_", " ")


def _several(at):
    """What an axis is pinned to, so that the axis stays."""
    return [at] if numpy.ndim(at) == 0 and not isinstance(at, slice) else at


def _widened(data):
    """With what was selected by one label as an axis of that label, and the names of these axes."""
    scalars = [str(name) for name, at in data.coords.items() if at.ndim == 0]
    chosen = [name for name in scalars if name in ("of", "repeat") or data[name].dtype.kind in "OUT"]
    return data.expand_dims(chosen), chosen


def _column(axis, columns):
    """The column of an axis that is called like another column."""
    while f"{axis}_axis" in columns:
        axis = f"{axis}_axis"
    return axis


def _axes(axes):
    if axes is not None:
        return axes
    import matplotlib.pyplot

    return matplotlib.pyplot.subplots(layout="constrained")[1]


@xarray.register_dataset_accessor("lab")
class Lab:
    """What a dataset of `longfat.open` can do: `data.lab.plot(…)`, `data.lab.samples(…)`."""

    def __init__(self, data):
        self._data = data

    def samples(self, table, /, **where):
        """The samples of one kind, as `longfat.samples`."""
        return samples(self._data.attrs["path"], table, **where)

    def plot(self, metric, /, of=None, x=None, axes=None, **where):
        """A metric over one axis of the sweep: medians over the repeats, bars from least to greatest.

        `of` defaults to the flow the experiment is about (or the run, or the only thing that has the metric), `x` to
        the last axis with several values; every other axis that `where` leaves open becomes lines. An axis of numbers
        goes from the least to the greatest, one of other labels in the order of the experiment. Gives back
        matplotlib's axes.
        """
        data, chosen = _widened(self._data[metric])
        data = data.sel(of=self._of(metric, data) if of is None else of).sel({axis: _several(at) for axis, at in where.items()})
        open_axes = [axis for axis in data.dims if axis != "repeat"]
        chosen = {*where, *chosen}
        several = [axis for axis in open_axes if data.sizes[axis] > 1]
        x = x or (several or open_axes)[-1]
        pinned = [axis for axis in open_axes if axis in chosen and axis not in (x, *several)]
        data, open_axes = data.squeeze(pinned, drop=True), [axis for axis in open_axes if axis not in pinned]
        number = next((name for name in data.coords if name != x and data[name].dims == (x,)), None)
        data = data if number is None else data.sortby(number)
        axes = _axes(axes)
        factor, label = _unit(metric)
        lines = data.stack(line=[axis for axis in open_axes if axis != x]) if len(open_axes) > 1 else data.expand_dims("line")
        places, x_label = (data[x].values, x) if number is None else (data[number].values, number)
        if number is not None:
            x_factor, x_label = _unit(number)
            places = places * x_factor
        for index in range(lines.sizes["line"]):
            line = lines.isel(line=index).transpose(x, "repeat") * factor
            median = line.median("repeat")
            spread = [median - line.min("repeat"), line.max("repeat") - median]
            name = self._name(lines, index)
            colour = _COLOURS[index % len(_COLOURS)]
            axes.errorbar(places, median, yerr=spread, marker="o", capsize=3, label=name, color=colour)
        axes.set_xlabel(x_label)
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        if lines.sizes["line"] > 1:
            axes.legend()
        return axes

    def _of(self, metric, data):
        """The focus flow, or else the run, or else what has the metric."""
        having = [str(of) for of in data.of.values if bool(data.sel(of=of).notnull().any())]
        for of in (self._data.attrs.get("focus"), ""):
            if of in having:
                return of
        if len(having) == 1:
            return having[0]
        if not having:
            raise KeyError(f"no run here counts that has {metric}; longfat.open takes others in with status=, several of {', '.join(STATUSES)}")
        raise KeyError(f"{metric} is of {', '.join(having)}; say which with of=")

    @staticmethod
    def _name(lines, index):
        place = lines.indexes.get("line")
        if place is None:
            return None
        at = place[index]
        at = at if isinstance(at, tuple) else (at,)
        return ", ".join(str(part) for part in at)


def timeline(path, table, column, /, axes=None, **where):
    """A column of a sample table over time, a line per run and connection, queue or flow.

    `where` names axes and labels, and columns of the table: `flow="measured", role="sender"`. Gives back matplotlib's axes.
    """
    runs = _some(path)
    known = {"case", "repeat"} | {at["axis"] for run in runs for at in run.get("axes") or []}
    rows = _arrow(runs, path, table, {key: value for key, value in where.items() if key in known}).to_pandas()
    for name, value in where.items():
        if name not in known:
            if name not in rows.columns:
                raise KeyError(f"no axis and no column {name}; there are {', '.join(sorted(known))} and {', '.join(rows.columns)}")
            chosen = rows[rows[name] == value]
            if chosen.empty:
                values = ", ".join(map(str, rows[name].drop_duplicates().head(12)))
                raise ValueError(f"no row of '{table}' has {name}={value!r}; there are {values}")
            rows = chosen
    axes = _axes(axes)
    factor, label = _unit(column)
    names = dict.fromkeys([*_LINES, *(_column(axis, rows.columns) for axis in sorted(known))])
    line_columns = [name for name in names if name in rows.columns and rows[name].nunique() > 1]
    # Whatever tells runs apart, no line is of two: it would go back in time.
    groups = rows.groupby([*line_columns, "run"], sort=False, dropna=False)
    for index, (at, line) in enumerate(groups):
        colour = _COLOURS[index % len(_COLOURS)]
        axes.plot(line["time_us"] / 1e6, line[column] * factor, label=", ".join(map(str, at[:-1])), color=colour)
    axes.set_xlabel("time [s]")
    axes.set_ylabel(label)
    if 1 < len(groups) <= 12:
        axes.legend()
    return axes
