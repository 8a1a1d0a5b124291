//! Setting live control blocks: the programs of bpf/tcb_set.bpf.c, and what they go through.
//!
//! An iterator visits every socket of a namespace under its lock and does what was asked for its cookie: all of it
//! before the stack handles the next segment. See docs/design/tcb.md for what each state lets be set.

use super::{
    block::{ControlBlock, RawBlock, read_all},
    change::{CcKind, Step},
    keep,
};
use crate::{
    Error, Result, cc,
    object::{self, bpf_object, refused},
    sockets::{
        connection::CcName,
        namespace::NetNamespace,
        visit::{attach_program, visit},
    },
};
use libbpf_rs::{Link, MapCore as _, MapFlags, MapHandle, Object};
use longfat_host::support::Missing;
use std::{
    collections::{BTreeMap, HashMap},
    os::fd::AsFd,
    path::Path,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

const SET_CLAMP: u32 = 1;
const SET_RTO_MIN: u32 = 2;
const SET_RTO_MAX: u32 = 4;
const SET_CC: u32 = 8;
const KEEP_STATE: u32 = 16;
const GIVE_STATE: u32 = 32;
const UNLESS_RECOVERING: u32 = 64;

/// There since the socket option TCP_RTO_MAX_MS is.
const RTO_MAX_SYSCTL: &str = "/proc/sys/net/ipv4/tcp_rto_max_ms";

/// A bound of the retransmission timeout per connection, where the kernel lacks it.
pub fn missing_rto_max() -> Option<Missing> {
    let why = || format!("{RTO_MAX_SYSCTL} is not there (this is {})", longfat_host::facts::kernel());
    (!Path::new(RTO_MAX_SYSCTL).exists())
        .then(|| Missing::new("rto-max, the option TCP_RTO_MAX_MS", why(), "use Linux 6.15 or newer"))
}

/// `struct lf_request` of bpf/tcb_set.bpf.c: integers only, no padding.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct RawRequest {
    actions: u32,
    cwnd_segments: u32,
    ssthresh_segments: u32,
    clamp_segments: u32,
    rto_min_us: u32,
    rto_max_ms: u32,
    through: [u8; 16],
    to: [u8; 16],
    state: super::block::PrivateState,
    done: u32,
    clamp_error: i32,
    rto_min_error: i32,
    rto_max_error: i32,
    cc_error: i32,
    recovering: u32,
    before: RawBlock,
    after: RawBlock,
}

impl RawRequest {
    fn new(step: &Step, setter: CcName) -> RawRequest {
        let change = &step.change;
        let when = |wanted: bool, action: u32| if wanted { action } else { 0 };
        let route = step.route;
        let to = route.map(|route| route.to.bytes()).unwrap_or_default();
        let through = route.filter(|route| route.through_setter).map(|_| setter.bytes()).unwrap_or_default();
        RawRequest {
            actions: when(change.clamp_segments.is_some(), SET_CLAMP)
                | when(change.rto_min_us.is_some(), SET_RTO_MIN)
                | when(change.rto_max_ms.is_some(), SET_RTO_MAX)
                | when(route.is_some(), SET_CC)
                | when(route.is_some_and(|route| route.keeps_state), KEEP_STATE)
                | when(change.private.is_some(), GIVE_STATE)
                | when(change.unless_recovering, UNLESS_RECOVERING),
            cwnd_segments: change.cwnd_segments.unwrap_or(0),
            ssthresh_segments: change.ssthresh_segments.unwrap_or(0),
            clamp_segments: change.clamp_segments.unwrap_or(0),
            rto_min_us: change.rto_min_us.unwrap_or(0),
            rto_max_ms: change.rto_max_ms.unwrap_or(0),
            through,
            to,
            state: change.private.unwrap_or_default(),
            ..RawRequest::default()
        }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: integers without padding, readable as bytes for as long as `self` is borrowed.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<RawRequest>()) }
    }

    fn read(bytes: &[u8]) -> Option<RawRequest> {
        let whole = bytes.len() == size_of::<RawRequest>();
        // SAFETY: as long as a RawRequest, for which every byte pattern is valid; the read may be unaligned.
        whole.then(|| unsafe { bytes.as_ptr().cast::<RawRequest>().read_unaligned() })
    }

    fn errors(&self) -> Vec<(&'static str, i32)> {
        let all = [
            ("clamp", self.clamp_error),
            ("rto-min", self.rto_min_error),
            ("rto-max", self.rto_max_error),
            ("cc", self.cc_error),
        ];
        all.into_iter().filter(|(_, error)| *error != 0).map(|(what, error)| (what, -error)).collect()
    }
}

/// What came of one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Cookie of the connection.
    pub cookie: u64,
    /// The control block before and after, read in the same visit; absent when the connection had gone.
    pub blocks: Option<(ControlBlock, ControlBlock)>,
    /// What the kernel refused: what, and its errno.
    pub errors: Vec<(&'static str, i32)>,
    /// Whether nothing was set because a loss was being repaired and the change was to wait for its end.
    pub recovering: bool,
}

impl Answer {
    /// What was asked for and did not come about, in words; empty when all did.
    pub fn shortfalls(&self, step: &Step) -> Vec<String> {
        let Some((_, after)) = &self.blocks else {
            return vec!["the connection has gone".to_owned()];
        };
        if self.recovering {
            return vec!["a loss is being repaired".to_owned()];
        }
        let refused = self.errors.iter().map(|(what, errno)| {
            format!("the kernel refused {what}: {}", std::io::Error::from_raw_os_error(*errno))
        });
        let mut found: Vec<String> = refused.collect();
        let mut check = |what: &str, wanted: Option<u32>, is: Option<u32>| {
            let wrong = wanted.zip(is).filter(|(wanted, is)| wanted != is);
            found.extend(wrong.map(|(wanted, is)| format!("{what} is {is}, not {wanted}")));
        };
        let change = &step.change;
        check("cwnd", change.cwnd_segments, Some(after.cwnd_segments));
        check("ssthresh", change.ssthresh_segments, Some(after.ssthresh_segments));
        check("clamp", change.clamp_segments, Some(after.clamp_segments));
        check("rto-max (ms)", change.rto_max_ms, after.rto_max_ms);
        found
    }
}

/// Reads and sets control blocks. Its programs are loaded once and leave the kernel with it.
pub struct Setter {
    /// By the congestion control whose storage they share; the empty name for those that have none.
    carriers: HashMap<CcName, Carrier>,
    wrappers: HashMap<CcName, Wrapper>,
}

/// One load of bpf/tcb_set.bpf.c, and the name its setter is registered under.
struct Carrier {
    object: Object,
    look: Link,
    set: Link,
    name: CcName,
    /// Registered as long as this is open.
    _setter: Link,
}

/// The kernel's congestion control under a name of ours, registered as long as this is open.
struct Wrapper {
    object: Object,
    _link: Link,
}

const SAVED_MAP: &str = "lf_saved";
const LARGE_STATE_MAP: &str = "lf_states";

impl Setter {
    /// Loads what every use needs.
    ///
    /// # Errors
    /// When the kernel refuses a program; ask [`crate::support`] first.
    pub fn load() -> Result<Setter> {
        let plain = Carrier::load(None)?;
        Ok(Setter { carriers: HashMap::from([(CcName::default(), plain)]), wrappers: HashMap::new() })
    }

    /// Every control block of a namespace, listeners included; empty when it may not be entered.
    ///
    /// # Errors
    /// When the iterator cannot be made or read.
    pub fn look(&self, namespace: &NetNamespace) -> Result<Vec<ControlBlock>> {
        let plain = &self.carriers[&CcName::default()];
        let bytes = visit(namespace, plain.look.as_fd())?;
        Ok(read_all(&bytes))
    }

    /// What can be done with the private state of a congestion control.
    ///
    /// # Errors
    /// When the kernel does not tell what it has.
    pub fn kind(&mut self, name: &str) -> Result<CcKind> {
        if name == "reno" {
            return Ok(CcKind::Stateless);
        }
        let inner = keep::wrapped(name);
        if inner.is_none() && cc::loaded::map_of(name, SAVED_MAP)?.is_some() {
            // A state larger than the kernel's room for it is in a storage that init() clears.
            let large = cc::loaded::map_of(name, LARGE_STATE_MAP)?.is_some();
            return Ok(if large { CcKind::Opaque } else { CcKind::Restoring });
        }
        // Asked for first, since asking loads a module, and a wrapper needs it loaded.
        let is_there = cc::kernel_has(inner.unwrap_or(name))?;
        if is_there && let Some(object) = wrapper_object(inner.unwrap_or(name)) {
            let able = self.ensure_wrapper(inner.unwrap_or(name), object).is_ok();
            return Ok(match (able, inner) {
                (true, None) => CcKind::Wrappable,
                (true, Some(_)) => CcKind::Restoring,
                (false, None) => CcKind::Opaque,
                (false, Some(_)) => CcKind::Absent,
            });
        }
        Ok(if is_there && inner.is_none() { CcKind::Opaque } else { CcKind::Absent })
    }

    /// Does it, in one visit of the namespace's sockets per congestion control involved and 65,536 connections; answers
    /// in the order of `steps`. A connection that is not there any more is answered as gone.
    ///
    /// # Errors
    /// When the programs cannot be loaded or run.
    pub fn apply(&mut self, namespace: &NetNamespace, steps: &[Step]) -> Result<Vec<Answer>> {
        let mut groups: BTreeMap<CcName, Vec<&Step>> = BTreeMap::new();
        for step in steps {
            let to = step.route.map(|route| route.to).unwrap_or_default();
            groups.entry(self.carrier_of(to)?).or_default().push(step);
        }
        let mut answers = HashMap::new();
        for (carrier, steps) in groups {
            for answer in self.carriers[&carrier].apply(namespace, &steps)? {
                answers.insert(answer.cookie, answer);
            }
        }
        let gone = |cookie| Answer { cookie, blocks: None, errors: Vec::new(), recovering: false };
        Ok(steps
            .iter()
            .map(|step| answers.remove(&step.cookie).unwrap_or_else(|| gone(step.cookie)))
            .collect())
    }

    /// Loads what setting connections of this congestion control takes, so that nothing more has to be looked for
    /// later: finding programs of others asks for CAP_SYS_ADMIN, which a long-lived process may want to give up.
    ///
    /// # Errors
    /// When the programs cannot be loaded.
    pub fn prepare(&mut self, cc: CcName) -> Result<()> {
        self.carrier_of(cc).map(drop)
    }

    /// The carrier that shares its storage with `to`, loaded when it is the first time.
    fn carrier_of(&mut self, to: CcName) -> Result<CcName> {
        if self.carriers.contains_key(&to) {
            return Ok(to);
        }
        let shared = match self.wrappers.get(&to) {
            Some(wrapper) => Some(object::map_handle(&wrapper.object, SAVED_MAP)?),
            None if to == CcName::default() => None,
            None => cc::loaded::map_of(to.as_str(), SAVED_MAP)?,
        };
        let Some(shared) = shared else { return Ok(CcName::default()) };
        self.carriers.insert(to, Carrier::load(Some(&shared))?);
        Ok(to)
    }

    /// Registers the wrapper of one of the kernel's congestion controls, or shares that of another process.
    fn ensure_wrapper(&mut self, inner: &str, bytes: &'static [u8]) -> Result<()> {
        let name = CcName::from(format!("{}{inner}", keep::PREFIX).as_str());
        let give_up = Instant::now() + Duration::from_secs(2);
        while !self.wrappers.contains_key(&name) && cc::loaded::map_of(name.as_str(), SAVED_MAP)?.is_none() {
            match Wrapper::register(name, bytes) {
                Ok(wrapper) => drop(self.wrappers.insert(name, wrapper)),
                // Another process has just registered it, or is about to be rid of it.
                Err(Error::NameTaken(_)) if Instant::now() < give_up => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn wrapper_object(inner: &str) -> Option<&'static [u8]> {
    match inner {
        "cubic" => Some(bpf_object!(concat!(env!("OUT_DIR"), "/tcb_keep_cubic.bpf.o"))),
        "bbr" => Some(bpf_object!(concat!(env!("OUT_DIR"), "/tcb_keep_bbr.bpf.o"))),
        _ => None,
    }
}

impl Wrapper {
    fn register(name: CcName, bytes: &'static [u8]) -> Result<Wrapper> {
        let mut object = object::load(name.as_str(), object::open(name.as_str(), bytes)?)?;
        let link = attach_ops(&mut object, "lfkeep", name)?;
        Ok(Wrapper { object, _link: link })
    }
}

/// Registers the congestion control of an object's variable.
fn attach_ops(object: &mut Object, variable: &str, name: CcName) -> Result<Link> {
    let mut map =
        object.maps_mut().find(|map| map.name() == variable).ok_or_else(|| object::missing_map(variable))?;
    map.attach_struct_ops().map_err(|source| match source.kind() {
        libbpf_rs::ErrorKind::AlreadyExists => Error::NameTaken(name.as_str().to_owned()),
        _ => refused(format!("register '{}'", name.as_str()), source),
    })
}

static OBJECT: &[u8] = bpf_object!(concat!(env!("OUT_DIR"), "/tcb_set.bpf.o"));

impl Carrier {
    fn load(saved: Option<&MapHandle>) -> Result<Carrier> {
        const NAME: &str = "tcb_set";
        let name = setter_name();
        let mut open = object::open(NAME, OBJECT)?;
        object::set_initial(&mut open, "lfset", |ops| object::rename(ops, "lfset", name.as_str()))?;
        if let Some(saved) = saved {
            let mut map = open.maps_mut().find(|map| map.name() == SAVED_MAP);
            let reused = map.as_mut().map(|map| map.reuse_fd(saved.as_fd()));
            reused
                .ok_or_else(|| object::missing_map(SAVED_MAP))?
                .map_err(|source| refused("share the storage of a congestion control", source))?;
        }
        let mut object = object::load(NAME, open)?;
        let setter = attach_ops(&mut object, "lfset", name)?;
        let (look, set) = (attach_program(&mut object, "look")?, attach_program(&mut object, "set")?);
        Ok(Carrier { object, look, set, name, _setter: setter })
    }

    /// As many at once as the kernel's side has room for.
    fn apply(&self, namespace: &NetNamespace, steps: &[&Step]) -> Result<Vec<Answer>> {
        let requests = object::map_handle(&self.object, "requests")?;
        let room = requests.max_entries().max(1) as usize;
        let answers = steps.chunks(room).map(|some| self.apply_at_once(namespace, &requests, some));
        Ok(answers.collect::<Result<Vec<_>>>()?.concat())
    }

    fn apply_at_once(
        &self,
        namespace: &NetNamespace,
        requests: &MapHandle,
        steps: &[&Step],
    ) -> Result<Vec<Answer>> {
        let failed = |source| refused("hand over what is to be set", source);
        let handed = steps.iter().try_for_each(|step| {
            let request = RawRequest::new(step, self.name);
            requests.update(&step.cookie.to_ne_bytes(), request.bytes(), MapFlags::ANY).map_err(failed)
        });
        let visited = handed.and_then(|()| visit(namespace, self.set.as_fd()));
        // Also when that failed: a request left behind would be carried out by the next visit.
        let answers = steps.iter().map(|step| take_answer(requests, step.cookie)).collect();
        visited.map(|_| answers)
    }
}

fn take_answer(requests: &MapHandle, cookie: u64) -> Answer {
    let key = cookie.to_ne_bytes();
    let found = requests.lookup(&key, MapFlags::ANY).ok().flatten();
    let _ = requests.delete(&key);
    let request = found.and_then(|bytes| RawRequest::read(&bytes)).filter(|request| request.done != 0);
    let blocks = |request: &RawRequest| ((&request.before).into(), (&request.after).into());
    Answer {
        cookie,
        blocks: request.as_ref().map(blocks),
        errors: request.as_ref().map(RawRequest::errors).unwrap_or_default(),
        recovering: request.is_some_and(|request| request.recovering != 0),
    }
}

/// A name that no other process and no other load uses: they are registered machine-wide.
fn setter_name() -> CcName {
    static LOADS: AtomicU32 = AtomicU32::new(0);
    let number = LOADS.fetch_add(1, Ordering::Relaxed) % 1000;
    CcName::from(format!("lfs{}_{number}", std::process::id()).as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::assert_mirrors;

    #[test]
    fn requests_and_blocks_are_laid_out_as_in_the_object_that_reads_them() {
        assert_mirrors!(OBJECT, "lf_request", RawRequest:
            actions cwnd_segments ssthresh_segments clamp_segments rto_min_us rto_max_ms through to state done
            clamp_error rto_min_error rto_max_error cc_error recovering before after);
        assert_mirrors!(OBJECT, "lf_block", RawBlock:
            cookie state netns interface gateway local remote snd_una snd_nxt cwnd_segments cwnd_credit_segments
            ssthresh_segments clamp_segments srtt_us rttvar_us min_rtt_us flight_segments lost_segments mss_bytes
            rto_min_us rto_max_ms local_port remote_port family gateway_family tcp_state ca_state cc);
    }
}
