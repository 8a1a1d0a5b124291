//! Which parameters of two sets of runs differ: of plans, programs, kernels and hosts.

use super::Run;
use longfat_schema::run::{Values, flatten, joined};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Keys whose values the two sides have none of in common. What varies within a side from repeat to repeat (a seed, a
/// counter) is no difference unless it does so elsewhere.
pub(super) fn differences(sides: &[Vec<&Run>; 2]) -> Vec<(String, [String; 2])> {
    // A world without hosts has no parameters of theirs that could differ.
    let with_hosts = sides.iter().all(|runs| runs.iter().any(|run| !run.manifest.hosts.is_empty()));
    let [left, right] = [0, 1].map(|side| gather(&sides[side], with_hosts));
    let keys: BTreeSet<&String> = left.keys().chain(right.keys()).collect();
    let none = BTreeSet::new();
    let values = |side: &Values, key: &String| side.get(key).unwrap_or(&none).clone();
    let both = keys.into_iter().map(|key| (key, values(&left, key), values(&right, key)));
    let differing = both.filter(|(_, left, right)| left.is_disjoint(right));
    differing.map(|(key, left, right)| (key.clone(), [joined(&left), joined(&right)])).collect()
}

fn gather(runs: &[&Run], with_hosts: bool) -> Values {
    let mut found = Values::new();
    for run in runs {
        flatten("plan", &run.plan, &mut found);
        flatten("run", &of_manifest(run), &mut found);
        if with_hosts {
            for (name, host) in &run.manifest.hosts {
                let state = json!({ "sysctls": host.sysctls, "interfaces": host.interfaces });
                flatten(&format!("host.{name}"), &state, &mut found);
            }
        }
    }
    found
}

fn of_manifest(run: &Run) -> Value {
    let provenance = &run.manifest.provenance;
    json!({
        "backend": run.manifest.backend,
        "longfat_version": provenance.longfat_version,
        "git_revision": provenance.git_revision,
        "kernel": provenance.kernel,
        "cpu": provenance.cpu,
        "cpu_count": provenance.cpu_count,
        "facts": provenance.facts,
    })
}
