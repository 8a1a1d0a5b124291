//! Figures as people read them, with the unit that suits their size.

/// Octets as people read them.
pub fn bytes(bytes: f64) -> String {
    scaled(bytes, "B", &["kB", "MB", "GB", "TB"])
}

/// Bits per second as people read them.
pub fn rate(bps: f64) -> String {
    scaled(bps, "bit/s", &["kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"])
}

/// Microseconds as people read them.
pub fn micros(us: f64) -> String {
    duration(us / 1e6)
}

/// A number and its noun, in the plural where that is due.
pub fn counted(number: u64, name: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {name}{plural}")
}

/// Seconds as people read them.
pub fn duration(seconds: f64) -> String {
    match seconds.abs() {
        s if s >= 1.0 => format!("{} s", three(seconds)),
        s if s >= 1e-3 => format!("{} ms", three(seconds * 1e3)),
        0.0 => "0 s".to_owned(),
        _ => format!("{} µs", three(seconds * 1e6)),
    }
}

fn scaled(value: f64, unit: &str, larger: &[&str]) -> String {
    let mut value = value;
    let mut unit = unit;
    for name in larger {
        if value < 1000.0 {
            break;
        }
        (value, unit) = (value / 1000.0, name);
    }
    format!("{} {unit}", three(value))
}

/// Three digits that matter.
fn three(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 99.95 || v == 0.0 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_written_as_people_read_them() {
        assert_eq!(bytes(999.0), "999 B");
        assert_eq!(bytes(1_448_000.0), "1.45 MB");
        assert_eq!(rate(45e6), "45 Mbit/s");
        assert_eq!(duration(0.0123), "12.3 ms");
        assert_eq!(duration(3.0), "3 s");
        assert_eq!(micros(12.0), "12 µs");
    }
}
