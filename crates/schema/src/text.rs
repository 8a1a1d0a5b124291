//! Text that others wrote (peers, files, names of hosts), made safe to show: a terminal obeys control characters, and a
//! reader believes what a line seems to say.
//!
//! Escapes are those of JSON (`\u001b`), so that a JSON text stays what it is.

use std::borrow::Cow;

/// A text of one or more lines: all control characters but line feeds and tabs, and what turns the direction of
/// writing, are escaped.
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, |c| is_hidden(c) && !matches!(c, '\n' | '\t'))
}

/// A text that is to be part of one line: line feeds and tabs are escaped, too.
pub fn one_line(text: &str) -> Cow<'_, str> {
    escaped(text, is_hidden)
}

/// The beginning of a text that may be of any length, with a sign where it was longer than so many bytes.
pub fn shortened(text: &str, most_bytes: usize) -> Cow<'_, str> {
    if text.len() <= most_bytes {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("{}…", &text[..text.floor_char_boundary(most_bytes)]))
}

fn escaped(text: &str, is_hidden: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_hidden(c) {
            safe.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            safe.push(c);
        }
    }
    Cow::Owned(safe)
}

/// Control characters (C0, DEL, C1: U+009B begins an escape sequence like ESC [ does), line and paragraph separators,
/// and the marks and overrides of direction (Unicode Standard Annex 9).
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_a_terminal_would_obey_is_shown_and_all_else_stays() {
        assert_eq!(
            printable("a\u{1b}[2J\tb\nc\r\u{9b}31m\u{7f}"),
            "a\\u001b[2J\tb\nc\\u000d\\u009b31m\\u007f"
        );
        assert_eq!(printable("evil\u{202e}txt.exe"), "evil\\u202etxt.exe");
        assert_eq!(one_line("one\nlongfat: two"), "one\\u000alongfat: two");
        assert!(matches!(printable("Grüße, 日本語, ─│"), Cow::Borrowed(_)));
    }

    #[test]
    fn a_text_of_any_length_is_shown_up_to_a_length() {
        assert!(matches!(shortened("Grüße", 7), Cow::Borrowed("Grüße")));
        assert_eq!((shortened("Grüße", 6), shortened("Grüße", 3)), ("Grüß…".into(), "Gr…".into()));
    }

    #[test]
    fn json_stays_json_of_the_same_value() {
        let value = serde_json::json!({ "name\u{9b}": "a\u{7f}\u{202e}\u{1b}\nb" });
        let shown = printable(&value.to_string()).into_owned();
        assert!(!shown.contains(is_hidden), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
    }

    proptest! {
        #[test]
        fn nothing_that_is_shown_is_obeyed(text in "\\PC*|(?s).*") {
            prop_assert!(!one_line(&text).contains(is_hidden));
            let lines = printable(&text).into_owned();
            prop_assert!(!lines.contains(|c| is_hidden(c) && c != '\n' && c != '\t'));
        }
    }
}
