//! What features need of a host, by the names that tests/kernels/features.toml gives them.

use longfat_host::{facts, support, support::Missing};
use longfat_kernel::support::{Capability, missing};
use serde::{Deserialize, Serialize};
use std::process::{Command, Stdio};

/// The oldest Python that the package and the scripts run on.
const PYTHON: &str = "3.11";

/// One thing that features need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Need {
    CongestionControls,
    Pinning,
    CgroupChoice,
    WindowSteering,
    Marking,
    Capture,
    ControlBlocks,
    Tracing,
    RtoMax,
    Namespaces,
    Interception,
    Tun,
    Repair,
    Netem,
    Ssh,
    Python,
    Duckdb,
    Ray,
}

impl Need {
    /// What of it this host lacks. Nothing is changed.
    pub fn missing(self) -> Vec<Missing> {
        let one = |missing: Option<Missing>| missing.into_iter().collect();
        match self {
            Need::CongestionControls => missing(&[Capability::CongestionControl]),
            Need::Pinning => missing(&[Capability::Pinning]),
            Need::CgroupChoice => missing(&[Capability::CgroupChoice]),
            Need::WindowSteering => missing(&[Capability::WindowSteering]),
            Need::Marking => missing(&[Capability::Marking]),
            Need::Capture => missing(&[Capability::Capture]),
            Need::ControlBlocks => missing(&[Capability::ControlBlocks]),
            Need::Tracing => missing(&[Capability::Tracing]),
            Need::RtoMax => one(longfat_kernel::tcb::missing_rto_max()),
            Need::Namespaces => support::missing_for_namespaces(),
            Need::Interception => longfat_relay::missing_for_interception(),
            Need::Tun => one(longfat_relay::missing_tun()),
            Need::Repair => longfat_relay::missing_for_adoption(),
            Need::Netem => longfat_link::netem::missing(),
            Need::Ssh => one(support::missing_program("ssh", "openssh-client")),
            Need::Python => one(missing_python()),
            Need::Duckdb => one(missing_module("duckdb", "duckdb")),
            Need::Ray => one(missing_module("ray", "ray")),
        }
    }
}

fn missing_python() -> Option<Missing> {
    let what = || format!("Python {PYTHON} or newer");
    let mend = "install the package python3";
    let Some(found) = python_version() else {
        return Some(Missing::new(what(), format!("'{}' does not run", program()), mend));
    };
    let why = || format!("'{}' is Python {found}", program());
    (!is_at_least(&found, PYTHON)).then(|| Missing::new(what(), why(), mend))
}

/// Version of the Python that does what others' packages do for us.
pub fn python_version() -> Option<String> {
    let said = facts::first_line_of(&program(), "--version")?;
    said.strip_prefix("Python ").map(str::to_owned)
}

fn program() -> String {
    crate::python::program().display().to_string()
}

/// Whether a dotted version is another one or newer; what is no number counts as 0.
fn is_at_least(version: &str, least: &str) -> bool {
    let numbers =
        |text: &str| text.split('.').map(|part| part.parse::<u32>().unwrap_or(0)).collect::<Vec<_>>();
    numbers(version) >= numbers(least)
}

fn missing_module(module: &str, package: &str) -> Option<Missing> {
    let mut asked = Command::new(program());
    let find = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)";
    asked.args(["-c", find, module]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let found = asked.status().is_ok_and(|status| status.success());
    let why = || format!("'{}' does not find it", program());
    let mend = format!("'{} -m pip install {package}', in an environment of your own", program());
    (!found).then(|| Missing::new(format!("the Python package '{module}'"), why(), mend))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_number_and_not_by_letter() {
        assert!(is_at_least("3.11.2", "3.11") && is_at_least("3.13", "3.11"));
        assert!(!is_at_least("3.9.18", "3.11") && !is_at_least("", "3.11"));
    }

    #[test]
    fn a_package_that_nobody_made_is_missing_by_name() {
        let missing = missing_module("longfat_nobody_made_this", "nothing").map(|thing| thing.what);
        assert_eq!(missing.as_deref(), Some("the Python package 'longfat_nobody_made_this'"));
    }
}
