//! The Python that does what others' packages do for us: DuckDB, Ray.

use std::path::PathBuf;

/// The one installed beside this program (`pip install` puts both into one environment), else the first on PATH.
pub fn program() -> PathBuf {
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name("python3"));
    beside.filter(|python| python.is_file()).unwrap_or_else(|| "python3".into())
}
