//! Runs in, one self-contained HTML page and figures out. No kernel, no privileges, no network, no clock.
//!
//! - [`summary`]: medians and spread per case and metric, from manifests alone; pure. The lab's table is the same.
//! - [`load`]: a result directory, as what a report shows.
//! - [`plot`]: SVG charts from numbers; knows nothing of TCP.
//! - [`figures`]: which charts a result deserves.
//! - [`compare`]: two results beside each other, and their page.
//! - [`page`]: the HTML.
//! - [`site`]: the pages of `longfat lab serve`.
//! - [`capture`]: the page of a packet capture.
//! - [`course`]: the page of why connections are slow.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let experiment = longfat_report::load::Experiment::open("runs/conversion".as_ref())?;
//! let report = longfat_report::Report::new(vec![experiment]);
//! std::fs::write("report.html", report.html())?;
//! # Ok(()) }
//! ```

pub mod capture;
pub mod compare;
pub mod course;
pub mod figures;
pub mod load;
pub mod page;
pub mod plot;
use longfat_schema::quantity;
pub mod site;
pub mod summary;

use figures::{Choice, ExperimentFigures};
use load::Experiment;
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

/// Why a report could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The directory could not be read.
    #[error(transparent)]
    Run(#[from] longfat_schema::run::RunError),
    /// A result without a single run.
    #[error(
        "'{0}' holds no run yet; wait for 'longfat lab run' to finish its first, or give another directory"
    )]
    NoRuns(String),
    /// A figure or page could not be written.
    #[error("{path}: {source}")]
    Write {
        /// Which file.
        path: String,
        /// What the kernel said.
        source: std::io::Error,
    },
}

/// Experiments with their figures drawn: everything a page or a directory of SVG needs.
pub struct Report {
    /// In the order given.
    pub experiments: Vec<(Experiment, ExperimentFigures)>,
}

impl Report {
    /// Reads the tables and draws every figure.
    pub fn new(experiments: Vec<Experiment>) -> Report {
        Report::with(experiments, &Choice::default())
    }

    /// Report that draws what was chosen.
    pub fn with(experiments: Vec<Experiment>, choice: &Choice) -> Report {
        let draw = |(index, experiment): (usize, Experiment)| {
            let figures = figures::draw(&experiment, &format!("e{}", index + 1), choice);
            (experiment, figures)
        };
        Report { experiments: experiments.into_iter().enumerate().map(draw).collect() }
    }

    /// The whole page.
    pub fn html(&self) -> String {
        page::html(&self.experiments)
    }

    /// Damaged manifests, and tables of runs said to be whole that could not be read; the page shows them too.
    pub fn warnings(&self) -> Vec<String> {
        let of_one = |(experiment, figures): &(Experiment, ExperimentFigures)| {
            [experiment.damaged.clone(), figures.warnings.clone()].concat()
        };
        self.experiments.iter().flat_map(of_one).collect()
    }

    /// Writes every figure as a file of its own; gives back what was written.
    pub fn write_svg(&self, directory: &Path) -> Result<Vec<PathBuf>, ReportError> {
        let failed = |path: &Path, source| ReportError::Write { path: path.display().to_string(), source };
        std::fs::create_dir_all(directory).map_err(|e| failed(directory, e))?;
        let mut taken = BTreeSet::new();
        let mut written = Vec::new();
        for (name, figure) in self.named_figures() {
            let path = directory.join(format!("{}.svg", free_name(&mut taken, &name)));
            std::fs::write(&path, figure.standalone()).map_err(|e| failed(&path, e))?;
            written.push(path);
        }
        Ok(written)
    }

    fn named_figures(&self) -> impl Iterator<Item = (String, &plot::Figure)> {
        let several = self.experiments.len() > 1;
        self.experiments.iter().flat_map(move |(experiment, figures)| {
            let prefix = if several { format!("{}-", experiment.name) } else { String::new() };
            figures.named().map(move |(name, figure)| (format!("{prefix}{name}"), figure))
        })
    }
}

/// A file name of plain letters, digits and dashes: names in a run come from files and may say anything.
fn free_name(taken: &mut BTreeSet<String>, wanted: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let dashed: String = wanted.chars().map(plain).collect();
    let parts: Vec<_> = dashed.split('-').filter(|part| !part.is_empty()).collect();
    let mut base = parts.join("-");
    base.truncate(120);
    let mut name = base.clone();
    let mut number = 1;
    while !taken.insert(name.clone()) {
        number += 1;
        name = format!("{base}-{number}");
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_are_plain_and_never_collide() {
        let mut taken = BTreeSet::new();
        assert_eq!(free_name(&mut taken, "../../etc/Passwd"), "etc-passwd");
        assert_eq!(free_name(&mut taken, "etc passwd"), "etc-passwd-2");
        assert_eq!(free_name(&mut taken, "///"), "");
        assert_eq!(free_name(&mut taken, "…"), "-2");
    }
}
