"""From run directories to tables."""

import json
import math
import warnings
from pathlib import Path

import pandas
import pyarrow
import pyarrow.parquet
import xarray

#: Newest version of the run directory that is understood; the Rust crate `longfat-schema` has the same.
SCHEMA_VERSION = 4

#: Columns that say where a row belongs; an axis that is called like one of them is the column `AXIS_axis`.
_PLACE = ("experiment", "cell", "repeat", "seed", "backend", "status", "path", "of", "stream", "result", "run")


#: How a run may have ended, as manifests write it, the best first; the Rust crate `longfat-schema` has the same.
STATUSES = ("done", "unexplained", "invalid", "failed")


#: Largest array that [open] makes.
_MOST_BYTES = 2 << 30


class SchemaError(ValueError):
    """A directory that holds no run, or one of a newer longfat."""


class _DamagedError(SchemaError):
    """A file that says nothing."""


#: What is read of every run's manifest.
_RUN_KEYS = {"metrics": list, "case": str, "repeat": int, "status": str, "experiment": str, "seed": int, "backend": str}
#: What is read of the members of a manifest's lists.
_MEMBER_KEYS = {"metrics": {"metric": str, "of": str, "value": (int, float)}, "axes": {"axis": str, "label": str}, "runs": {"path": str}}


def _json(path):
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _DamagedError(f"{path}: {error}; it was damaged or written by another program") from error
    found = content.get("schema_version") if isinstance(content, dict) else None
    if not isinstance(found, int):
        raise _DamagedError(f"{path} says no schema version; it was not written by 'longfat lab run'")
    if found > SCHEMA_VERSION:
        raise SchemaError(f"{path} has schema version {found}; this longfat reads up to {SCHEMA_VERSION}; upgrade longfat")
    return content


def _check(file, content, keys):
    """That a file has these keys, each with a value of its kind, and lists of what is read of them."""
    if missing := [key for key in keys if key not in content]:
        raise _DamagedError(f"{file} says no {', '.join(missing)}; it was damaged or written by another program")
    strange = [key for key, kind in keys.items() if not isinstance(content[key], kind)]
    strange += [key for key in _MEMBER_KEYS if key not in strange and not _are_members(content.get(key) or [], _MEMBER_KEYS[key])]
    if strange:
        raise _DamagedError(f"{file} has {', '.join(strange)} of another kind than it should; it was damaged or written by another program")


def _are_members(found, keys):
    known = isinstance(found, list) and all(isinstance(member, dict) for member in found)
    return known and all(isinstance(member.get(key), kind) for member in found for key, kind in keys.items())


def _result(root):
    """Manifest of a result."""
    content = _json(root / "result.json")
    _check(root / "result.json", content, {"runs": list})
    return content


def manifests(path):
    """Manifest of every run of a result (or of the one run), each with its directory as `path`.

    A run of a result that left none was interrupted, and is not among them; nor is one whose manifest is damaged or may
    not be read, which a warning names.
    """
    root = Path(path)
    if (root / "result.json").is_file():
        names = [run["path"] for run in _result(root)["runs"]]
        whole = [name for name in names if (root / name / "manifest.json").is_file()]
        return [manifest for name in whole if (manifest := _manifest(root / name))]
    if (root / "manifest.json").is_file():
        return [_whole_manifest(root)]
    raise SchemaError(f"'{root}' holds neither a result (result.json) nor a run (manifest.json)")


def _manifest(directory):
    """The manifest of a result's run, or none where it is damaged or may not be read."""
    try:
        return _whole_manifest(directory)
    except (_DamagedError, OSError) as error:
        warnings.warn(f"a run is left out: {error}", stacklevel=3)
        return None


def _whole_manifest(directory):
    file = directory / "manifest.json"
    manifest = {**_json(file), "path": str(directory)}
    _check(file, manifest, _RUN_KEYS)
    return manifest


def _some(path):
    """Manifests of a result that has one at least."""
    runs = manifests(path)
    if not runs:
        raise SchemaError(f"'{path}' holds no run yet; wait for 'longfat lab run' to finish its first, or give another directory")
    return runs


def _free(name, taken):
    """The name, or one that no other column has."""
    while name in taken:
        name = f"{name}_axis"
    return name


def _metrics(runs):
    """Names of all metrics, in order."""
    return sorted({metric["metric"] for run in runs for metric in run["metrics"]})


def _columns(runs, taken):
    """Every axis in the order of the sweep, and its column."""
    columns = {}
    for run in runs:
        for at in run.get("axes") or [{"axis": "case"}]:
            if at["axis"] not in columns:
                columns[at["axis"]] = _free(at["axis"], {*taken, *columns.values()})
    return columns


def figures(path):
    """Every figure as a pandas DataFrame: a row per run, thing (`of`) and stream (NA for the whole), a column per metric.

    An axis is a column of its labels; beside it, where they are numbers, `AXIS_UNIT` has them in their base unit. What is
    called like another column gets `_axis` at its end.
    """
    return _figures(_some(path))


def _figures(runs):
    taken = {*_PLACE, *_metrics(runs)}
    columns = _columns(runs, taken)
    rows = {}
    for run in runs:
        place = {name: run[name] for name in ("experiment", "repeat", "seed", "backend", "status", "path")}
        place["cell"] = run["case"]
        axes = run.get("axes") or []
        if not axes:
            place["case"] = run["case"]
        for at in axes:
            place[columns[at["axis"]]] = at["label"]
            if at.get("number") is not None:
                place[_number_of(at["axis"], at.get("unit"), columns, taken)] = at["number"]
        # A run that came to nothing has one row, so that it is not forgotten.
        rows.setdefault((run["path"], "", None), {**place, "of": "", "stream": None})
        for metric in run["metrics"]:
            key = (run["path"], metric["of"], metric.get("stream"))
            row = rows.setdefault(key, {**place, "of": metric["of"], "stream": metric.get("stream")})
            row[metric["metric"]] = metric["value"]
    frame = pandas.DataFrame(rows.values())
    frame["stream"] = frame["stream"].astype("UInt32")
    return frame


def _number_of(axis, unit, columns, taken):
    """The column of an axis's labels as numbers."""
    return _free(f"{axis}_{unit or 'number'}", {*taken, *columns.values()})


def _axes(runs):
    """Axes in the order of the sweep: name to its labels in order, and to what a label is as a number."""
    labels, numbers, units = {}, {}, {}
    for run in runs:
        for at in run.get("axes") or [{"axis": "case", "label": run["case"]}]:
            known = labels.setdefault(at["axis"], [])
            if at["label"] not in known:
                known.append(at["label"])
            numbers.setdefault(at["axis"], {})[at["label"]] = at.get("number")
            units.setdefault(at["axis"], set()).add(at.get("unit", ""))
    return labels, numbers, units


def _statuses(status):
    """Statuses asked for, each of which there is."""
    statuses = [status] if isinstance(status, str) else list(status)
    unknown = [str(name) for name in statuses if name not in STATUSES]
    if unknown:
        raise ValueError(f"no run is '{', '.join(unknown)}'; status is one of {', '.join(STATUSES)}, or several of them")
    return statuses


def open(path, status=("done",)):
    """A result as an xarray Dataset: a variable per metric over the axes of the sweep, `repeat` and `of`.

    A dimension is called as its axis (`AXIS_axis` where that is a metric's name or a column's of `figures`). A coordinate is
    the label as the experiment file has it; where labels are numbers, the coordinate `AXIS_UNIT` (`rate_bps`,
    `delay_us`) has them in their base unit. Only runs with this status, or one of these, count; the others are missing
    values, as is what a run has no figure for. `data.lab` draws, and reads samples.
    """
    statuses = _statuses(status)
    runs = _some(path)
    frame = _figures(runs)
    labels, numbers, units = _axes(runs)
    metrics = _metrics(runs)
    taken = {*_PLACE, *metrics}
    columns = _columns(runs, taken)
    counted = frame[frame["status"].isin(statuses) & frame["stream"].isna()]
    places = {columns[axis]: known for axis, known in labels.items()}
    places["repeat"] = sorted({run["repeat"] for run in runs})
    places["of"] = sorted({metric["of"] for run in runs for metric in run["metrics"] if metric.get("stream") is None})
    _refuse_too_large(path, places, metrics)
    data = counted.set_index([*columns.values(), "repeat", "of"])[metrics].to_xarray()
    # In the order of the sweep, also where every run of a value was invalid.
    data = data.reindex(places)
    for axis, known in labels.items():
        values = [numbers[axis][label] for label in known]
        if all(value is not None for value in values) and len(units[axis]) == 1:
            number = _number_of(axis, next(iter(units[axis])), columns, taken)
            data = data.assign_coords({number: (columns[axis], values)})
    data.attrs.update(path=str(path), experiment=runs[0]["experiment"], backend=runs[0]["backend"])
    result = Path(path) / "result.json"
    if result.is_file():
        content = _result(Path(path))
        data.attrs.update(title=content.get("title") or "", focus=content.get("focus") or "")
    return data


def _refuse_too_large(path, places, metrics):
    """Every value of an axis has a place at every value of the others, also where a sweep has few of these (zip, sample)."""
    values = math.prod(map(len, places.values()))
    size = 8 * values * len(metrics)
    if size > _MOST_BYTES:
        sides = " by ".join(f"{len(known)} {name}" for name, known in places.items())
        raise ValueError(
            f"'{path}' would take {size / 1e9:.1f} GB as an array: {sides} by {len(metrics)} metrics, most of it missing; "
            "longfat.figures has a row for each run instead"
        )


def _wanted(run, where):
    at = {axis["axis"]: axis["label"] for axis in run.get("axes") or []}
    at.update(case=at.get("case", run["case"]), repeat=run["repeat"])
    unknown = set(where) - set(at)
    if unknown:
        raise KeyError(f"no axis {', '.join(sorted(unknown))}; there are {', '.join(at)}")
    return at, all(str(at[axis]) == _label(label) for axis, label in where.items())


def _label(label):
    """A label as files have it; numbers of tables are often floats."""
    return str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)


def arrow(path, table, /, **where):
    """The samples of one kind (`tcp`, `queue`, `interval` …) of all runs as a pyarrow Table, with the runs' axes as columns.

    `where` names axes (`case`, `repeat` too) and the labels wanted: `rate="25Mbit"`. `run` is the run's directory; an axis
    that is called like another column gets `_axis` at its end.
    """
    return _arrow(_some(path), path, table, where)


def _arrow(runs, path, table, where):
    found, places = [], []
    for run in runs:
        at, wanted = _wanted(run, where)
        places.append(at)
        if not wanted:
            continue
        file = Path(run["path"]) / f"{table}.parquet"
        if not file.is_file():
            continue
        # Axes from paths are left alone: partitions of a path would come twice.
        try:
            rows = pyarrow.parquet.read_table(file, partitioning=None)
        except (pyarrow.ArrowInvalid, OSError) as error:
            warnings.warn(f"a table is left out: {file}: {error}", stacklevel=3)
            continue
        for axis, label in [("run", run["path"]), *at.items()]:
            kind = pyarrow.int64() if isinstance(label, int) else pyarrow.string()
            name = _free(axis, rows.column_names)
            rows = rows.append_column(name, pyarrow.array([label] * rows.num_rows, kind))
        found.append(rows.replace_schema_metadata())
    if not found:
        _refuse_unknown_labels(path, places, where)
        raise FileNotFoundError(f"no run of '{path}' at {where or 'any place'} has a table '{table}'")
    return pyarrow.concat_tables(found, promote_options="permissive")


def _refuse_unknown_labels(path, places, where):
    """Names the labels of an axis of which no run has the one that is wanted."""
    for axis, label in where.items():
        labels = list(dict.fromkeys(str(at[axis]) for at in places))
        if _label(label) not in labels:
            raise ValueError(f"no run of '{path}' has {axis}={label!r}; there are {', '.join(labels)}")


def samples(path, table, /, **where):
    """As [arrow], as a pandas DataFrame."""
    return arrow(path, table, **where).to_pandas()
