//! What a relay keeps once its sockets, rules and programs stand: a user without rights, two capabilities, the system
//! calls of a service, and the files that it has to change when it ends.

use anyhow::Context as _;
use longfat_host::{
    capability,
    confine::{Account, Confinement},
    monitor::{Duties, Monitor, Question},
};
use longfat_relay::{RelayPlan, TUN_DEVICE, open_tun, open_tuns_by};
use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

/// The user that the relay becomes.
#[derive(clap::Args, Clone)]
pub struct UserArgs {
    /// Started by root: the user it becomes when it is ready; 'root' to stay [default: longfat, or else nobody]. A
    /// small process stays root beside it: it opens the relay's file when that is read again, and removes the control
    /// socket.
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
}

impl UserArgs {
    /// What the relay of this plan will keep; `file` is what it reads again.
    ///
    /// # Errors
    /// There is no such user, or who asks for one is not root.
    pub fn kept(&self, plan: &RelayPlan, file: Option<&Path>) -> anyhow::Result<Kept> {
        let account = Account::choose(self.user.as_deref())?;
        let socket = plan.control.as_ref().map(|control| control.socket.clone());
        Ok(Kept { account, socket, file: file.map(Path::to_owned), monitor: OnceLock::new() })
    }
}

/// What the process that stays root is asked for.
const READ: u8 = 0;
const TUN: u8 = 1;

/// What a relay keeps.
pub struct Kept {
    account: Option<Account>,
    socket: Option<PathBuf>,
    file: Option<PathBuf>,
    /// Where it has become another user.
    monitor: OnceLock<Arc<Monitor>>,
}

impl Kept {
    /// Gives up everything else. To be called before other threads start.
    ///
    /// Of what the relay does while it runs and when it ends, sockets with others' addresses, marks, buffers, other
    /// congestion controls, nft and ip need CAP_NET_ADMIN, and clients' ports below 1024 CAP_NET_BIND_SERVICE; nothing
    /// needs more.
    ///
    /// # Errors
    /// Something could not be given up.
    pub fn alone(&self) -> longfat_host::Result<()> {
        if let Some(monitor) = Monitor::beside(self.account.as_ref(), self.duties())? {
            let monitor = self.monitor.get_or_init(|| Arc::new(monitor));
            let monitor = Arc::downgrade(monitor);
            open_tuns_by(move || {
                let monitor = monitor.upgrade().ok_or(io::ErrorKind::NotConnected)?;
                monitor.open(Question { what: TUN, which: 0 })
            });
        }
        // Its control socket; forwarding as it was; interfaces of its own; congestion controls that it registered;
        // nothing.
        let others = ["/proc/sys/net", TUN_DEVICE, "/sys/fs/bpf", "/dev/null"].map(Path::new);
        let socket = self.socket.as_deref().and_then(Path::parent);
        Confinement::of(self.account.clone())
            .keeping(&[capability::NET_ADMIN, capability::NET_BIND_SERVICE])
            .writing(socket.into_iter().chain(others))
            // nft and ip; what the kernel's programs counted is read by bpf(2).
            .starting_programs()
            .using_bpf()
            .enter()
            .map(drop)
    }

    /// What is left for root: the control socket, which lies in a directory of root's, and, when the file is read
    /// again, that file and the device for interfaces of new rules, either of which may be root's alone.
    fn duties(&self) -> Duties {
        let duties = self.socket.iter().fold(Duties::default(), |duties, socket| duties.removing(socket));
        match self.file.clone() {
            Some(file) => duties.writing([TUN_DEVICE]).answering(move |question| match question.what {
                READ => File::open(&file).map(Some),
                TUN => open_tun().map(Some),
                _ => Err(io::ErrorKind::InvalidInput.into()),
            }),
            None => duties,
        }
    }

    /// A successor goes on with the control socket: nobody removes it.
    pub fn leave(&self) {
        self.monitor.get().into_iter().for_each(|monitor| monitor.leave_files());
    }

    /// The relay's file as it is now.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(&self, file: &Path) -> anyhow::Result<String> {
        let opened = match self.monitor.get() {
            Some(monitor) => monitor.open(Question { what: READ, which: 0 }),
            None => File::open(file),
        };
        let text = opened.and_then(io::read_to_string);
        text.with_context(|| format!("read '{}'", file.display()))
    }
}
