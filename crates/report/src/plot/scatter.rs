//! Two figures against each other, a mark per thing.

use super::{
    Figure, WIDTH, columns, data_row,
    scale::{FAR_APART, Scale, Tick},
    svg::{Mark, escape, line, mark, text},
};
use serde_json::json;

const HEIGHT: f64 = 300.0;
const LEFT: f64 = 44.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 42.0;

/// A mark.
#[derive(Debug, Clone, PartialEq)]
pub struct Spot {
    /// Place along the horizontal axis.
    pub x: f64,
    /// Place along the vertical axis.
    pub y: f64,
    /// Shown on hovering, plain text.
    pub hint: String,
}

/// Marks over two axes.
#[derive(Debug, Clone, PartialEq)]
pub struct ScatterChart {
    /// As [`Figure::id`].
    pub id: String,
    /// Without units.
    pub title: String,
    /// As [`Figure::description`].
    pub description: String,
    /// Names of the horizontal and the vertical axis, with units.
    pub axes: [String; 2],
    /// In any order.
    pub spots: Vec<Spot>,
}

impl ScatterChart {
    /// Draws it. Both axes begin at zero, but for heights far apart.
    pub fn draw(&self) -> Figure {
        let along = Scale::from_zero(greatest(self.spots.iter().map(|spot| spot.x)), LEFT, WIDTH - RIGHT);
        let up = self.up();
        let logarithmic = if up.is_logarithmic() { " (logarithmic)" } else { "" };
        let heading = text(0.0, 15.0, "heading", &self.title)
            + &text(0.0, 34.0, "legend", &format!("{}{logarithmic}", self.axes[1]))
            + &text(WIDTH - RIGHT, HEIGHT - 4.0, "legend end", &self.axes[0]);
        let ticks: String = along.ticks(5).iter().map(|tick| along_tick(tick, &along)).collect();
        let levels: String = up.ticks(5).iter().map(|tick| up_tick(tick, &up)).collect();
        let placed = self.spots.iter().filter(|spot| spot.x.is_finite() && spot.y.is_finite());
        let spots: String = placed.map(|spot| self.spot(spot, &along, &up)).collect();
        Figure {
            id: self.id.clone(),
            title: self.title.clone(),
            description: self.description.clone(),
            height: HEIGHT,
            data: columns(&["Of", &self.axes[0], &self.axes[1]]),
            body: heading + &levels + &ticks + &spots,
        }
    }

    fn up(&self) -> Scale {
        let heights = || self.spots.iter().map(|spot| spot.y).filter(|y| y.is_finite());
        let (least, most) = (heights().fold(f64::INFINITY, f64::min), greatest(heights()));
        if least > 0.0 && most > least * FAR_APART {
            return Scale::logarithmic(least, most, HEIGHT - BOTTOM, TOP);
        }
        Scale::from_zero(most, HEIGHT - BOTTOM, TOP)
    }

    fn spot(&self, spot: &Spot, along: &Scale, up: &Scale) -> String {
        let drawn = mark(Mark::Ring, (along.position(spot.x), up.position(spot.y)), "c0");
        let data = data_row(&json!([spot.hint, spot.x, spot.y]));
        format!("<g{data}><title>{}</title>{drawn}</g>", escape(&spot.hint))
    }
}

fn greatest(values: impl Iterator<Item = f64>) -> f64 {
    values.filter(|value| value.is_finite()).fold(0.0, f64::max)
}

fn along_tick(tick: &Tick, scale: &Scale) -> String {
    let x = scale.position(tick.value);
    line((x, TOP), (x, HEIGHT - BOTTOM), "grid")
        + &text(x, HEIGHT - BOTTOM + 16.0, "tick middle", &tick.label)
}

fn up_tick(tick: &Tick, scale: &Scale) -> String {
    let y = scale.position(tick.value);
    line((LEFT, y), (WIDTH - RIGHT, y), "grid") + &text(LEFT - 6.0, y + 4.0, "tick end", &tick.label)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(spots: &[(f64, f64)]) -> Figure {
        let spot = |(x, y): &(f64, f64)| Spot { x: *x, y: *y, hint: "<here>".into() };
        let axes = ["x, %".to_owned(), "y, %".to_owned()];
        let (title, description) = ("y against x".into(), String::new());
        ScatterChart { id: "s".into(), title, description, axes, spots: spots.iter().map(spot).collect() }
            .draw()
    }

    #[test]
    fn marks_lie_further_right_and_higher_the_greater_their_figures() {
        let places = |figure: &Figure| -> Vec<(f64, f64)> {
            let number = |part: &str, key: &str| {
                part.split(&format!("{key}=\"")).nth(1).unwrap().split('"').next().unwrap().parse().unwrap()
            };
            figure
                .body
                .split("<circle")
                .skip(1)
                .map(|part| (number(part, "cx"), number(part, "cy")))
                .collect()
        };
        let placed = places(&chart(&[(10.0, 1.0), (90.0, 30.0)]));
        assert!(placed[0].0 < placed[1].0 && placed[0].1 > placed[1].1, "{placed:?}");
        assert!(placed.iter().all(|(x, y)| (LEFT..WIDTH).contains(x) && (TOP - 1.0..HEIGHT).contains(y)));
    }

    #[test]
    fn heights_far_apart_and_hints_are_told() {
        let body = chart(&[(1.0, 0.5), (2.0, 40.0)]).body;
        assert!(body.contains("y, % (logarithmic)") && body.contains("&lt;here&gt;"));
        assert!(!chart(&[(1.0, 4.0), (2.0, 40.0)]).body.contains("logarithmic"));
        assert!(!chart(&[(f64::NAN, 0.0)]).body.contains("NaN"));
    }
}
