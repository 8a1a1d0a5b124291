//! Times that options give, held against the least that makes sense.

use longfat_schema::units::Nanos;

/// Refuses a time that is shorter than `least`, by the option's name.
///
/// # Errors
/// The option, its value and the least it may be.
pub fn at_least(option: &str, given: Nanos, least: Nanos) -> anyhow::Result<()> {
    anyhow::ensure!(given >= least, "{option} {given} is too short; give {least} or more");
    Ok(())
}
