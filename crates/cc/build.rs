//! Generates the tables of cc/, compiles it natively, and tells the crate that builds it for the kernel where the
//! tables are and which sources these were.

#[allow(dead_code)]
#[path = "src/table.rs"]
mod table;

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let crate_dir = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let (sources, generated) = (crate_dir.join("../../cc"), PathBuf::from(env::var("OUT_DIR")?));
    let header = table::header();
    fs::write(generated.join("lf_highspeed_table.h"), &header)?;
    let id = build_id(&sources, &header)?;
    for path in ["../../cc", "src/native.c", "src/queue.c", "src/receive.c", "src/table.rs"] {
        println!("cargo::rerun-if-changed={path}");
    }
    println!("cargo::metadata=include={}", generated.display());
    println!("cargo::rustc-env=LONGFAT_CC_BUILD_ID={id}");
    cc::Build::new()
        .file("src/native.c")
        .file("src/queue.c")
        .file("src/receive.c")
        .include(&sources)
        .include(&generated)
        .flag("-Wno-unused-parameter")
        .warnings_into_errors(true)
        .compile("longfat_cc");
    Ok(())
}

/// FNV-1a of every header and BPF source in order of name: the same sources have the same id wherever they are built.
fn build_id(sources: &Path, generated: &str) -> io::Result<u64> {
    let mut id = fnv(0xcbf2_9ce4_8422_2325, generated.as_bytes());
    for folder in ["include", "algorithms", "bpf"] {
        let entries = fs::read_dir(sources.join(folder))?;
        let mut paths: Vec<_> =
            entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<PathBuf>>>()?;
        paths.sort();
        for path in paths {
            id = fnv(id, path.file_name().unwrap_or_default().as_encoded_bytes());
            id = fnv(id, &fs::read(&path)?);
        }
    }
    Ok(id)
}

fn fnv(start: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(start, |id, byte| (id ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}
