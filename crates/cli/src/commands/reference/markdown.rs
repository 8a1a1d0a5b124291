//! Text of the program as Markdown.

/// First lines of a page that is generated.
pub fn heading(title: &str, from: &str) -> String {
    format!("# {title}\n\n<!-- Made by `make reference` from {from}; changes here are lost. -->\n\n")
}

/// Text of one cell of a table: one line, nothing that Markdown would take for its own.
pub fn cell(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    escape(&line).replace('|', "\\|")
}

/// Prose outside of code spans, with the signs of HTML escaped; words in 'quotes' that are commands become code.
pub fn escape(text: &str) -> String {
    let parts = text.split('`').enumerate().map(|(index, part)| match index % 2 {
        0 => quoted(part),
        _ => part.to_owned(),
    });
    parts.collect::<Vec<_>>().join("`")
}

/// 'longfat lab list' becomes code; an apostrophe stays one.
fn quoted(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('\'') {
        let (before, behind) = (&rest[..at], &rest[at + 1..]);
        let opens = before.chars().last().is_none_or(|last| !last.is_alphanumeric());
        match behind.find('\'').filter(|_| opens) {
            Some(end) if !behind[..end].is_empty() => {
                out.push_str(&format!("{before}\u{1}{}\u{1}", &behind[..end]));
                rest = &behind[end + 1..];
            }
            _ => {
                out.push_str(&format!("{before}'"));
                rest = behind;
            }
        }
    }
    out.push_str(rest);
    // Inside code nothing is escaped.
    let parts = out.split('\u{1}').enumerate().map(|(index, part)| match index % 2 {
        0 => part.replace('<', "&lt;").replace('*', "\\*"),
        _ => format!("`{part}`"),
    });
    parts.collect()
}

/// A table without rows is nothing.
pub fn table(head: [&str; 3], rows: &[[String; 3]]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let line = |cells: [&str; 3]| format!("| {} |\n", cells.join(" | "));
    let body: String = rows.iter().map(|row| line([&row[0], &row[1], &row[2]])).collect();
    format!("{}|---|---|---|\n{body}\n", line(head))
}

/// Paragraphs as they are; lines that begin with a blank are code.
pub fn prose(text: &str) -> String {
    let lines = text.trim_end().lines().map(|line| match line.strip_prefix("  ") {
        Some(code) => format!("    {code}"),
        None => escape(line),
    });
    format!("{}\n\n", lines.collect::<Vec<_>>().join("\n"))
}

/// A block of code.
pub fn code(text: &str) -> String {
    format!("```text\n{}\n```\n\n", text.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_in_quotes_are_code_and_nothing_else_is_markdown() {
        let text = "The relay's 'longfat relay status <N>' and `a<b`: <NAME> * 2";
        assert_eq!(escape(text), "The relay's `longfat relay status <N>` and `a<b`: &lt;NAME> \\* 2");
        assert_eq!(cell("'a | b'\n  c"), "`a \\| b` c");
    }
}
