//! The table of features, and what a host makes of it.

use super::need::Need;
use anyhow::Context as _;
use longfat_host::support::Missing;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Read by the trials on other kernels as well.
const TABLE: &str = include_str!("../../../../../tests/kernels/features.toml");

/// One thing that longfat can do.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Feature {
    /// What a person calls it.
    pub name: String,
    /// What it is.
    pub does: String,
    /// What it needs of a host.
    pub needs: Vec<Need>,
    /// Oldest kernel that can do it.
    pub since: Option<String>,
    /// How it is tried on other kernels.
    #[serde(skip_serializing)]
    #[expect(dead_code, reason = "for the trials; named here so that a misspelt key is found")]
    trial: Option<String>,
}

/// What this host makes of a feature.
#[derive(Debug, Serialize)]
pub struct Finding {
    #[serde(flatten)]
    pub feature: Feature,
    /// Whether nothing is missing.
    pub works: bool,
    /// What is missing for it.
    pub missing: Vec<Missing>,
}

#[derive(Deserialize)]
struct Table {
    feature: Vec<Feature>,
}

/// Every feature, in the table's order.
pub fn features() -> anyhow::Result<Vec<Feature>> {
    let table: Table = toml::from_str(TABLE).context("the table of features of this build")?;
    Ok(table.feature)
}

/// Asks this host for what the features need, each need once.
pub fn look(features: Vec<Feature>) -> Vec<Finding> {
    let mut answers: HashMap<Need, Vec<Missing>> = HashMap::new();
    let finding = |feature: Feature| {
        let ask = |need: &Need| answers.entry(*need).or_insert_with(|| need.missing()).clone();
        let missing = unique(feature.needs.iter().flat_map(ask).collect());
        Finding { works: missing.is_empty(), feature, missing }
    };
    features.into_iter().map(finding).collect()
}

fn unique(missing: Vec<Missing>) -> Vec<Missing> {
    let mut found = Vec::new();
    missing.into_iter().for_each(|thing| {
        if !found.contains(&thing) {
            found.push(thing);
        }
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read_and_every_name_in_it_is_one_word_and_alone() {
        let features = features().expect("it parses");
        let mut names: Vec<_> = features.iter().map(|feature| feature.name.as_str()).collect();
        assert!(names.iter().all(|name| !name.contains(' ') && name.len() <= 15), "{names:?}");
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert!(names.len() == count && count > 15, "{names:?}");
        assert!(
            features.iter().all(|feature| feature.does.chars().count() <= 80 - 24),
            "lines fit 80 columns"
        );
    }

    #[test]
    fn what_newer_kernels_are_needed_for_says_what_it_needs_of_them() {
        let features = features().expect("it parses");
        assert!(features.iter().all(|feature| feature.since.is_none() || !feature.needs.is_empty()));
    }
}
