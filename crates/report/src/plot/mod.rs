//! SVG charts from numbers. Knows nothing of TCP, files or pages.
//!
//! - [`scale`]: linear and logarithmic axes with round ticks.
//! - [`decimate`]: long series made short without losing their extremes.
//! - [`path`]: points as compact SVG path data.
//! - [`svg`]: text of elements, escaped.
//! - [`time`]: lines, steps and dots over time.
//! - [`lines`]: lines over an axis of numbers.
//! - [`dots`]: one row of marks per category.
//! - [`histogram`]: a distribution.
//! - [`scatter`]: two figures against each other.
//!
//! Drawing is in units of a `viewBox` that a page scales. Colours, dashes and strokes are classes of `figure.css`,
//! so that light, dark and print need no second drawing.

pub mod decimate;
pub mod dots;
pub mod histogram;
pub mod lines;
pub mod path;
pub mod scale;
pub mod scatter;
pub mod svg;
pub mod time;

/// The style sheet of every figure; a page includes it once, a file of its own carries it.
pub const STYLE: &str = include_str!("figure.css");

/// Width of every figure in `viewBox` units: about a phone's, so that text stays readable there.
pub const WIDTH: f64 = 440.0;

/// A drawn figure.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// Unique in a page; no character that HTML or SVG would mind.
    pub id: String,
    /// Short title, plain text.
    pub title: String,
    /// What it shows, for those who cannot see it; plain text.
    pub description: String,
    /// Height in `viewBox` units; the width is [`WIDTH`].
    pub height: f64,
    /// Attributes of the outermost element for the page's script; already escaped.
    pub data: String,
    /// The elements.
    pub body: String,
}

impl Figure {
    /// For a page that holds [`STYLE`].
    pub fn inline(&self) -> String {
        self.element("", (0.0, 0.0), "")
    }

    /// As a file of its own: light, with a margin, and without what programs other than browsers do not know.
    pub fn standalone(&self) -> String {
        let namespace = r#" xmlns="http://www.w3.org/2000/svg""#;
        let paper = r#"<rect class="paper" x="-12" y="-12" width="100%" height="100%"/>"#;
        let style = format!("<style>{}</style>{paper}", resolved_style());
        format!("{}\n", self.element(namespace, (12.0, 12.0), &style))
    }

    fn element(&self, namespace: &str, (side, top): (f64, f64), style: &str) -> String {
        let (width, height) = (WIDTH + 2.0 * side, svg::coordinate(self.height + 2.0 * top));
        let id = &self.id;
        let (title, description) = (svg::escape(&self.title), svg::escape(&self.description));
        format!(
            "<svg{namespace} class=\"figure\" viewBox=\"{} {} {width} {height}\" role=\"img\" \
             aria-labelledby=\"{id}-t {id}-d\"{data}><title id=\"{id}-t\">{title}</title>\
             <desc id=\"{id}-d\">{description}</desc>{style}{body}</svg>",
            0.0 - side,
            0.0 - top,
            data = self.data,
            body = self.body,
        )
    }
}

/// Row and x of legend entries that are so wide, filled from the left.
fn from_the_left(widths: impl Iterator<Item = f64>, gap: f64) -> impl Iterator<Item = (usize, f64)> {
    let (mut row, mut x) = (0, 0.0);
    widths.map(move |width| {
        if x > 0.0 && x + width > WIDTH {
            (row, x) = (row + 1, 0.0);
        }
        let placed = (row, x);
        x += width + gap;
        placed
    })
}

/// Names of the columns of a figure's data, for the page's script to write as CSV, with units.
fn columns(names: &[&str]) -> String {
    format!(" data-columns=\"{}\"", svg::escape(&serde_json::json!(names).to_string()))
}

/// One row of a figure's data, an array, as an attribute of the element that shows it.
fn data_row(row: &serde_json::Value) -> String {
    format!(" data-row=\"{}\"", svg::escape(&row.to_string()))
}

/// [`STYLE`] with the values of its first `:root` in place of its variables: drawing programs and converters know
/// neither variables nor media queries.
fn resolved_style() -> String {
    let root =
        STYLE.split_once(":root{").and_then(|(_, rest)| rest.split_once('}')).map_or("", |(root, _)| root);
    let values = root.split(';').filter_map(|declaration| declaration.trim().split_once(':'));
    let variables: Vec<(&str, &str)> = values.filter(|(name, _)| name.starts_with("--")).collect();
    let rules = STYLE.lines().filter(|line| line.starts_with("svg.figure")).collect::<Vec<_>>().join("\n");
    variables.iter().fold(rules, |rules, (name, value)| rules.replace(&format!("var({name})"), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_its_own_needs_no_variables_and_no_media_queries() {
        let style = resolved_style();
        assert!(!style.contains("var(") && !style.contains("@media") && !style.contains("--"), "{style}");
        assert!(style.contains("svg.figure .s0{stroke:#0072b2}"), "{style}");
    }
}
