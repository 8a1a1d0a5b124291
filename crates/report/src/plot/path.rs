//! Points as SVG path data: relative, in whole tenths of a unit, so that a long line stays a short text and
//! rounding errors do not add up.

use super::decimate::Point;
use std::fmt::Write as _;

/// Straight lines from point to point.
pub fn polyline(points: &[Point]) -> String {
    draw(points, |path, (dx, dy)| {
        path.push('l');
        pair(path, dx, dy);
    })
}

/// A value held until the next: across, then up or down.
pub fn steps(points: &[Point]) -> String {
    draw(points, |path, (dx, dy)| {
        one(path, 'h', dx);
        one(path, 'v', dy);
    })
}

/// A dot at every point: lines of no length with round ends, which stay round however the drawing is stretched.
pub fn dots(points: &[Point]) -> String {
    let mut path = String::new();
    for point in points {
        let (x, y) = tenths(*point);
        path.push('M');
        pair(&mut path, x, y);
        path.push_str("h0");
    }
    path
}

/// A short standing line at every x.
pub fn rug(xs: &[f64], top: f64, height: f64) -> String {
    let mut path = String::new();
    for x in xs {
        let (x, y) = tenths((*x, top));
        path.push('M');
        pair(&mut path, x, y);
        one(&mut path, 'v', (height * 10.0).round() as i64);
    }
    path
}

/// A rectangle, its upper left corner first.
pub fn block((x, y): Point, width: f64, height: f64) -> String {
    polyline(&[(x, y), (x + width, y), (x + width, y + height), (x, y + height), (x, y)])
}

fn draw(points: &[Point], step: impl Fn(&mut String, (i64, i64))) -> String {
    let mut path = String::new();
    let Some(first) = points.first() else { return path };
    let mut here = tenths(*first);
    path.push('M');
    pair(&mut path, here.0, here.1);
    for point in &points[1..] {
        let next = tenths(*point);
        let moved = (next.0 - here.0, next.1 - here.1);
        if moved != (0, 0) {
            step(&mut path, moved);
        }
        here = next;
    }
    if points.len() == 1 {
        path.push_str("h0");
    }
    path
}

fn tenths((x, y): Point) -> (i64, i64) {
    ((x * 10.0).round() as i64, (y * 10.0).round() as i64)
}

fn pair(path: &mut String, x: i64, y: i64) {
    number(path, x);
    if y >= 0 {
        path.push(' ');
    }
    number(path, y);
}

fn one(path: &mut String, command: char, moved: i64) {
    if moved != 0 {
        path.push(command);
        number(path, moved);
    }
}

/// `12` tenths as `1.2`, `-4` as `-.4`, `30` as `3`.
fn number(path: &mut String, tenths: i64) {
    if tenths < 0 {
        path.push('-');
    }
    let (whole, rest) = (tenths.unsigned_abs() / 10, tenths.unsigned_abs() % 10);
    // Writing to a String cannot fail.
    let _ = match (whole, rest) {
        (_, 0) => write!(path, "{whole}"),
        (0, _) => write!(path, ".{rest}"),
        _ => write!(path, "{whole}.{rest}"),
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reads polyline data back, in tenths.
    fn read(path: &str) -> Vec<(i64, i64)> {
        let mut here = (0, 0);
        let mut points = Vec::new();
        let spaced = path.replace('-', " -").replace(['M', 'l'], ";");
        for part in spaced.split(';').filter(|part| !part.is_empty()) {
            let mut numbers =
                part.split_whitespace().map(|n| (n.parse::<f64>().unwrap() * 10.0).round() as i64);
            here.0 += numbers.next().unwrap();
            here.1 += numbers.next().unwrap();
            points.push(here);
        }
        points
    }

    #[test]
    fn path_data_is_short() {
        assert_eq!(polyline(&[(1.0, 2.0), (1.04, 2.0), (1.5, -1.0)]), "M1 2l.5-3");
        assert_eq!(steps(&[(0.0, 0.0), (1.0, 2.5)]), "M0 0h1v2.5");
        assert_eq!(dots(&[(0.0, 0.2)]), "M0 .2h0");
        assert_eq!(polyline(&[]), "");
    }

    proptest! {
        #[test]
        fn a_line_ends_where_its_last_point_is(
            points in proptest::collection::vec((-999.0f64..999.0, -999.0f64..999.0), 2..50),
        ) {
            prop_assert_eq!(read(&polyline(&points)).last().copied(), points.last().map(|p| tenths(*p)));
        }
    }
}
