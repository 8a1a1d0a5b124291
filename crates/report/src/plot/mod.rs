//! SVG charts from numbers. Knows nothing of TCP, files or pages.
//!
//! - [`scale`]: linear and logarithmic axes with round ticks.
//! - [`decimate`]: long series made short without losing their extremes.
//! - [`path`]: points as compact SVG path data.
//! - [`svg`]: text of elements, escaped.
//! - [`time`]: lines, steps and dots over time.
//! - [`dots`]: one row of marks per category.
//!
//! Drawing is in units of a `viewBox` that a page scales. Colours, dashes and strokes are classes of `figure.css`,
//! so that light, dark and print need no second drawing.

pub mod decimate;
pub mod dots;
pub mod path;
pub mod scale;
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
        self.element("", "")
    }

    /// As a file of its own.
    pub fn standalone(&self) -> String {
        let namespace = r#" xmlns="http://www.w3.org/2000/svg""#;
        let style = format!("<style>{STYLE}</style><rect class=\"paper\" width=\"100%\" height=\"100%\"/>");
        format!("{}\n", self.element(namespace, &style))
    }

    fn element(&self, namespace: &str, style: &str) -> String {
        let (id, height) = (&self.id, svg::coordinate(self.height));
        let (title, description) = (svg::escape(&self.title), svg::escape(&self.description));
        format!(
            "<svg{namespace} class=\"figure\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
             aria-labelledby=\"{id}-t {id}-d\"{data}><title id=\"{id}-t\">{title}</title>\
             <desc id=\"{id}-d\">{description}</desc>{style}{body}</svg>",
            data = self.data,
            body = self.body,
        )
    }
}
