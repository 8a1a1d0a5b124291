//! One row of marks per category, on a common axis from zero.

use super::{
    Figure, WIDTH, columns, data_row, from_the_left,
    scale::Scale,
    svg::{Mark, line, mark, text, text_width, wrap},
};
use serde_json::json;

const LEFT: f64 = 8.0;
const RIGHT: f64 = 12.0;
const LEGEND_TOP: f64 = 36.0;
const LINE: f64 = 15.0;
const TRACK: f64 = 34.0;
const GAP: f64 = 5.0;

/// Ratio of the greatest to the least mark from which the axis is logarithmic.
const FAR_APART: f64 = 8.0;

/// A kind of mark, with its place in the legend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// Shape.
    pub mark: Mark,
    /// Colour class of the style sheet: `c0` to `c5`, `muted`.
    pub class: &'static str,
    /// Plain text.
    pub label: &'static str,
}

/// A mark of a row.
#[derive(Debug, Clone, PartialEq)]
pub struct Dot {
    /// Which kind, as an index into [`DotChart::kinds`].
    pub kind: usize,
    /// Place along the row.
    pub value: f64,
    /// Shown on hovering, plain text.
    pub hint: String,
}

/// A category.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Plain text; wrapped.
    pub label: String,
    /// Figure in words, at the right end of the label's last line.
    pub note: String,
    /// Drawn first to last.
    pub dots: Vec<Dot>,
}

/// Rows of marks.
#[derive(Debug, Clone, PartialEq)]
pub struct DotChart {
    /// As [`Figure::id`].
    pub id: String,
    /// With the unit.
    pub title: String,
    /// As [`Figure::description`].
    pub description: String,
    /// Kinds of marks; only those used are in the legend.
    pub kinds: Vec<Kind>,
    /// Top to bottom.
    pub rows: Vec<Row>,
}

impl DotChart {
    /// Draws it.
    pub fn draw(&self) -> Figure {
        let (legend, mut y) = self.legend();
        let rows_top = y;
        let scale = self.scale();
        let mut rows = String::new();
        for row in &self.rows {
            let (drawn, height) = self.row(row, y, &scale);
            rows += &drawn;
            y += height;
        }
        Figure {
            id: self.id.clone(),
            title: self.title.clone(),
            description: self.description.clone(),
            height: y + 24.0,
            data: columns(&["Row", "Mark", &self.title]),
            body: self.heading(&scale) + &legend + &axis(&scale, rows_top, y) + &rows,
        }
    }

    /// From zero; logarithmic when rows differ so much that the smaller would lie in one heap.
    fn scale(&self) -> Scale {
        let values =
            || self.rows.iter().flat_map(|row| &row.dots).map(|dot| dot.value).filter(|v| v.is_finite());
        let greatest = values().fold(0.0, f64::max);
        let least = values().fold(f64::INFINITY, f64::min);
        let (from, to) = (LEFT, WIDTH - RIGHT);
        // A zero has no place on a logarithmic axis.
        if least > 0.0 && greatest > least * FAR_APART {
            return Scale::logarithmic(least, greatest, from, to);
        }
        Scale::from_zero(greatest, from, to)
    }

    fn heading(&self, scale: &Scale) -> String {
        let axis = if scale.is_logarithmic() { " (logarithmic)" } else { "" };
        text(0.0, 15.0, "heading", &format!("{}{axis}", self.title))
    }

    /// The legend, and where the rows begin.
    fn legend(&self) -> (String, f64) {
        let used = |index: usize| self.rows.iter().flat_map(|row| &row.dots).any(|dot| dot.kind == index);
        let kinds = || self.kinds.iter().enumerate().filter(|(index, _)| used(*index)).map(|(_, kind)| kind);
        let places = from_the_left(kinds().map(|kind| 17.0 + text_width(kind.label)), 12.0);
        let (mut y, mut legend) = (LEGEND_TOP, String::new());
        for (kind, (row, x)) in kinds().zip(places) {
            y = LEGEND_TOP + row as f64 * 20.0;
            legend += &mark(kind.mark, (x + 6.0, y - 4.0), kind.class);
            legend += &text(x + 17.0, y, "legend", kind.label);
        }
        (legend, y + 14.0)
    }

    fn row(&self, row: &Row, top: f64, scale: &Scale) -> (String, f64) {
        let room = WIDTH - LEFT - RIGHT - text_width(&row.note) - 16.0;
        let lines = wrap(&row.label, room.max(120.0), 2);
        let mut drawn = String::new();
        for (index, label) in lines.iter().enumerate() {
            drawn += &text(LEFT, top + LINE * (index + 1) as f64 - 2.0, "label halo", label);
        }
        let label_bottom = top + LINE * lines.len() as f64;
        drawn += &text(WIDTH - RIGHT, label_bottom - 2.0, "value end halo", &row.note);
        let middle = label_bottom + TRACK / 2.0;
        drawn += &line((LEFT, middle), (WIDTH - RIGHT, middle), "track");
        drawn.extend(row.dots.iter().map(|dot| self.dot(row, dot, middle, scale)));
        (drawn, LINE * lines.len() as f64 + TRACK + GAP)
    }

    fn dot(&self, row: &Row, dot: &Dot, y: f64, scale: &Scale) -> String {
        let kind = self.kinds[dot.kind.min(self.kinds.len() - 1)];
        // Diamonds hang below the track: they must be seen where they coincide with other marks.
        let y = if kind.mark == Mark::Diamond { y + 11.0 } else { y };
        let drawn = mark(kind.mark, (scale.position(dot.value), y), kind.class);
        let data = data_row(&json!([row.label, kind.label, dot.value]));
        format!("<g{data}><title>{}</title>{drawn}</g>", super::svg::escape(&dot.hint))
    }
}

fn axis(scale: &Scale, top: f64, bottom: f64) -> String {
    let tick = |tick: super::scale::Tick| {
        let x = scale.position(tick.value);
        let anchor = if x < LEFT + 8.0 { "tick" } else { "tick middle" };
        line((x, top), (x, bottom), "grid") + &text(x, bottom + 16.0, anchor, &tick.label)
    };
    scale.ticks(5).into_iter().map(tick).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_hints_and_used_kinds_are_drawn_and_escaped() {
        let kind = |label| Kind { mark: Mark::Ring, class: "c0", label };
        let dot = Dot { kind: 0, value: 5.0, hint: "<5>".into() };
        let chart = DotChart {
            id: "d".into(),
            title: "Goodput".into(),
            description: String::new(),
            kinds: vec![kind("used"), kind("unused")],
            rows: vec![Row { label: "<b>".into(), note: "5 & more".into(), dots: vec![dot] }],
        };
        let svg = chart.draw().inline();
        assert!(svg.contains("&lt;b&gt;") && svg.contains("&lt;5&gt;") && svg.contains("5 &amp; more"));
        assert!(svg.contains(">used<") && !svg.contains("unused"));
    }
}
