//! Long series made short for drawing without losing their extremes: of the points that fall into one column of
//! the drawing, the first, the least, the greatest and the last are kept. Their line covers the same columns and
//! heights as the line through all points; no peak and no dip is smoothed away.

/// A point: x, y.
pub type Point = (f64, f64);

/// Decimates points in order of x to at most four per column of `columns` over `low`…`high`.
pub fn extremes(points: &[Point], low: f64, high: f64, columns: usize) -> Vec<Point> {
    if points.len() <= columns * 2 || high <= low {
        return points.to_vec();
    }
    let width = (high - low) / columns as f64;
    let column = |point: &Point| ((point.0 - low) / width).floor() as i64;
    points.chunk_by(|a, b| column(a) == column(b)).flat_map(column_extremes).collect()
}

/// First, least, greatest and last, each once, in their order.
fn column_extremes(points: &[Point]) -> Vec<Point> {
    let by_height = |a: &usize, b: &usize| points[*a].1.total_cmp(&points[*b].1);
    let least = (0..points.len()).min_by(by_height).unwrap_or(0);
    let greatest = (0..points.len()).max_by(by_height).unwrap_or(0);
    let mut kept = vec![0, least, greatest, points.len() - 1];
    kept.sort_unstable();
    kept.dedup();
    kept.into_iter().map(|index| points[index]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn decimation_keeps_the_extremes_of_every_column_and_both_ends(
            heights in proptest::collection::vec(-1e9f64..1e9, 1..3000), columns in 1usize..200,
        ) {
            let points: Vec<Point> = heights.iter().enumerate().map(|(x, y)| (x as f64, *y)).collect();
            let high = points.len() as f64;
            let kept = extremes(&points, 0.0, high, columns);
            prop_assert_eq!(kept.first(), points.first());
            prop_assert_eq!(kept.last(), points.last());
            prop_assert!(kept.len() <= (columns * 4).max(columns * 2));
            prop_assert!(kept.windows(2).all(|pair| pair[0].0 < pair[1].0));
            for column in 0..columns {
                let inside = |p: &&Point| (p.0 / (high / columns as f64)).floor() as usize == column;
                let range = |all: &[Point]| {
                    let of = all.iter().filter(inside).map(|p| p.1);
                    (of.clone().reduce(f64::min), of.reduce(f64::max))
                };
                prop_assert_eq!(range(&points), range(&kept));
            }
        }
    }

    #[test]
    fn a_single_spike_among_many_points_survives() {
        let mut points: Vec<Point> = (0..100_000).map(|x| (f64::from(x), 1.0)).collect();
        points[77_777].1 = 1e6;
        points[33_333].1 = -5.0;
        let kept = extremes(&points, 0.0, 1e5, 300);
        assert!(kept.len() <= 1200);
        assert!(kept.contains(&(77_777.0, 1e6)) && kept.contains(&(33_333.0, -5.0)));
    }
}
