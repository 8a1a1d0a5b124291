//! What a relay keeps once its sockets, rules and programs stand: two capabilities, the system calls of a service, and the files
//! that it has to change or remove when it ends.

use longfat_host::{
    capability,
    confine::{Account, Confinement},
};
use longfat_relay::RelayPlan;
use std::path::{Path, PathBuf};

/// Who it becomes.
#[derive(clap::Args, Clone)]
pub struct UserArgs {
    /// Started by root: the user it becomes when it is ready. That user must be able to read the relay's file again, and to
    /// remove its control socket; congestion controls of longfat are loaded before ('longfat cc load').
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
}

impl UserArgs {
    /// What the relay of this plan will keep.
    ///
    /// # Errors
    /// There is no such user, or who asks for one is not root.
    pub fn kept(&self, plan: &RelayPlan) -> anyhow::Result<Kept> {
        // Without a word nobody changes: what root has made on disk, a relay of another user could not remove.
        let account = self.user.as_deref().map(|name| Account::choose(Some(name))).transpose()?.flatten();
        let socket = plan.control.as_ref().and_then(|control| control.socket.parent());
        // Its control socket; forwarding as it was; interfaces of its own; congestion controls that it registered; nothing.
        let others = ["/proc/sys/net", "/dev/net/tun", "/sys/fs/bpf", "/dev/null"].map(PathBuf::from);
        let files = socket.map(Path::to_owned).into_iter().chain(others).collect();
        Ok(Kept { account, files })
    }
}

/// What a relay keeps.
pub struct Kept {
    account: Option<Account>,
    files: Vec<PathBuf>,
}

impl Kept {
    /// Gives up everything else. To be called before other threads start.
    ///
    /// Of what the relay does while it runs and when it ends, sockets with others' addresses, marks, buffers, other
    /// congestion controls, nft and ip need CAP_NET_ADMIN, and clients' ports below 1024 CAP_NET_BIND_SERVICE; nothing needs
    /// more.
    ///
    /// # Errors
    /// Something could not be given up.
    pub fn alone(&self) -> longfat_host::Result<()> {
        Confinement::of(self.account.clone())
            .keeping(&[capability::NET_ADMIN, capability::NET_BIND_SERVICE])
            .writing(&self.files)
            // nft and ip; what the kernel's programs counted is read by bpf(2).
            .starting_programs()
            .using_bpf()
            .enter()
            .map(drop)
    }
}
