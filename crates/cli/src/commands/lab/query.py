"""SQL over results of 'longfat lab run', started by 'longfat lab query': QUERY [DIRECTORY TABLE]... Rows as JSON on stdout."""

import sys

# Modules come from where Python has them, never from the directory it was started in: that may be a stranger's pack.
sys.path[:] = [path for path in sys.path if path]

import glob
import json
import math
import os
import re

try:
    import duckdb
except ImportError:
    sys.exit(3)

query, directories, datasets = sys.argv[1], sys.argv[2::2], sys.argv[3::2]


def text(value):
    """As SQL has a text."""
    return "'" + value.replace("'", "''") + "'"


def name(value):
    """As SQL has the name of a table."""
    return '"' + value.replace('"', '""') + '"'


def files(paths):
    return "[" + ", ".join(text(path) for path in paths) + "]"


def rows(paths):
    """The rows of tables as their files have them: what a path says of axes ('cc=reno/') replaces no column."""
    return f"read_parquet({files(paths)}, union_by_name = true, filename = true, hive_partitioning = false)"


#: Words of queries about tables themselves, for which every table must be there.
CATALOGUE = r"show|information_schema|duckdb_\w+|pg_\w+|sqlite_\w+"


def may_ask(table):
    """Whether the query may be about this table. Files of others are not opened."""
    return re.search(rf"\b({table}|{CATALOGUE})\b", query, re.IGNORECASE) is not None


def tables():
    """Every table of samples by its name, where it is a plain one."""
    found = {}
    for directory in directories:
        for path in sorted(glob.glob(os.path.join(glob.escape(directory), "**", "*.parquet"), recursive=True)):
            table = os.path.basename(path).removesuffix(".parquet")
            # To SQL names are the same in any case; ours are in lower case, and 'datasets' is the table made below.
            if re.fullmatch(r"[a-z][a-z0-9_]*", table) and table != "datasets":
                found.setdefault(table, []).append(path)
            else:
                print(f"longfat: {path!r} is left out: no table of ours is called that", file=sys.stderr)
    found.pop("results", None)
    return {table: paths for table, paths in found.items() if may_ask(table)}


def plain(value):
    """As JSON has it, which has no word for what is not finite, and no keys but texts."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    return value


def whole(base, paths):
    """Those of the files that can be read; the others are named."""
    found = []
    for path in paths:
        try:
            base.execute(f"select 1 from {rows([path])} limit 0")
            found.append(path)
        except duckdb.Error as error:
            print(f"longfat: {path!r} is left out: {str(error).strip()}", file=sys.stderr)
    return found


def types(base, path):
    """Columns of a file, and whether each holds text."""
    described = base.execute(f"describe select * exclude (filename) from {rows([path])}").fetchall()
    return {column: kind == "VARCHAR" for column, kind, *_ in described}


def figures(base, paths):
    """The rows of results. An axis whose labels are numbers in one result and text in another is text, as `cell` has it,
    and the numbers are beside it as where numbers have names."""
    known = {path: types(base, path) for path in paths}
    kinds = {}
    for columns in known.values():
        for column, is_text in columns.items():
            kinds.setdefault(column, set()).add(is_text)
    mixed = [column for column, found in kinds.items() if len(found) > 1]

    def rows_of(path):
        ours = [column for column in mixed if known[path].get(column) is False]
        if not ours:
            return f"select * from {rows([path])}"
        label = "coalesce(nullif(regexp_extract(cell, {}, 1), ''), {})"
        at = lambda column: text(rf"(?:^|,){re.escape(column)}=([^,]*)")
        texts = ", ".join(f"{label.format(at(column), f'{name(column)}::text')} as {name(column)}" for column in ours)
        beside = [column for column in ours if not {f"{column}_number", f"{column}_axis"} & known[path].keys()]
        numbers = "".join(f", {name(column)} as {name(f'{column}_number')}" for column in beside)
        return f"select * replace ({texts}){numbers} from {rows([path])}"

    return "(" + " union all by name ".join(map(rows_of, paths)) + ")" if mixed else rows(paths)


def view(base, table, columns, paths, joined=""):
    """Makes a table of files; of those that are not damaged, where some are, and none where all are."""

    def make(paths):
        source = figures(base, paths) if table == "results" else rows(paths)
        base.execute(f"create view {name(table)} as select {columns} from {source} {joined}")

    try:
        make(paths)
    except duckdb.Error:
        found = whole(base, paths)
        if found:
            make(found)


def opened(samples):
    """A database of these tables, that can reach nothing else: no other file, no network, no extension, for good."""
    base = duckdb.connect(config={"autoinstall_known_extensions": False, "autoload_known_extensions": False})
    base.execute("create table datasets (directory text, filename text)")
    base.executemany("insert into datasets values (?, ?)", list(zip(directories, datasets)))
    run = "directory as result, directory || '/' || path as run"
    view(base, "results", f"{run}, * exclude (directory, filename)", datasets, "join datasets using (filename)")
    for table, paths in samples.items():
        view(base, table, "parse_dirpath(filename) as run, * exclude (filename)", paths)
    allowed = [path for paths in samples.values() for path in paths] + datasets
    base.execute(f"set allowed_paths = {files(allowed)}")
    base.execute("set allow_community_extensions = false")
    base.execute("set enable_external_access = false")
    base.execute("set lock_configuration = true")
    return base


try:
    found = opened(tables()).sql(query)
    # An answer without rows is as good as none to 'if'; it has columns all the same.
    answer = found.fetchall() if found is not None else []
except duckdb.Error as error:
    print(str(error).strip(), file=sys.stderr)
    sys.exit(2)
columns = found.columns if found is not None else []
json.dump({"columns": columns, "rows": plain(answer)}, sys.stdout, default=str)
