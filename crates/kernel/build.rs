//! Compiles the BPF sources: one object per congestion control of cc/bpf/, and those of bpf/.
//!
//! The compiler is $CLANG, else clang-19, else clang. Headers for BPF come with libbpf-sys.

#[path = "build/debug.rs"]
mod debug;

use std::{
    env,
    error::Error,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../..").canonicalize()?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let clang = clang()?;
    println!("cargo::rerun-if-env-changed=CLANG");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build");
    for folder in ["cc/include", "cc/algorithms", "cc/receive", "cc/bpf", "bpf"] {
        println!("cargo::rerun-if-changed={}", root.join(folder).display());
    }
    let algorithms = sources(&root.join("cc/bpf"))?;
    for source in algorithms.iter().chain(&sources(&root.join("bpf"))?) {
        compile(source, &root, &out, &clang)?;
    }
    fs::write(out.join("objects.rs"), catalogue(&algorithms)?)?;
    Ok(())
}

/// A table from algorithm name to object, so that an algorithm's glue is found by being there. Its text has no paths:
/// debug information has a sum of it.
fn catalogue(algorithms: &[PathBuf]) -> Result<String, Box<dyn Error>> {
    let mut text = String::from("static OBJECTS: &[(&str, &[u8])] = &[\n");
    for name in algorithms.iter().map(|source| name(source)) {
        writeln!(text, "    ({name:?}, bpf_object!(concat!(env!(\"OUT_DIR\"), \"/{name}.bpf.o\"))),")?;
    }
    text.push_str("];\n");
    Ok(text)
}

/// Paths are kept out of the object: the same sources give the same one wherever they lie.
fn compile(source: &Path, root: &Path, out: &Path, clang: &str) -> Result<(), Box<dyn Error>> {
    let object = object(source, out);
    let done = Command::new(clang)
        .args(["-target", "bpf", "-O2", "-g", "-mcpu=v3", "-fno-stack-protector"])
        .args(["-Wall", "-Werror", "-Wno-missing-declarations"])
        .arg(format!("-D__TARGET_ARCH_{}", architecture()?))
        .arg(format!("-ffile-prefix-map={}/=", root.display()))
        .args(["-I", &env::var("DEP_LONGFAT_CC_INCLUDE")?, "-I", &env::var("DEP_BPF_INCLUDE")?])
        .args(["-c".as_ref(), source.as_os_str(), "-o".as_ref(), object.as_os_str()])
        .output()?;
    if !done.status.success() {
        return Err(format!("{}: {}", source.display(), String::from_utf8_lossy(&done.stderr)).into());
    }
    fs::write(&object, debug::emptied(&fs::read(&object)?).ok_or("clang wrote no ELF object of 64 bits")?)?;
    Ok(())
}

/// The target's name in libbpf's headers.
fn architecture() -> Result<String, Box<dyn Error>> {
    let target = env::var("CARGO_CFG_TARGET_ARCH")?;
    Ok(match target.as_str() {
        "x86_64" => "x86".to_owned(),
        "aarch64" => "arm64".to_owned(),
        "riscv64" => "riscv".to_owned(),
        _ => target,
    })
}

fn sources(folder: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.to_string_lossy().ends_with(".bpf.c") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn name(source: &Path) -> String {
    source.file_name().unwrap_or_default().to_string_lossy().replace(".bpf.c", "")
}

fn object(source: &Path, out: &Path) -> PathBuf {
    out.join(format!("{}.bpf.o", name(source)))
}

fn clang() -> Result<String, Box<dyn Error>> {
    let candidates = env::var("CLANG").into_iter().chain(["clang-19".to_owned(), "clang".to_owned()]);
    for candidate in candidates {
        if Command::new(&candidate).arg("--version").output().is_ok_and(|output| output.status.success()) {
            return Ok(candidate);
        }
    }
    Err("no clang for BPF; install the package clang-19, or name one in $CLANG".into())
}
