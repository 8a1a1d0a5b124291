//! A few of many cells that stand for all: drawn, and so that every value of every axis is among them as often as the
//! others of that axis. Pure.

use super::Case;
use std::collections::BTreeMap;

/// Seed of what parts name: FNV-1a. 53 bits, so that every JSON reader keeps it exactly.
pub fn seed_of(seed: u64, parts: &[&str]) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let parts = parts.iter().flat_map(|part| part.bytes().chain([0]));
    let hash = seed.to_be_bytes().into_iter().chain(parts);
    hash.fold(OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME)) >> 11
}

/// Names of so many of these cells, in the order in which they are drawn: fewer are the beginning of more. Each time
/// the one is taken whose values are rarest so far, and of several the one that the seed says.
pub fn sample(cases: &[&Case], count: usize, seed: u64) -> Vec<String> {
    let mut left: Vec<&Case> = cases.to_vec();
    left.sort_by_key(|case| seed_of(seed, &["sample", &case.name]));
    let mut taken: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let mut drawn = Vec::new();
    while drawn.len() < count && !left.is_empty() {
        let so_far = |case: &Case| -> usize {
            case.axes.iter().filter_map(|at| taken.get(&(at.axis.as_str(), at.label.as_str()))).sum()
        };
        let rarest = (0..left.len()).min_by_key(|index| so_far(left[*index])).unwrap_or(0);
        let case = left.remove(rarest);
        case.axes.iter().for_each(|at| *taken.entry((&at.axis, &at.label)).or_default() += 1);
        drawn.push(case.name.clone());
    }
    drawn
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Experiment;
    use std::collections::BTreeSet;

    const GRID: &str = include_str!("../../../../experiments/truth-grid.toml");

    fn names(count: usize, seed: u64) -> Vec<String> {
        let experiment = Experiment::read(GRID, &[]).unwrap();
        sample(&experiment.cases.iter().collect::<Vec<_>>(), count, seed)
    }

    /// How often each label of an axis was drawn, the rarest and the most frequent.
    fn spread(names: &[String], axis: &str, labels: usize) -> (usize, usize) {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for name in names {
            let at = name.split(',').find_map(|part| part.strip_prefix(axis)?.strip_prefix('='));
            *counts.entry(at.unwrap()).or_default() += 1;
        }
        assert_eq!(counts.len(), labels, "{axis}: {counts:?}");
        (counts.values().copied().min().unwrap(), counts.values().copied().max().unwrap())
    }

    #[test]
    fn every_value_of_every_axis_is_drawn_as_often_as_the_others() {
        for seed in 1..20 {
            let drawn = names(24, seed);
            assert_eq!(drawn.iter().collect::<BTreeSet<_>>().len(), 24, "each once");
            for (axis, labels) in [("rate", 4), ("rtt", 4), ("queue", 3), ("cc", 6)] {
                let (least, most) = spread(&drawn, axis, labels);
                assert!(least >= 2 && most - least <= 2, "seed {seed}, {axis}: {least} to {most}");
            }
        }
    }

    #[test]
    fn a_seed_says_which_and_fewer_are_the_beginning_of_more() {
        assert_eq!(names(24, 1), names(24, 1));
        assert_ne!(names(24, 1), names(24, 2));
        assert_eq!(names(24, 1)[..10], names(10, 1));
        let all = Experiment::read(GRID, &[]).unwrap().cases.len();
        assert_eq!(names(all + 5, 1).len(), all);
    }
}
