//! What a capture keeps: the programs are attached, the first file is open, and strangers' packets come.

use longfat_analyze::files::roll::{Files, Roll, RollSpec};
use longfat_host::{
    capability,
    confine::{Account, Confinement},
    monitor::{Duties, Monitor, Question},
};
use std::{
    fs::{self, File},
    io,
    path::Path,
};

/// Gives up everything else. Where another user is to make and remove files of root's, a process that stays root does.
pub fn alone(account: Option<Account>, spec: &RollSpec, files: Roll) -> longfat_host::Result<Roll> {
    let directory = spec.path.parent().unwrap_or(Path::new(""));
    let monitor = if spec.has_several() { monitor(account.as_ref(), spec.clone(), directory)? } else { None };
    let kept = [capability::NET_ADMIN, capability::BPF, capability::PERFMON];
    let confinement = Confinement::of(account).keeping(&kept).using_bpf();
    let makes_files = spec.has_several() && monitor.is_none();
    let confinement = match makes_files {
        // Files that begin later may have to be made where another user's are.
        true => confinement.keeping(&[capability::DAC_OVERRIDE]).writing([directory]),
        false => confinement,
    };
    confinement.enter()?;
    Ok(match monitor {
        Some(monitor) => files.with_files(Box::new(Asked(monitor))),
        None => files,
    })
}

const CREATE: u8 = 0;
const REMOVE: u8 = 1;

fn monitor(
    account: Option<&Account>,
    spec: RollSpec,
    directory: &Path,
) -> longfat_host::Result<Option<Monitor>> {
    let mut ring = Ring { spec, newest: 1 };
    let duties = Duties::default().writing([directory]).answering(move |question| ring.answer(question));
    Monitor::beside(account, duties)
}

/// What there is of the ring: no file that is not of this capture is made or removed, whoever asks.
struct Ring {
    spec: RollSpec,
    newest: u64,
}

impl Ring {
    fn answer(&mut self, Question { what, which }: Question) -> io::Result<Option<File>> {
        let path = self.spec.path_of(which);
        match what {
            CREATE if which == self.newest + 1 => {
                let file = File::create_new(path)?;
                self.newest = which;
                Ok(Some(file))
            }
            REMOVE if (1..self.newest).contains(&which) => fs::remove_file(path).map(|()| None),
            _ => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }
}

/// Files of the ring, by number: made and removed by the process that stayed root.
struct Asked(Monitor);

impl Files for Asked {
    fn create(&mut self, number: u64, _: &Path) -> io::Result<File> {
        self.0.open(Question { what: CREATE, which: number })
    }

    fn remove(&mut self, number: u64, _: &Path) -> io::Result<()> {
        self.0.ask(Question { what: REMOVE, which: number }).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longfat_analyze::files::roll::Form;

    #[test]
    fn files_are_made_one_after_the_other_and_none_is_removed_that_is_not_of_this_capture() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("ring");
        let spec = RollSpec { path, most_bytes: Some(1), most_ns: None, keep: Some(2), form: Form::Pcapng };
        // Of an earlier capture, which had more of them.
        fs::write(spec.path_of(4), "earlier").unwrap();
        fs::write(spec.path_of(9), "earlier").unwrap();
        fs::write(spec.path_of(1), "first").unwrap();
        let mut ring = Ring { spec: spec.clone(), newest: 1 };
        let mut ask = |what, which| ring.answer(Question { what, which }).is_ok();
        let refused = [(CREATE, 1), (CREATE, 3), (CREATE, 9), (REMOVE, 1), (REMOVE, 9), (REMOVE, 0), (7, 2)];
        assert!(!refused.iter().any(|(what, which)| ask(*what, *which)));
        assert!(ask(CREATE, 2) && ask(CREATE, 3) && ask(REMOVE, 1) && !ask(REMOVE, 3));
        // What is not made here is not removed here, either.
        assert!(!ask(CREATE, 4) && !ask(CREATE, 5) && !ask(REMOVE, 4) && !ask(REMOVE, 3));
        let left = |number| fs::read_to_string(spec.path_of(number)).ok();
        let earlier = Some("earlier".to_owned());
        let made = Some(String::new());
        assert_eq!([1, 2, 3, 4, 9].map(left), [None, made.clone(), made, earlier.clone(), earlier]);
    }
}
