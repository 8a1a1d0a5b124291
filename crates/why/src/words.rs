//! Figures in words.

use longfat_analyze::words;

/// `38.2 Mbit/s`
pub fn rate(bps: f64) -> String {
    words::rate(bps)
}

/// `28.4 ms`
pub fn duration(us: impl Into<u64>) -> String {
    words::duration(us.into() as f64 / 1e6)
}

/// `512 KiB`: windows and buffers are powers of two.
pub fn size(bytes: impl Into<u64>) -> String {
    let bytes = bytes.into() as f64;
    match bytes {
        large if large >= 1_048_576.0 => format!("{:.1} MiB", large / 1_048_576.0),
        middle if middle >= 1024.0 => format!("{:.0} KiB", middle / 1024.0),
        small => format!("{small:.0} bytes"),
    }
}
