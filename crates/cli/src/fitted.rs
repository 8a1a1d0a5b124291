//! Tables and prose that fit the terminal: no word is cut, no column holds nothing but dashes, and columns that have no
//! room are left out whole and named.

use comfy_table::{ColumnConstraint::LowerBoundary, Table, Width};

/// A column's blanks on both sides, as comfy-table draws them.
const PADDING: usize = 2;
/// Text that is longer may be broken between words.
const UNBROKEN: usize = 24;

/// The table as text, and beneath it the columns for which there is no room. `least` names columns by number, those
/// that are left out first; after them the last ones go. The first column always stays.
pub fn fitted(table: Table, least: &[usize]) -> String {
    let room = table.width().map(usize::from);
    fitted_to(table, least, room)
}

/// The columns of standard output, where it is a terminal.
pub fn room() -> Option<usize> {
    Table::new().width().map(usize::from)
}

/// A line of prose in lines that fit the terminal; those behind the first begin with `indent`. As it is where nobody's
/// terminal has to be fitted.
pub fn prose(line: &str, indent: &str) -> String {
    match room() {
        Some(room) => wrapped(line, indent, room).trim_end_matches('\n').to_owned(),
        None => line.to_owned(),
    }
}

/// Every line of a text, each as [`prose`] that goes on two columns further in.
pub fn prose_lines(text: &str) -> String {
    let one = |line: &str| {
        let indent = line.len() - line.trim_start().len() + 2;
        prose(line, &" ".repeat(indent)) + "\n"
    };
    text.lines().map(one).collect()
}

/// Breaks a text at blanks into lines of up to `width` columns; those behind the first begin with `indent`. A word that
/// is longer stays whole. The last line ends, too.
pub fn wrapped(text: &str, indent: &str, width: usize) -> String {
    let (mut out, mut line) = (String::new(), String::new());
    let mut is_begun = false;
    for word in text.split(' ') {
        if is_begun && line.chars().count() + 1 + word.chars().count() > width {
            out.push_str(line.trim_end());
            out.push('\n');
            line = format!("{indent}{word}");
            continue;
        }
        if is_begun {
            line.push(' ');
        }
        line.push_str(word);
        is_begun = true;
    }
    out + line.trim_end() + "\n"
}

fn fitted_to(mut table: Table, least: &[usize], room: Option<usize>) -> String {
    let columns = table.column_count();
    let texts: Vec<Vec<String>> = (0..columns).map(|index| cells(&table, index)).collect();
    let headings: Vec<String> = (0..columns).map(|index| heading(&table, index)).collect();
    let widths: Vec<usize> = texts.iter().zip(&headings).enumerate().map(least_width).collect();
    let mut shown: Vec<usize> = (0..columns)
        .filter(|index| *index == 0 || texts[*index].is_empty() || !is_void(&texts[*index]))
        .collect();
    let mut left_out = Vec::new();
    let order = least.iter().copied().chain((1..columns).rev().filter(|index| !least.contains(index)));
    for index in order {
        if room.is_none_or(|room| takes(&widths, &shown) <= room) {
            break;
        }
        if shown.contains(&index) {
            shown.retain(|one| *one != index);
            left_out.push(headings[index].clone());
        }
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        let width = Width::Fixed(u16::try_from(widths[index] + PADDING).unwrap_or(u16::MAX));
        column.set_constraint(if shown.contains(&index) {
            LowerBoundary(width)
        } else {
            comfy_table::ColumnConstraint::Hidden
        });
    }
    format!("{table}{}", named(&left_out, room.unwrap_or(usize::MAX)))
}

/// The headings of columns that were left out, in lines that are no longer than the room.
fn named(left_out: &[String], room: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    for (index, name) in left_out.iter().enumerate() {
        let word = format!("{name}{}", if index + 1 < left_out.len() { ";" } else { "" });
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= room => {
                *line = format!("{line} {word}")
            }
            Some(_) => lines.push(format!("  {word}")),
            None => lines.push(format!("no room for: {word}")),
        }
    }
    lines.into_iter().map(|line| format!("\n{line}")).collect()
}

/// With what stands between columns and at both ends.
fn takes(widths: &[usize], shown: &[usize]) -> usize {
    shown.iter().map(|index| widths[*index] + PADDING + 1).sum::<usize>() + 1
}

/// What a column needs at least: a figure stays with its unit, longer text is broken between words.
fn least_width((index, (texts, heading)): (usize, (&Vec<String>, &String))) -> usize {
    let lines = || texts.iter().flat_map(|text| text.lines());
    let of_line = |line: &str| match line.chars().count() {
        long if index == 0 || long > UNBROKEN => longest_word(line),
        short => short,
    };
    lines().map(of_line).max().unwrap_or(0).max(longest_word(heading))
}

fn longest_word(text: &str) -> usize {
    text.split_whitespace().map(|word| word.chars().count()).max().unwrap_or(0)
}

fn is_void(texts: &[String]) -> bool {
    texts.iter().all(|text| matches!(text.trim(), "" | "–" | "-"))
}

fn cells(table: &Table, index: usize) -> Vec<String> {
    table
        .row_iter()
        .map(|row| row.cell_iter().nth(index).map_or_else(String::new, |cell| cell.content()))
        .collect()
}

fn heading(table: &Table, index: usize) -> String {
    table.header().and_then(|row| row.cell_iter().nth(index)).map_or_else(String::new, |cell| cell.content())
}

#[cfg(test)]
mod tests {
    use super::*;
    use comfy_table::{ContentArrangement, presets};

    #[test]
    fn prose_is_broken_between_words_and_goes_on_further_in() {
        let text = "mend:  load the module sch_netem, or use the default driver (--driver af_packet)";
        for width in 20..100 {
            let lines = wrapped(text, "       ", width);
            assert!(lines.lines().all(|line| line.chars().count() <= width), "{width}\n{lines}");
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(words(&lines), words(text));
        }
        assert_eq!(wrapped("a averyveryverylongword b", "  ", 8), "a\n  averyveryverylongword\n  b\n");
    }

    fn shown(room: usize) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_BORDERS_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(room as u16);
        table.set_header(["case", "goodput of measured", "published", "fairness", "valid"]);
        table.add_row(["reno through the relay", "43.0 Mbit/s", "–", "0.99", "1 of 1"]);
        fitted_to(table, &[3], Some(room))
    }

    #[test]
    fn at_any_width_no_line_is_longer_no_word_is_cut_and_nothing_is_silently_missing() {
        for room in 37..120 {
            let text = shown(room);
            let table = text.lines().take_while(|line| !line.starts_with("no room"));
            assert!(table.clone().all(|line| line.chars().count() <= room), "{room}\n{text}");
            let whole = ["through", "relay", "goodput", "43.0 Mbit/s"];
            assert!(whole.iter().all(|word| text.contains(word)), "{room}\n{text}");
            assert!(text.contains("0.99") || text.contains("no room for: fairness"), "{room}\n{text}");
            assert!(!text.contains("published"), "{text}");
        }
        assert!(shown(60).contains("valid") && !shown(60).contains("no room"), "{}", shown(60));
    }
}
