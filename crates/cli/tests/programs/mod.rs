//! Programs that a test makes and then runs. Another process writes them: a child of another thread of the test would
//! inherit a file that is open for writing, and running the program would say "Text file busy".

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::LazyLock,
};

/// A script that anybody may run.
pub fn script(path: &Path, text: &str) {
    install("/dev/stdin".as_ref(), path, text);
}

/// A copy that anybody may run.
pub fn copy(from: impl AsRef<Path>, to: &Path) {
    install(from.as_ref(), to, "");
}

/// The program without what debuggers read: what is sent to machines is better small.
pub fn stripped() -> &'static Path {
    static MADE: LazyLock<PathBuf> = LazyLock::new(|| {
        let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("longfat");
        // Another test program may make it, too.
        let own = place.with_extension(std::process::id().to_string());
        let mut strip = Command::new("strip");
        assert!(strip.arg("-o").arg(&own).arg(env!("CARGO_BIN_EXE_longfat")).status().unwrap().success());
        std::fs::rename(&own, &place).unwrap();
        place
    });
    &MADE
}

fn install(from: &Path, to: &Path, input: &str) {
    let mut command = Command::new("install");
    let mut child = command.args(["-m", "755"]).arg(from).arg(to).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{} was not made", to.display());
}
