//! A remedy on a living connection, taken back at the end: also on a signal, and by the next run after one that was
//! killed.
//!
//! What was before is written down before it is changed: `/run/longfat/why-PID.undo.json` names the owner (pid and
//! start time), the connections by cookie and namespace, and their settings; the routes to single peers; and the rules
//! that relays were given. Windows, timers and congestion control are set as `longfat tcb set` does; buffers
//! and pacing on a copy of the program's descriptor.

use super::{
    relay::AddedRule,
    route::{Metric, PeerRoute},
};
use anyhow::{Context as _, bail};
use longfat_host::{
    lease::start_time,
    own::{self, OwnDirectory},
    socket,
};
use longfat_kernel::{
    support::{Capability, missing},
    tcb::{
        CcKind, CcName, Change, Connection, ControlBlock, Keep, NetNamespace, Scope, Setter, State,
        UNLIMITED_CLAMP, UNLIMITED_SSTHRESH, descriptor_of, plan,
    },
};
use longfat_schema::units::{Rate, Size};
use longfat_why::{Cause, Verdict, remedy};
use serde::{Deserialize, Serialize};
use std::{
    collections::HashMap,
    fmt, fs, io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

/// Where undo files lie.
const DIRECTORY: &str = "/run/longfat";
/// `SO_BUF_LOCK`, and the bit of a send buffer that somebody has set (Linux 5.15).
const SO_BUF_LOCK: i32 = 72;

/// One thing that can be set on a living connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Setting {
    /// Congestion control, NUL-terminated.
    Cc([u8; 16]),
    /// Bound of the congestion window.
    ClampSegments(u32),
    /// Slow-start threshold.
    SsthreshSegments(u32),
    /// Least retransmission timeout.
    RtoMinUs(u32),
    /// Send buffer, and which buffers are set and not the kernel's to change.
    SendBuffer {
        /// The kernel's bookkeeping included.
        bytes: u64,
        /// Bits of SO_BUF_LOCK.
        locks: i32,
    },
    /// SO_MAX_PACING_RATE; `u64::MAX` for none.
    PacingBytesPerS(u64),
}

impl Setting {
    /// Whether what the window has grown to meanwhile remains when it is taken back.
    pub fn leaves_window(self) -> bool {
        matches!(self, Setting::Cc(_) | Setting::SsthreshSegments(_))
    }
}

/// A congestion window and its slow-start threshold.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    cwnd_segments: u32,
    ssthresh_segments: u32,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Setting::Cc(name) => write!(f, "cc={}", CcName::from_bytes(name).as_str()),
            Setting::ClampSegments(segments) if *segments >= UNLIMITED_CLAMP => f.write_str("clamp=none"),
            Setting::ClampSegments(segments) => write!(f, "clamp={segments}"),
            Setting::SsthreshSegments(segments) if *segments >= UNLIMITED_SSTHRESH => {
                f.write_str("ssthresh=unlimited")
            }
            Setting::SsthreshSegments(segments) => write!(f, "ssthresh={segments}"),
            Setting::RtoMinUs(us) => write!(f, "rto-min={}us", us),
            Setting::SendBuffer { bytes, .. } => write!(f, "send buffer {}", Size(*bytes)),
            Setting::PacingBytesPerS(u64::MAX) => f.write_str("no pacing rate"),
            Setting::PacingBytesPerS(bytes) => write!(f, "pacing rate {}", Rate(bytes.saturating_mul(8))),
        }
    }
}

const RTO_MIN_US: u32 = 20_000;

/// What mends a cause here, on the living connection; `None` where that must be done elsewhere.
pub fn mend(cause: Cause, verdict: &Verdict, path_rate: Option<Rate>) -> Option<Setting> {
    let figures = &verdict.figures;
    Some(match cause {
        Cause::CwndClamp => Setting::ClampSegments(UNLIMITED_CLAMP),
        Cause::SlowStartLeftEarly => Setting::SsthreshSegments(UNLIMITED_SSTHRESH),
        Cause::RandomLoss | Cause::AfterLoss => Setting::Cc(CcName::from("bbr").bytes()),
        Cause::Timeouts => Setting::RtoMinUs(RTO_MIN_US),
        Cause::SendBuffer => {
            Setting::SendBuffer { bytes: remedy::send_buffer_bytes(figures, path_rate), locks: 1 }
        }
        Cause::Policer => Setting::PacingBytesPerS((figures.rate_bps * remedy::BELOW_POLICER / 8.0) as u64),
        _ => return None,
    })
}

/// A change that is in force.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Changed {
    netns_inode: u64,
    cookie: u64,
    inode: u32,
    pid: i32,
    before: Setting,
}

/// Everything one run has changed.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Ledger {
    owner_pid: i32,
    owner_start: u64,
    changed: Vec<Changed>,
    #[serde(default)]
    routes: Vec<PeerRoute>,
    #[serde(default)]
    rules: Vec<AddedRule>,
}

impl Ledger {
    fn is_empty(&self) -> bool {
        self.count() == 0
    }

    fn count(&self) -> usize {
        self.changed.len() + self.routes.len() + self.rules.len()
    }
}

/// Sets, remembers, takes back.
pub struct Fixer {
    setter: Setter,
    ledger: Ledger,
    path: PathBuf,
}

impl Fixer {
    /// Takes back what runs that were killed have left, if any did; says what could not be.
    pub fn take_back() {
        let left = fs::read_dir(DIRECTORY).into_iter().flatten().flatten();
        let is_left =
            left.filter_map(|entry| entry.file_name().into_string().ok()).any(|name| is_ledger(&name));
        if is_left
            && Fixer::lacks().is_empty()
            && let Err(error) = Fixer::open()
        {
            eprintln!("longfat: what a run that was killed has set could not be taken back: {error:#}");
        }
    }

    /// Ready to set; what runs that were killed have left is taken back first.
    ///
    /// # Errors
    /// When this host cannot set control blocks, or what was left cannot be read.
    pub fn open() -> anyhow::Result<Fixer> {
        let directory = OwnDirectory::make(Path::new(DIRECTORY))?;
        let pid = std::process::id() as i32;
        let ledger =
            Ledger { owner_pid: pid, owner_start: start_time(pid).unwrap_or(0), ..Ledger::default() };
        let path = Path::new(DIRECTORY).join(format!("why-{pid}.undo.json"));
        let mut fixer = Fixer { setter: Setter::load()?, ledger, path };
        for name in directory.names().iter().filter(|name| is_ledger(name)) {
            fixer.take_over(&Path::new(DIRECTORY).join(name))?;
        }
        Ok(fixer)
    }

    /// What this host lacks for it.
    pub fn lacks() -> Vec<longfat_host::support::Missing> {
        missing(&[Capability::ControlBlocks])
    }

    /// Sets it on one connection; the setting of before.
    ///
    /// # Errors
    /// When the connection has gone, or the kernel refuses; nothing is changed then.
    pub fn apply(
        &mut self,
        connection: &Connection,
        place: &NetNamespace,
        setting: Setting,
    ) -> anyhow::Result<Setting> {
        let mut changed = Changed {
            netns_inode: place.inode,
            cookie: connection.cookie,
            inode: connection.inode,
            pid: connection.process.as_ref().map_or(0, |process| process.pid),
            before: setting,
        };
        changed.before = self.read(place, &changed, setting)?;
        self.ledger.changed.push(changed.clone());
        self.write()?;
        if let Err(error) = self.set(place, &changed, setting) {
            self.ledger.changed.pop();
            self.write()?;
            return Err(error);
        }
        Ok(changed.before)
    }

    /// Takes back the last change of a connection.
    ///
    /// # Errors
    /// When it could not be: it is tried again at the end.
    pub fn undo(&mut self, connection: &Connection, place: &NetNamespace) -> anyhow::Result<()> {
        let at = self.ledger.changed.iter().rposition(|changed| changed.cookie == connection.cookie);
        let Some(at) = at else { return Ok(()) };
        let changed = self.ledger.changed[at].clone();
        self.set(place, &changed, changed.before)?;
        self.ledger.changed.remove(at);
        self.write()
    }

    /// Gives new connections to one peer a setting, by a route to it alone.
    ///
    /// # Errors
    /// When the kernel refuses, or its route cannot be written anew; nothing is changed then.
    pub fn apply_route(
        &mut self,
        route: &PeerRoute,
        place: &NetNamespace,
        metric: &Metric,
    ) -> anyhow::Result<()> {
        self.ledger.routes.push(route.clone());
        self.write()?;
        if let Err(error) = route.set(place, metric) {
            self.ledger.routes.pop();
            self.write()?;
            return Err(error);
        }
        Ok(())
    }

    /// Takes back a route.
    ///
    /// # Errors
    /// When it could not be: it is tried again at the end.
    pub fn undo_route(&mut self, route: &PeerRoute, place: &NetNamespace) -> anyhow::Result<()> {
        let Some(at) = self.ledger.routes.iter().rposition(|known| known == route) else { return Ok(()) };
        route.take_back(place)?;
        self.ledger.routes.remove(at);
        self.write()
    }

    /// Gives a relay a rule for new connections.
    ///
    /// # Errors
    /// When the relay refuses; nothing is changed then.
    pub fn apply_rule(&mut self, rule: &AddedRule) -> anyhow::Result<()> {
        self.ledger.rules.push(rule.clone());
        self.write()?;
        if let Err(error) = rule.add() {
            self.ledger.rules.pop();
            self.write()?;
            return Err(error);
        }
        Ok(())
    }

    /// Takes back a relay's rule.
    ///
    /// # Errors
    /// When it could not be: it is tried again at the end.
    pub fn undo_rule(&mut self, rule: &AddedRule) -> anyhow::Result<()> {
        let Some(at) = self.ledger.rules.iter().rposition(|known| known == rule) else { return Ok(()) };
        rule.take_back()?;
        self.ledger.rules.remove(at);
        self.write()
    }

    /// Congestion window of a connection, as it is.
    ///
    /// # Errors
    /// When the connection has gone.
    pub fn window(&self, connection: &Connection, place: &NetNamespace) -> anyhow::Result<Window> {
        let ControlBlock { cwnd_segments, ssthresh_segments, .. } = self.block(place, connection.cookie)?;
        Ok(Window { cwnd_segments, ssthresh_segments })
    }

    /// Sets the congestion window to what it was.
    ///
    /// # Errors
    /// When the connection has gone, or the kernel refuses.
    pub fn set_window(
        &mut self,
        connection: &Connection,
        place: &NetNamespace,
        window: Window,
    ) -> anyhow::Result<()> {
        let change = Change {
            cwnd_segments: Some(window.cwnd_segments),
            ssthresh_segments: Some(window.ssthresh_segments),
            keep: Keep::Never,
            ..Change::default()
        };
        self.set_block(place, connection.cookie, &change)
    }

    /// Takes back everything; what could not be, in words. What has gone (connections, namespaces) has nothing to take
    /// back.
    pub fn undo_all(&mut self) -> Vec<String> {
        let mut failed = Vec::new();
        let places = Scope::All.namespaces().unwrap_or_default();
        for changed in std::mem::take(&mut self.ledger.changed).into_iter().rev() {
            let Some(place) = places.iter().find(|place| place.inode == changed.netns_inode) else {
                continue;
            };
            match self.set(place, &changed, changed.before) {
                Err(error) if !error.is::<Gone>() => {
                    failed.push(format!("{} could not be set again: {error:#}", changed.before));
                    self.ledger.changed.push(changed);
                }
                _ => {}
            }
        }
        for route in std::mem::take(&mut self.ledger.routes).into_iter().rev() {
            let Some(place) = places.iter().find(|place| place.inode == route.netns_inode) else { continue };
            if let Err(error) = route.take_back(place) {
                failed.push(format!("the route to {} is not as before: {error:#}", route.peer));
                self.ledger.routes.push(route);
            }
        }
        for rule in std::mem::take(&mut self.ledger.rules).into_iter().rev() {
            if let Err(error) = rule.take_back() {
                failed.push(format!("{rule} is still there: {error:#}"));
                self.ledger.rules.push(rule);
            }
        }
        if self.ledger.is_empty() {
            let _ = fs::remove_file(&self.path);
        }
        failed
    }

    /// What a dead run has left becomes ours to take back.
    fn take_over(&mut self, path: &Path) -> anyhow::Result<()> {
        let shown = path.display();
        let Some(text) = own::read_own(path).with_context(|| format!("read {shown}"))? else { return Ok(()) };
        let left: Ledger =
            serde_json::from_slice(&text).with_context(|| format!("{shown} is damaged; remove it"))?;
        if start_time(left.owner_pid) == Some(left.owner_start) {
            return Ok(());
        }
        let Ledger { owner_pid, owner_start, .. } = self.ledger;
        self.ledger = Ledger { owner_pid, owner_start, ..left };
        let count = self.ledger.count();
        let failed = self.undo_all();
        failed.iter().for_each(|what| eprintln!("longfat: of a run that was killed: {what}"));
        if !failed.is_empty() {
            // The next run's to try again.
            self.write()?;
        }
        fs::remove_file(path).with_context(|| format!("remove {shown}"))?;
        eprintln!("longfat: took back {} settings of a run that was killed", count - failed.len());
        Ok(())
    }

    fn write(&self) -> anyhow::Result<()> {
        let text = serde_json::to_vec(&self.ledger)?;
        let part = self.path.with_extension("part");
        let written = own::write_new(&part, &text).and_then(|()| fs::rename(&part, &self.path));
        written
            .with_context(|| format!("write {}, which is needed to take changes back", self.path.display()))
    }

    fn read(&self, place: &NetNamespace, changed: &Changed, like: Setting) -> anyhow::Result<Setting> {
        if let Setting::SendBuffer { .. } | Setting::PacingBytesPerS(_) = like {
            return read_option(&descriptor(changed)?, like);
        }
        let block = self.block(place, changed.cookie)?;
        Ok(match like {
            Setting::Cc(_) => Setting::Cc(block.cc.bytes()),
            Setting::ClampSegments(_) => Setting::ClampSegments(block.clamp_segments.min(UNLIMITED_CLAMP)),
            Setting::SsthreshSegments(_) => Setting::SsthreshSegments(block.ssthresh_segments),
            _ => Setting::RtoMinUs(block.rto_min_us.unwrap_or(200_000)),
        })
    }

    fn block(&self, place: &NetNamespace, cookie: u64) -> anyhow::Result<ControlBlock> {
        let found = self.setter.look(place)?.into_iter().find(|block| block.cookie == cookie);
        found.filter(|block| block.state != State::LISTEN).ok_or_else(|| Gone.into())
    }

    fn set(&mut self, place: &NetNamespace, changed: &Changed, setting: Setting) -> anyhow::Result<()> {
        match setting {
            Setting::SendBuffer { .. } | Setting::PacingBytesPerS(_) => {
                set_option(&descriptor(changed)?, setting).with_context(|| format!("set {setting}"))
            }
            _ => self.set_block(place, changed.cookie, &change(setting)),
        }
    }

    fn set_block(&mut self, place: &NetNamespace, cookie: u64, change: &Change) -> anyhow::Result<()> {
        let block = self.block(place, cookie)?;
        let mut kinds: HashMap<String, CcKind> = HashMap::new();
        for name in [Some(block.cc), change.cc].into_iter().flatten() {
            kinds.insert(name.as_str().to_owned(), self.setter.kind(name.as_str())?);
        }
        let kind = |name: &str| kinds.get(name).copied().unwrap_or(CcKind::Absent);
        let step = match plan(&block, change, kind) {
            Ok(step) => step,
            Err(refusal) => bail!("refused: {refusal}"),
        };
        let answers = self.setter.apply(place, std::slice::from_ref(&step))?;
        let shortfalls: Vec<String> = answers.iter().flat_map(|answer| answer.shortfalls(&step)).collect();
        if answers.iter().all(|answer| answer.blocks.is_none()) {
            return Err(Gone.into());
        }
        if shortfalls.is_empty() { Ok(()) } else { bail!("not as asked: {}", shortfalls.join("; ")) }
    }
}

impl Drop for Fixer {
    fn drop(&mut self) {
        self.undo_all()
            .iter()
            .for_each(|what| eprintln!("longfat: {what}; the next 'longfat why --fix' tries again"));
    }
}

/// The connection is there no more.
#[derive(Debug, thiserror::Error)]
#[error("the connection has gone")]
struct Gone;

fn is_ledger(name: &str) -> bool {
    name.starts_with("why-") && name.ends_with(".undo.json")
}

fn change(setting: Setting) -> Change {
    let change = Change { keep: Keep::Never, ..Change::default() };
    match setting {
        Setting::Cc(name) => Change { cc: Some(CcName::from_bytes(&name)), ..change },
        Setting::ClampSegments(segments) => Change { clamp_segments: Some(segments), ..change },
        Setting::SsthreshSegments(segments) => Change { ssthresh_segments: Some(segments), ..change },
        Setting::RtoMinUs(us) => Change { rto_min_us: Some(us.clamp(1000, 200_000)), ..change },
        Setting::SendBuffer { .. } | Setting::PacingBytesPerS(_) => change,
    }
}

fn descriptor(changed: &Changed) -> anyhow::Result<OwnedFd> {
    descriptor_of(changed.pid, changed.inode).ok_or_else(|| Gone.into())
}

fn read_option(socket: &OwnedFd, like: Setting) -> anyhow::Result<Setting> {
    Ok(match like {
        Setting::SendBuffer { .. } => Setting::SendBuffer {
            bytes: socket::buffer(socket, socket::Buffer::Send),
            locks: socket::option(socket, libc_sol_socket(), SO_BUF_LOCK)
                .context("ask which buffers are set")?,
        },
        _ => Setting::PacingBytesPerS(socket::tcp_info(socket)?.max_pacing_rate_bytes_per_s),
    })
}

/// SOL_SOCKET of Linux.
fn libc_sol_socket() -> i32 {
    1
}

fn set_option(socket: &impl AsFd, setting: Setting) -> anyhow::Result<()> {
    match setting {
        Setting::SendBuffer { bytes, locks } => {
            socket::set_buffer(socket, socket::Buffer::Send, bytes)?;
            socket::set_option(socket, libc_sol_socket(), SO_BUF_LOCK, locks & 3).map_err(io::Error::into)
        }
        Setting::PacingBytesPerS(u64::MAX) => Ok(socket::set_pacing_rate(socket, None)?),
        Setting::PacingBytesPerS(bytes) => {
            Ok(socket::set_pacing_rate(socket, Some(bytes.saturating_mul(8)))?)
        }
        _ => Ok(()),
    }
}
