//! Programs that read files of strangers keep nothing but reading, and writing what they were asked to write.

use longfat_host::{capability, confine::Confinement};
use std::path::Path;

/// Gives up everything but reading files and writing below the directories of these. To be called before threads start.
pub fn reader<'a>(outputs: impl IntoIterator<Item = &'a Path>) -> anyhow::Result<()> {
    let places = outputs.into_iter().filter_map(directory);
    // Started by root it reads and writes files of others, still.
    Confinement::of(None).keeping(&[capability::DAC_OVERRIDE]).writing(places).enter()?;
    Ok(())
}

/// The directory in which a file, or a directory that is to be made, will lie: the nearest that there is.
fn directory(output: &Path) -> Option<&Path> {
    let above = output
        .ancestors()
        .skip(1)
        .map(|path| if path.as_os_str().is_empty() { Path::new(".") } else { path });
    above.into_iter().find(|path| path.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_be_written_lies_in_the_nearest_directory_there_is() {
        let place = tempfile::tempdir().unwrap();
        assert_eq!(directory(&place.path().join("a/b/c.html")), Some(place.path()));
        assert_eq!(directory(Path::new("c.html")), Some(Path::new(".")));
        assert_eq!(directory(Path::new("none/c.html")), Some(Path::new(".")));
    }
}
