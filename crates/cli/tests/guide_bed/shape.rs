//! Whether an output has the shape that a page shows: words as they stand, figures and widths as they come.

const UNITS: [&str; 24] = [
    "bit/s", "kbit/s", "Mbit/s", "Gbit/s", "bit", "kbit", "Mbit", "Gbit", "B", "kB", "KB", "MB", "GB", "KiB",
    "MiB", "GiB", "ns", "us", "ms", "s", "min", "h", "%", "KBit",
];

/// Lines in order; `…` alone stands for any lines.
pub fn compare(wanted: &[String], found: &[String]) -> Result<(), String> {
    let wanted: Vec<_> = wanted.iter().map(|line| shape(line)).filter(|line| !line.is_empty()).collect();
    let found: Vec<_> = found.iter().map(|line| shape(line)).filter(|line| !line.is_empty()).collect();
    if lines_match(&wanted, &found) {
        return Ok(());
    }
    let is_missing = |line: &&String| *line != "…" && !found.iter().any(|other| matches(line, other));
    let missing = wanted.iter().find(is_missing);
    Err(missing.map_or("lines are in another order, or there are more".into(), |line| {
        format!("no line like: {line}")
    }))
}

fn lines_match(wanted: &[String], found: &[String]) -> bool {
    match (wanted.split_first(), found.split_first()) {
        (None, _) => found.is_empty(),
        (Some((first, rest)), _) if first == "…" => {
            (0..=found.len()).any(|skip| lines_match(rest, &found[skip..]))
        }
        (Some((first, rest)), Some((line, more))) => matches(first, line) && lines_match(rest, more),
        (Some(_), None) => false,
    }
}

/// Whether a line fits a pattern with `…` for any text.
fn matches(pattern: &str, line: &str) -> bool {
    let mut parts = pattern.split('…');
    let Some(mut rest) = parts.next().and_then(|first| line.strip_prefix(first)) else { return false };
    let mut parts: Vec<_> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// A line without its figures, units, widths and rules.
fn shape(line: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in line.split_whitespace().map(figures) {
        let rest = word.trim_start_matches('#');
        let behind_figure = words.last().is_some_and(|last: &String| last.ends_with('#'));
        match () {
            () if rest.len() < word.len() && UNITS.contains(&rest) => words.push("#".into()),
            () if behind_figure && UNITS.contains(&word.as_str()) => {}
            () => words.push(word),
        }
    }
    words.join(" ")
}

/// Every number becomes `#`, every run of one sign for drawing a single one.
fn figures(word: &str) -> String {
    let mut out = String::new();
    for letter in word.chars() {
        let last = out.chars().last();
        match letter {
            '0'..='9' if last == Some('#') => {}
            '0'..='9' => out.push('#'),
            '.' | ',' if last == Some('#') => {}
            '─' | '═' | '-' | '━' | '█' if last == Some(letter) => {}
            _ => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{compare, shape};

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn figures_units_and_widths_do_not_count_and_words_do() {
        assert_eq!(shape("  31.2 Mbit/s   in 5.000 s ────"), shape("1 Gbit/s in 12 ms ──"));
        assert_ne!(shape("31.2 Mbit/s lost"), shape("31.2 Mbit/s kept"));
    }

    #[test]
    fn a_line_that_is_missing_or_one_too_many_is_found() {
        assert!(compare(&lines("a 1\nb"), &lines("a 2\nb")).is_ok());
        assert!(compare(&lines("a 1\n…\nc"), &lines("a 2\nb\nb\nc")).is_ok());
        assert!(compare(&lines("a … z"), &lines("a much in between z")).is_ok());
        assert!(compare(&lines("a\nb"), &lines("a")).is_err());
        assert!(compare(&lines("a"), &lines("a\nb")).is_err());
        assert!(compare(&lines("…\nc"), &lines("a\nb")).unwrap_err().contains("no line like: c"));
    }
}
