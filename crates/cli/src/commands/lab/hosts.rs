//! The machines of `longfat lab run --backend hosts`.

use crate::outcome::Failure;
use anyhow::anyhow;
use longfat_lab::{
    backend::BackendKind,
    hosts::{Entered, Hosts, Table},
    plan::Plan,
};
use longfat_schema::decode::{Problem, list};
use std::{path::Path, sync::atomic::AtomicBool};

/// A table, and what keeps these plans from being carried out on its machines.
pub struct Read {
    pub table: Table,
    pub problems: Vec<Problem>,
}

impl Read {
    /// Refuses a table that these plans cannot be carried out with.
    pub fn refuse(&self, file: &Path) -> anyhow::Result<()> {
        if self.problems.is_empty() {
            Ok(())
        } else {
            Err(anyhow!("{}: {}", file.display(), list(&self.problems)))
        }
    }
}

pub fn read(file: &Path, plans: &[Plan]) -> anyhow::Result<Read> {
    let table = Table::open(file)?;
    let problems = table.problems(plans);
    Ok(Read { table, problems })
}

/// The machines, ready; `None` for another backend, which has none.
pub fn enter(
    backend: BackendKind,
    file: Option<&Path>,
    plans: &[Plan],
    program: &Path,
    stop: &AtomicBool,
) -> Result<Option<Hosts>, Failure> {
    let file = match (backend, file) {
        (BackendKind::Hosts, Some(file)) => file,
        (_, None) => return Ok(None),
        (other, Some(_)) => {
            return Err(anyhow!("--hosts is for '--backend hosts'; this is '--backend {other}'").into());
        }
    };
    let read = read(file, plans)?;
    read.refuse(file)?;
    match Hosts::enter(read.table, plans, program, stop)? {
        Entered::Ready(hosts) => Ok(Some(hosts)),
        Entered::Lacking(missing) => Err(Failure::Unsupported(missing)),
    }
}
