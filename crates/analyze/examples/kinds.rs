//! Writes made-up captures of thirty kinds into a directory, for `bench/analyze/truth.py --generated`.
//!
//!     cargo run -p longfat-analyze --example kinds -- DIR

#[path = "../tests/support/mod.rs"]
#[allow(dead_code, clippy::unwrap_used, clippy::expect_used)]
mod support;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args().nth(1).ok_or("usage: kinds DIR")?;
    std::fs::create_dir_all(&directory)?;
    for (name, trace) in support::kinds::kinds() {
        std::fs::write(format!("{directory}/{name}.pcap"), trace.pcap())?;
    }
    Ok(())
}
