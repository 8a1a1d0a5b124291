"""SQL over results of 'longfat lab run', started by 'longfat lab query': QUERY [DIRECTORY TABLE]... Rows as JSON on stdout."""

import glob
import json
import math
import os
import sys

try:
    import duckdb
except ImportError:
    sys.exit(3)

query, directories, datasets = sys.argv[1], sys.argv[2::2], sys.argv[3::2]


def files(paths):
    return "[" + ", ".join("'" + path.replace("'", "''") + "'" for path in paths) + "]"


base = duckdb.connect()
base.execute("create table datasets (directory text, filename text)")
base.executemany("insert into datasets values (?, ?)", list(zip(directories, datasets)))
base.execute(
    "create view results as select directory as result, directory || '/' || path as run, * exclude (directory, filename) "
    f"from read_parquet({files(datasets)}, union_by_name = true, filename = true) join datasets using (filename)"
)
tables = {}
for directory in directories:
    for path in glob.glob(os.path.join(glob.escape(directory), "**", "*.parquet"), recursive=True):
        tables.setdefault(os.path.basename(path).removesuffix(".parquet"), []).append(path)
tables.pop("results", None)
for table, paths in tables.items():
    base.execute(
        f'create view "{table}" as select parse_dirpath(filename) as run, * exclude (filename) '
        f"from read_parquet({files(paths)}, union_by_name = true, filename = true)"
    )
try:
    found = base.sql(query)
    rows = found.fetchall() if found else []
except duckdb.Error as error:
    print(str(error).strip(), file=sys.stderr)
    sys.exit(2)
columns = found.columns if found else []
# JSON has no word for them.
rows = [[None if isinstance(value, float) and not math.isfinite(value) else value for value in row] for row in rows]
json.dump({"columns": columns, "rows": rows}, sys.stdout, default=str)
