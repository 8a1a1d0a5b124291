//! What a capture keeps: the programs are attached, the first file is open, and strangers' packets come.

use longfat_analyze::capture::roll::{Files, Roll, RollSpec};
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
    let duties = Duties::default().writing([directory]).answering(move |Question { what, which }| {
        let path = spec.path_of(which);
        match what {
            CREATE => File::create(path).map(Some),
            REMOVE => fs::remove_file(path).map(|()| None),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    });
    Monitor::beside(account, duties)
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
