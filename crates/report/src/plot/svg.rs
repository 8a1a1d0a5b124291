//! Text of SVG and HTML elements. Whatever comes from a file passes through [`escape`].

use std::fmt::Write as _;

/// Makes any text safe inside elements and double- or single-quoted attributes, in HTML and in XML. Characters
/// that XML forbids become the replacement character.
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            '\t' | '\n' => safe.push(c),
            '\u{fffe}' | '\u{ffff}' => safe.push('\u{fffd}'),
            c if c.is_control() => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

/// A coordinate with at most one decimal.
pub fn coordinate(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

/// Text at a point; `class` is one of the style sheet's.
pub fn text(x: f64, y: f64, class: &str, content: &str) -> String {
    let (x, y) = (coordinate(x), coordinate(y));
    format!("<text x=\"{x}\" y=\"{y}\" class=\"{class}\">{}</text>", escape(content))
}

/// A straight line.
pub fn line(from: (f64, f64), to: (f64, f64), class: &str) -> String {
    let mut d = String::new();
    for (command, (x, y)) in [('M', from), ('L', to)] {
        // Writing to a String cannot fail.
        let _ = write!(d, "{command}{} {}", coordinate(x), coordinate(y));
    }
    format!("<path class=\"{class}\" d=\"{d}\"/>")
}

/// Shape of a mark: never told apart by colour alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// A ring.
    Ring,
    /// A filled disc.
    Disc,
    /// A standing bar.
    Bar,
    /// A diamond.
    Diamond,
    /// A cross: what does not count.
    Cross,
}

/// A mark around a point.
pub fn mark(mark: Mark, (x, y): (f64, f64), class: &str) -> String {
    let at = |dx: f64, dy: f64| format!("{} {}", coordinate(x + dx), coordinate(y + dy));
    let (shape, d) = match mark {
        Mark::Ring | Mark::Disc => {
            let kind = if mark == Mark::Ring { "ring" } else { "disc" };
            let (x, y) = (coordinate(x), coordinate(y));
            return format!("<circle class=\"{kind} {class}\" cx=\"{x}\" cy=\"{y}\" r=\"4.5\"/>");
        }
        Mark::Bar => ("bar", format!("M{}L{}", at(0.0, -9.0), at(0.0, 9.0))),
        Mark::Diamond => {
            ("disc", format!("M{}L{}L{}L{}Z", at(0.0, -6.5), at(5.5, 0.0), at(0.0, 6.5), at(-5.5, 0.0)))
        }
        Mark::Cross => {
            ("cross", format!("M{}L{}M{}L{}", at(-4.0, -4.0), at(4.0, 4.0), at(-4.0, 4.0), at(4.0, -4.0)))
        }
    };
    format!("<path class=\"{shape} {class}\" d=\"{d}\"/>")
}

/// Width of text at 12 units, estimated generously: there are no font metrics here.
pub fn text_width(text: &str) -> f64 {
    let wide = |c: char| if c.is_ascii() { 6.6 } else { 10.0 };
    text.chars().map(wide).sum()
}

/// Breaks text into at most `lines` lines of about `width` units; what does not fit ends in an ellipsis.
pub fn wrap(text: &str, width: f64, lines: usize) -> Vec<String> {
    let mut rows: Vec<String> = Vec::new();
    let mut row = String::new();
    for word in text.split_whitespace() {
        let joined = if row.is_empty() { word.to_owned() } else { format!("{row} {word}") };
        if row.is_empty() || text_width(&joined) <= width {
            row = joined;
        } else {
            rows.push(std::mem::replace(&mut row, word.to_owned()));
        }
    }
    rows.push(row);
    let cut = rows.len() > lines;
    rows.truncate(lines.max(1));
    let count = rows.len();
    for (index, row) in rows.iter_mut().enumerate() {
        ellipsis(row, width, cut && index + 1 == count);
    }
    rows
}

fn ellipsis(row: &mut String, width: f64, cut: bool) {
    let mut cut = cut;
    while text_width(row) > width && row.pop().is_some() {
        cut = true;
    }
    if cut {
        row.push('…');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn wrapped_text_keeps_its_words_and_says_when_some_are_missing() {
        assert_eq!(wrap("Reno end to end", 60.0, 2), ["Reno end", "to end"]);
        assert_eq!(wrap("one two three", 24.0, 2), ["one", "two…"]);
        assert_eq!(wrap("", 60.0, 2), [""]);
    }

    proptest! {
        #[test]
        fn escaped_text_holds_nothing_that_markup_would_mind(text in any::<String>()) {
            let safe = escape(&text);
            prop_assert!(!safe.contains(['<', '>', '"', '\'']));
            prop_assert!(safe.chars().all(|c| !c.is_control() || c == '\n' || c == '\t'));
        }

        #[test]
        fn wrapped_lines_are_few_and_narrow(text in ".{0,200}", lines in 1usize..4) {
            let rows = wrap(&text, 100.0, lines);
            prop_assert!(rows.len() <= lines);
            prop_assert!(rows.iter().all(|row| text_width(row) <= 100.0 + 10.0));
        }
    }
}
