//! A distribution as bars over a logarithmic axis.

use super::{
    Figure, WIDTH, columns, data_row,
    scale::Scale,
    svg::{coordinate, line, text},
};
use serde_json::json;
use std::fmt::Write as _;

const LEFT: f64 = 46.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 28.0;
const HEIGHT: f64 = 140.0;
const AXIS_HEIGHT: f64 = 28.0;

/// Values of one size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bar {
    /// Least value, above zero.
    pub from: f64,
    /// End of the bar.
    pub to: f64,
    /// Number of values.
    pub count: u64,
}

/// A distribution.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    /// As [`Figure::id`].
    pub id: String,
    /// Plain text.
    pub title: String,
    /// As [`Figure::description`].
    pub description: String,
    /// Unit of the axis.
    pub unit: String,
    /// In order.
    pub bars: Vec<Bar>,
}

impl Histogram {
    /// Draws it.
    pub fn draw(&self) -> Figure {
        let least = self.bars.first().map_or(1.0, |bar| bar.from);
        let most = self.bars.last().map_or(10.0, |bar| bar.to);
        let x = Scale::logarithmic(least, most, LEFT, WIDTH - RIGHT);
        let total = self.bars.iter().map(|bar| bar.count).sum::<u64>().max(1) as f64;
        let greatest = self.bars.iter().map(|bar| bar.count).max().unwrap_or(1) as f64 / total * 100.0;
        let y = Scale::from_zero(greatest, TOP + HEIGHT, TOP);
        let mut body = text(0.0, 15.0, "heading", &format!("{}, % of gaps", self.title));
        for tick in y.ticks(4) {
            let at = y.position(tick.value);
            body += &line((LEFT, at), (WIDTH - RIGHT, at), "grid");
            body += &text(LEFT - 6.0, at + 4.0, "tick end", &tick.label);
        }
        body += &self.bars(&x, &y, total);
        body += &self.axis(&x);
        Figure {
            id: self.id.clone(),
            title: self.title.clone(),
            description: self.description.clone(),
            height: TOP + HEIGHT + AXIS_HEIGHT,
            data: columns(&[&format!("From, {}", self.unit), &format!("To, {}", self.unit), "Count"]),
            body,
        }
    }

    fn bars(&self, x: &Scale, y: &Scale, total: f64) -> String {
        let mut bars = String::new();
        for bar in &self.bars {
            let (from, to) = (x.position(bar.from), x.position(bar.to));
            let top = y.position(bar.count as f64 / total * 100.0);
            // Writing to a String cannot fail.
            let _ = write!(
                bars,
                "<rect class=\"filled\"{} x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>",
                data_row(&json!([bar.from, bar.to, bar.count])),
                coordinate(from),
                coordinate(top),
                coordinate((to - from).max(0.8)),
                coordinate(TOP + HEIGHT - top),
            );
        }
        bars
    }

    fn axis(&self, x: &Scale) -> String {
        let bottom = TOP + HEIGHT;
        let ticks = x.ticks(6);
        let mut axis = line((LEFT, bottom), (WIDTH - RIGHT, bottom), "axis");
        let mut free = f64::NEG_INFINITY;
        for (number, tick) in ticks.iter().enumerate() {
            let at = x.position(tick.value);
            let unit = if number + 1 == ticks.len() { format!(" {}", self.unit) } else { String::new() };
            let label = format!("{}{unit}", tick.label);
            let half = super::svg::text_width(&label) / 2.0;
            axis += &line((at, bottom), (at, bottom + 4.0), "axis");
            if at - half > free {
                axis += &text(at, bottom + 18.0, "tick middle", &label);
                free = at + half;
            }
        }
        axis
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_of_nothing_is_still_well_formed() {
        let mut histogram = Histogram {
            id: "h".into(),
            title: "Gaps".into(),
            description: String::new(),
            unit: "µs".into(),
            bars: Vec::new(),
        };
        assert!(!histogram.draw().standalone().contains("NaN"));
        histogram.bars = vec![Bar { from: 1.0, to: 2.0, count: 3 }, Bar { from: 1e6, to: 2e6, count: 1 }];
        let drawn = histogram.draw().standalone();
        assert_eq!(drawn.matches("class=\"filled\"").count(), 2);
        assert!(drawn.contains("µs"));
    }
}
