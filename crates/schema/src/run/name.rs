//! Names of files and directories of runs. They come from files that may be a stranger's, and end up in paths, in SQL
//! and on terminals: only what is harmless in all of them is a name.

/// Longest name of one file or directory, as file systems have it.
const NAME_BYTES_MAX: usize = 255;
/// Most directories that lie within each other: one per axis of a sweep, and the logs.
const DEPTH_MAX: usize = 32;

/// Whether it is the name of one file or directory: letters, digits and `- _ . + % =` (axes are `rate=25Mbit`), and
/// neither hidden nor like an option.
pub fn is_plain_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.+%=".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.starts_with(['.', '-']) && name.bytes().all(plain)
}

/// Whether it is such names, apart by `/`: never absolute, never upwards, and not too deep.
pub fn is_plain_path(path: &str) -> bool {
    path.split('/').count() <= DEPTH_MAX && path.split('/').all(is_plain_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_harmless_in_paths_sql_and_terminals_is_a_name() {
        for path in ["tcp.parquet", "case=reno/rate=25Mbit/loss=0.1%/repeat=1/plan.json", "a_b-c+d/r1"] {
            assert!(is_plain_path(path), "{path}");
        }
        let long = "x".repeat(256);
        let deep = "x/".repeat(DEPTH_MAX) + "x";
        for path in [
            "",
            ".",
            "..",
            "/etc/passwd",
            "a/../b",
            "a//b",
            "a/",
            ".hidden",
            "-rf",
            "a b",
            "a\"b",
            "a'b",
            "a;b",
            "a\\b",
            "a\u{1b}[2J",
            "a\nb",
            "ä",
            "a\0",
            &long,
            &deep,
        ] {
            assert!(!is_plain_path(path), "{path:?}");
        }
    }
}
