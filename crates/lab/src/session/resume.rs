//! What an earlier session left in the directory: runs that are whole are kept, plans that have changed are refused.

use super::{Session, SessionError};
use crate::plan::Plan;
use longfat_schema::run::{
    Kind, PLAN_FILE, RESULT_FILE, RUN_FILE, ResultManifest, RunDirectory, RunError, RunManifest,
    plan_differences, read_versioned,
};
use serde_json::Value;
use std::{collections::BTreeMap, path::Path};

/// Differences named in a message.
const SHOWN: usize = 5;

/// Runs of this experiment that are in the directory already.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// Every run's place in the order of the experiment, by directory.
    pub order: BTreeMap<String, usize>,
    /// Runs that need not be made again, with their place in that order.
    pub runs: Vec<(usize, Plan, RunManifest)>,
}

/// In what the plan of a file differs from another.
pub(super) fn differences(file: &Path, plan: &Plan) -> Result<Vec<String>, RunError> {
    let made: Value = read_versioned(file, Kind::Plan)?;
    Ok(plan_differences(&made, &serde_json::to_value(plan).unwrap_or_default()))
}

impl Session<'_> {
    /// Looks through the directory.
    pub(super) fn kept(&self) -> Result<Kept, SessionError> {
        let order: BTreeMap<String, usize> = self.all.iter().map(Plan::directory).zip(0..).collect();
        let file = self.directory.join(RESULT_FILE);
        if file.exists() {
            let earlier: ResultManifest = read_versioned(&file, Kind::Result)?;
            if let Some(strange) = earlier.runs.iter().find(|run| !order.contains_key(&run.path)) {
                let directory = self.directory.display().to_string();
                return Err(SessionError::Unplanned { directory, run: strange.path.clone() });
            }
        }
        let mut runs = Vec::new();
        for (place, plan) in self.all.iter().enumerate() {
            if let Some(manifest) = self.kept_run(plan)? {
                runs.push((place, plan.clone(), manifest));
            }
        }
        Ok(Kept { order, runs })
    }

    /// The run of a plan, when it is there, whole and as planned.
    pub(super) fn kept_run(&self, plan: &Plan) -> Result<Option<RunManifest>, SessionError> {
        let directory = self.directory.join(plan.directory());
        let file = directory.join(PLAN_FILE);
        if !file.exists() {
            return Ok(None);
        }
        let changed =
            |differences: String| SessionError::Changed { run: directory.display().to_string(), differences };
        let differences = differences(&file, plan)?;
        if !differences.is_empty() {
            let more = differences.len().saturating_sub(SHOWN);
            let shown: Vec<String> = differences.into_iter().take(SHOWN).collect();
            let more = if more > 0 { format!(", and {more} more") } else { String::new() };
            return Err(changed(format!("{}{more}", shown.join(", "))));
        }
        if !directory.join(RUN_FILE).exists() {
            return Ok(None);
        }
        let manifest = RunDirectory::open(&directory)?.manifest;
        let kind = self.backend.kind();
        if manifest.backend != kind.name() {
            return Err(changed(format!("backend: {} then, {} now", manifest.backend, kind)));
        }
        // What only its twin speaks against is not made again: repeats that the simulator chooses would prove nothing.
        Ok(manifest.went_as_planned().then_some(manifest))
    }
}
