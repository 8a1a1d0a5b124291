//! Registering our algorithms: pinned ([`load`]) or for the life of a process ([`hold`]).

use super::loaded::{self, Loaded, SETTINGS_MAP, Settings};
use crate::{
    Error, Result, bpffs,
    object::{self, bpf_object, refused},
    sockets,
};
use libbpf_rs::{MapCore, MapMut, Object};
use longfat_cc::{Algorithm, Tunables, UnknownAlgorithm};
use longfat_host::{
    socket::{CC_NAME_MAX, CC_RESTRICTED},
    support::Missing,
};
use std::{
    ffi::CString,
    fs,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
    time::Duration,
};

include!(concat!(env!("OUT_DIR"), "/objects.rs"));

/// A congestion control that stays registered at least as long as this lives.
///
/// Two processes of the same build that hold the same name share one registration.
#[derive(Debug)]
pub struct Registration {
    kernel_name: String,
    tunables: Tunables,
    dilation: u32,
    /// Kept open: the kernel unregisters when the last descriptor and pin are gone.
    #[allow(dead_code)]
    link: OwnedFd,
}

impl Registration {
    pub(super) fn new(kernel_name: &str, tunables: &Tunables, dilation: u32, link: OwnedFd) -> Registration {
        Registration { kernel_name: kernel_name.to_owned(), tunables: tunables.clone(), dilation, link }
    }

    /// The name to give to a socket.
    pub fn kernel_name(&self) -> &str {
        &self.kernel_name
    }

    /// How it is set: the defaults, unless a person had loaded it with others.
    pub fn tunables(&self) -> &Tunables {
        &self.tunables
    }

    /// How many times slower than the kernel's the time of its connections passes.
    pub fn dilation(&self) -> u32 {
        self.dilation
    }
}

/// At the kernel's own speed.
const UNDILATED: u32 = 1;

/// What [`load`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loading {
    /// The congestion control was not there; now it is.
    Loaded,
    /// The congestion control was there with other settings or from another build; new connections use the new one.
    Replaced,
    /// The congestion control was there just so.
    Unchanged,
}

/// What [`unload`] left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unloading {
    /// Sockets that keep it until they close.
    pub sockets: usize,
    /// Whether a running longfat still holds it.
    pub held: bool,
}

/// Loads an algorithm so that it outlives this process: pinned at `/sys/fs/bpf/longfat/cc/lf_NAME`.
pub fn load(tunables: &Tunables) -> Result<Loading> {
    load_as(tunables, &tunables.algorithm().kernel_name())
}

/// As [`load`], and changes nothing that a person has set: where the algorithm is pinned, it keeps its tunables, also
/// when another build had loaded it and is replaced. Of that build's values, those that this one does not take, and
/// those that it has no tunable for, are left out. Gives back how it is set now.
pub fn load_as_set(algorithm: Algorithm) -> Result<(Loading, Tunables)> {
    load_as_set_as(algorithm, &algorithm.kernel_name())
}

fn load_as_set_as(algorithm: Algorithm, name: &str) -> Result<(Loading, Tunables)> {
    let pinned = if bpffs::pin_path(name).exists() { loaded::find(name)? } else { None };
    let set = pinned.and_then(|found| found.settings).map(|settings| kept(&settings, algorithm));
    let tunables = set.unwrap_or_else(|| Tunables::defaults(algorithm));
    load_as(&tunables, name).map(|loading| (loading, tunables))
}

/// What this build takes of a loaded algorithm's tunables.
fn kept(settings: &Settings, algorithm: Algorithm) -> Tunables {
    let found = settings.tunables(algorithm);
    let values = found.iter().map(|(name, value)| format!("{name}={value}"));
    let taken = values.filter(|one| Tunables::from_settings(algorithm, [one]).is_ok());
    Tunables::from_settings(algorithm, taken).unwrap_or_else(|_| Tunables::defaults(algorithm))
}

fn load_as(tunables: &Tunables, name: &str) -> Result<Loading> {
    let pin = bpffs::pin_path(name);
    bpffs::refuse_own_mounts()?;
    bpffs::prepare()?;
    while_names_change(|| {
        let Some(found) = loaded::find(name)? else {
            let (_, link) = attach(tunables, UNDILATED, name, None)?;
            pin_link(&link, &pin)?;
            return Ok(Loading::Loaded);
        };
        let same = ours(&found, name)?.is_this_build_with(tunables);
        let link = found.open().ok_or_else(|| Error::NameTaken(name.to_owned()))?;
        match (pin.exists(), same) {
            (true, true) => Ok(Loading::Unchanged),
            (true, false) => replace(tunables, name, &link).map(|()| Loading::Replaced),
            (false, true) => pin_link(&link, &pin).map(|()| Loading::Loaded),
            (false, false) => Err(Error::Registered {
                name: name.to_owned(),
                how: "held by a running longfat with other settings or of another build".into(),
                mend: "wait for it to end, then load again".into(),
            }),
        }
    })
}

/// Takes the pin away. The name goes with its last holder; sockets keep the congestion control until they close.
pub fn unload(algorithm: Algorithm) -> Result<Unloading> {
    unload_name(algorithm.kernel_name())
}

fn unload_name(name: String) -> Result<Unloading> {
    bpffs::refuse_own_mounts()?;
    match fs::remove_file(bpffs::pin_path(&name)) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(not_loaded(name)),
        Err(source) => return Err(Error::io(format!("remove {}", bpffs::pin_path(&name).display()), source)),
    }
    let sockets = sockets::all()?.into_iter().filter(|socket| socket.cc == name).count();
    Ok(Unloading { sockets, held: loaded::find(&name)?.is_some() })
}

fn not_loaded(name: String) -> Error {
    let held = loaded::find(&name).ok().flatten().is_some();
    let mend = if held {
        "a running program registered it and takes it away when it ends".to_owned()
    } else {
        format!("'longfat cc load {name}' loads it")
    };
    Error::NotLoaded { name, mend }
}

/// Registers an algorithm with its defaults for the life of the returned value. Where it is registered already by
/// this build of longfat, pinned or held, that registration is shared, with whatever tunables it has.
pub fn hold(algorithm: Algorithm) -> Result<Registration> {
    hold_as(&Tunables::defaults(algorithm), UNDILATED, &algorithm.kernel_name())
}

/// As [`hold`], with these tunables and no others, and with connections whose time passes `dilation` times slower than
/// the kernel's: a registration that is set otherwise is an error.
pub fn hold_with(tunables: &Tunables, dilation: u32) -> Result<Registration> {
    exactly(tunables, hold_as(tunables, dilation, &tunables.algorithm().kernel_name())?)
}

fn exactly(wanted: &Tunables, held: Registration) -> Result<Registration> {
    if held.tunables == *wanted {
        return Ok(held);
    }
    let set = format!("set otherwise ({}) than wanted ({wanted})", held.tunables);
    let mend = format!("'longfat cc unload {}', or wait for the program that holds it", held.kernel_name);
    Err(Error::Registered { name: held.kernel_name, how: set.into(), mend })
}

const ATTEMPTS: u32 = 10;
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(20);

/// Tries again while a name is taken by nobody who could be found: another process may register or unregister between
/// our look and our attempt, and a name is free only some time after its link has gone.
fn while_names_change<T>(mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 1..ATTEMPTS {
        match attempt() {
            Err(Error::NameTaken(_)) => std::thread::sleep(BETWEEN_ATTEMPTS),
            other => return other,
        }
    }
    attempt()
}

/// `wanted` counts where nothing of that name is registered.
fn hold_as(wanted: &Tunables, dilation: u32, name: &str) -> Result<Registration> {
    while_names_change(|| match loaded::find(name)? {
        Some(found) => share(&found, wanted.algorithm(), dilation, name),
        None => {
            let (_, link) = attach(wanted, dilation, name, None)?;
            Ok(Registration::new(name, wanted, dilation, link))
        }
    })
}

/// [`Error::NameTaken`] when it went between the look and the opening.
fn share(found: &Loaded, algorithm: Algorithm, dilation: u32, name: &str) -> Result<Registration> {
    let settings = ours(found, name)?;
    if settings.build_id != longfat_cc::build_id() {
        return Err(Error::Registered {
            name: name.to_owned(),
            how: "from another build of longfat".into(),
            mend: format!("'longfat cc unload {name}', or wait for the program that holds it"),
        });
    }
    if settings.dilation != dilation {
        return Err(other_speed(name, settings.dilation, dilation));
    }
    let tunables = settings.tunables(algorithm);
    let link = found.open().ok_or_else(|| Error::NameTaken(name.to_owned()))?;
    Ok(Registration::new(name, &tunables, settings.dilation, link))
}

/// Nobody is given a clock that he did not ask for.
fn other_speed(name: &str, found: u32, wanted: u32) -> Error {
    Error::Registered {
        name: name.to_owned(),
        how: format!("with a clock of dilation {found}, wanted is dilation {wanted}").into(),
        mend: "wait for the run that is carried out slower, or at its own speed, to end".into(),
    }
}

/// Makes every named congestion control usable: ours (`lf_…`) are held, the kernel's own are looked for, and loaded
/// as modules where that is possible.
pub fn ensure(names: &[&str]) -> Result<Vec<Registration>> {
    let mut held: Vec<Registration> = Vec::new();
    for name in names {
        if Algorithm::is_our_name(name) {
            if held.iter().all(|registration| registration.kernel_name != *name) {
                held.push(hold(Algorithm::find(name)?)?);
            }
        } else if !kernel_has(name)? {
            return Err(unavailable(name));
        }
    }
    Ok(held)
}

fn unavailable(name: &str) -> Error {
    if name.is_empty() || name.len() > CC_NAME_MAX {
        return Error::NoName(name.to_owned());
    }
    let known: Vec<_> = Algorithm::all().map(|algorithm| algorithm.kernel_name()).collect();
    Error::Unavailable { name: name.to_owned(), known: known.join(", ") }
}

/// A name that is neither the kernel's nor ours: the nearest of ours, or where to look for one of the kernel's.
pub fn unknown(name: &str, unknown: UnknownAlgorithm) -> Error {
    if unknown.suggestion.is_some() { unknown.into() } else { unavailable(name) }
}

/// A congestion control that is to be the kernel's own, where it has none of that name.
pub fn missing(name: &str) -> Option<Missing> {
    let others = || format!("run 'modprobe tcp_{name}', or choose another ('longfat cc list')");
    let (why, mend) = match kernel_has(name) {
        Ok(true) => return None,
        Ok(false) => ("the kernel has none of that name".to_owned(), others()),
        Err(Error::Host(longfat_host::Error::CcRestricted { mend, .. })) => {
            (format!("it {CC_RESTRICTED}"), mend)
        }
        Err(error) => (error.to_string(), others()),
    };
    Some(Missing::new(format!("congestion control '{name}'"), why, mend))
}

/// Whether a socket takes that congestion control: asked of a socket, because that also loads a module.
///
/// # Errors
/// When the kernel has it, and this user may not use it.
pub fn kernel_has(name: &str) -> Result<bool> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
    let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)
        .map_err(|errno| Error::io("open a TCP socket", errno))?;
    match longfat_host::socket::set_cc(&socket, name) {
        Err(restricted @ longfat_host::Error::CcRestricted { .. }) => Err(restricted.into()),
        taken => Ok(taken.is_ok()),
    }
}

fn ours<'a>(found: &'a Loaded, name: &str) -> Result<&'a Settings> {
    found.settings.as_ref().ok_or_else(|| Error::NameTaken(name.to_owned()))
}

/// Loads the programs and registers them under `kernel_name`. `dilation`: how many times slower than the kernel's the
/// time of its connections passes. `records_bytes`: record every callback into a ring
/// buffer of that size.
pub fn attach(
    tunables: &Tunables,
    dilation: u32,
    kernel_name: &str,
    records_bytes: Option<u32>,
) -> Result<(Object, OwnedFd)> {
    let mut object = prepare(tunables, dilation, kernel_name, records_bytes)?;
    let link = with_ops(&mut object, tunables, |map| map.attach_struct_ops())?;
    let link = link.map_err(|source| match source.kind() {
        libbpf_rs::ErrorKind::AlreadyExists => Error::NameTaken(kernel_name.to_owned()),
        _ => refused(format!("register '{kernel_name}'"), source),
    })?;
    // A descriptor of our own: dropping libbpf's link closes its one, and no more.
    let link = link.as_fd().try_clone_to_owned();
    let link = link.map_err(|source| Error::io(format!("keep the link of '{kernel_name}'"), source))?;
    Ok((object, link))
}

fn replace(tunables: &Tunables, kernel_name: &str, link: &OwnedFd) -> Result<()> {
    let mut object = prepare(tunables, UNDILATED, kernel_name, None)?;
    // The kernel takes a filled map only. Attaching fills it first, and then fails because the name is registered:
    // by the link that is about to take the map.
    match with_ops(&mut object, tunables, |map| map.attach_struct_ops())? {
        Err(source) if source.kind() != libbpf_rs::ErrorKind::AlreadyExists => {
            return Err(refused(format!("prepare '{kernel_name}'"), source));
        }
        _ => {}
    }
    let map = object::map_handle(&object, &tunables.algorithm().kernel_name())?;
    loaded::replace(link, &map, kernel_name)
}

/// The object's tcp_congestion_ops: a map with the name of the variable in NAME.bpf.c.
fn with_ops<T>(
    object: &mut Object,
    tunables: &Tunables,
    act: impl FnOnce(&mut MapMut<'_>) -> T,
) -> Result<T> {
    let name = tunables.algorithm().kernel_name();
    let mut map = object.maps_mut().find(|map| map.name() == name.as_str());
    map.as_mut().map(act).ok_or_else(|| object::missing_map(&name))
}

fn prepare(
    tunables: &Tunables,
    dilation: u32,
    kernel_name: &str,
    records_bytes: Option<u32>,
) -> Result<Object> {
    let algorithm = tunables.algorithm();
    let bytes = OBJECTS.iter().find(|(name, _)| *name == algorithm.name()).map(|(_, bytes)| *bytes);
    let bytes = bytes.ok_or_else(|| {
        let absent = std::io::Error::from(std::io::ErrorKind::NotFound);
        Error::io(format!("find cc/bpf/{}.bpf.c in this build", algorithm.name()), absent)
    })?;
    let mut object = object::open(kernel_name, bytes)?;
    object::set_initial(&mut object, SETTINGS_MAP, |bytes| {
        Settings::write(bytes, tunables, dilation, records_bytes.is_some());
    })?;
    if kernel_name != algorithm.kernel_name() {
        object::set_initial(&mut object, &algorithm.kernel_name(), |bytes| {
            object::rename(bytes, &algorithm.kernel_name(), kernel_name);
        })?;
    }
    if let Some(size) = records_bytes {
        let mut maps = object.maps_mut();
        let mut records = maps.find(|map| map.name() == "records");
        if let Some(Err(source)) = records.as_mut().map(|map| map.set_max_entries(size)) {
            return Err(refused("size the ring buffer of records", source));
        }
    }
    object::load(kernel_name, object)
}

fn pin_link(link: &OwnedFd, path: &Path) -> Result<()> {
    let what = || format!("pin the link at {}", path.display());
    let text = CString::new(path.as_os_str().as_bytes()).map_err(|error| Error::io(what(), error))?;
    // SAFETY: an open descriptor and a terminated path.
    let result = unsafe { libbpf_sys::bpf_obj_pin(link.as_raw_fd(), text.as_ptr()) };
    if result == 0 { Ok(()) } else { Err(Error::io(what(), std::io::Error::from_raw_os_error(-result))) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longfat_host::socket::{cc, set_cc};
    use std::net::{TcpListener, TcpStream};

    /// A name that no other test, and no other run of this one, registers; its pin goes even when the test fails.
    struct Name(String);

    fn name(test: &str) -> Name {
        Name(format!("lft{}{test}", std::process::id()))
    }

    impl Drop for Name {
        fn drop(&mut self) {
            let _ = fs::remove_file(bpffs::pin_path(&self.0));
        }
    }

    fn reno(max_ssthresh: u32) -> Tunables {
        Tunables::from_values(Algorithm::find("reno").unwrap(), [max_ssthresh])
    }

    fn registered(name: &str) -> bool {
        loaded::find(name).unwrap().is_some()
    }

    #[test]
    fn settings_are_laid_out_as_in_every_object() {
        for (name, object) in OBJECTS {
            let settings = crate::layout::Layout::of(object, "lf_settings");
            let places = settings.places(["build_id", "record", "dilation"]);
            let written = [0, loaded::RECORD_OFFSET, loaded::DILATION_OFFSET];
            assert_eq!((settings.bytes, places), (loaded::VALUES_OFFSET, written), "{name}");
        }
    }

    #[test]
    fn what_is_loaded_stays_without_a_holder_is_used_by_sockets_and_goes_when_unloaded() {
        let owner = name("a");
        let name = owner.0.clone();
        assert_eq!(load_as(&reno(0), &name).unwrap(), Loading::Loaded);
        assert!(registered(&name), "only the pin holds it now");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        set_cc(&listener, &name).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        assert_eq!(cc(&accepted).unwrap(), name);
        set_cc(&client, &name).unwrap();
        let left = unload_name(name.clone()).unwrap();
        assert_eq!(left, Unloading { sockets: 3, held: false });
        assert!(!registered(&name));
        assert_eq!(cc(&accepted).unwrap(), name, "an open socket keeps it");
        assert!(set_cc(&client, &name).is_err() || cc(&client).unwrap() == name);
    }

    #[test]
    fn loading_again_changes_nothing_or_replaces_the_tunables_in_place() {
        let owner = name("b");
        let name = owner.0.clone();
        load_as(&reno(0), &name).unwrap();
        let link = loaded::find(&name).unwrap().unwrap().link_id;
        assert_eq!(load_as(&reno(0), &name).unwrap(), Loading::Unchanged);
        assert_eq!(load_as(&reno(100), &name).unwrap(), Loading::Replaced);
        let now = loaded::find(&name).unwrap().unwrap();
        assert_eq!(now.link_id, link);
        assert!(now.settings.unwrap().is_this_build_with(&reno(100)));
        unload_name(name).unwrap();
    }

    /// Loads and pins it as a build would that was made of other sources.
    fn load_of_another_build(tunables: &Tunables, name: &str) {
        let algorithm = tunables.algorithm();
        let bytes = OBJECTS.iter().find(|(of, _)| *of == algorithm.name()).unwrap().1;
        let mut object = object::open(name, bytes).unwrap();
        object::set_initial(&mut object, SETTINGS_MAP, |bytes| {
            Settings::write(bytes, tunables, UNDILATED, false);
            bytes[0] ^= 1;
        })
        .unwrap();
        let rename = |bytes: &mut [u8]| object::rename(bytes, &algorithm.kernel_name(), name);
        object::set_initial(&mut object, &algorithm.kernel_name(), rename).unwrap();
        let mut object = object::load(name, object).unwrap();
        let link = with_ops(&mut object, tunables, |map| map.attach_struct_ops()).unwrap().unwrap();
        pin_link(&link.as_fd().try_clone_to_owned().unwrap(), &bpffs::pin_path(name)).unwrap();
    }

    #[test]
    fn loading_for_a_relay_keeps_what_a_person_had_set_also_in_another_build() {
        let owner = name("i");
        let name = &owner.0;
        let algorithm = reno(0).algorithm();
        bpffs::prepare().unwrap();
        assert_eq!(load_as_set_as(algorithm, name).unwrap(), (Loading::Loaded, reno(0)));
        load_as(&reno(100), name).unwrap();
        assert_eq!(load_as_set_as(algorithm, name).unwrap(), (Loading::Unchanged, reno(100)));
        unload_name(name.clone()).unwrap();
        // A name is free only some time after its link has gone.
        std::thread::sleep(Duration::from_millis(200));
        load_of_another_build(&reno(77), name);
        assert_eq!(load_as_set_as(algorithm, name).unwrap(), (Loading::Replaced, reno(77)));
        let now = loaded::find(name).unwrap().unwrap();
        assert!(now.settings.unwrap().is_this_build_with(&reno(77)));
        unload_name(name.clone()).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        load_of_another_build(&reno(u32::MAX), name);
        let said = "a value that this build does not take is its default";
        assert_eq!(load_as_set_as(algorithm, name).unwrap(), (Loading::Replaced, reno(0)), "{said}");
    }

    #[test]
    fn a_held_registration_leaves_nothing_behind() {
        let owner = name("c");
        let name = owner.0.clone();
        let held = hold_as(&reno(0), 1, &name).unwrap();
        assert!(registered(&name));
        assert_eq!(held.tunables(), &reno(0));
        let message = unload_name(name.clone()).unwrap_err().to_string();
        assert!(message.contains("a running program registered it"), "{message}");
        drop(held);
        assert!(!registered(&name));
    }

    #[test]
    fn holders_share_one_registration_and_the_last_one_ends_it() {
        let owner = name("d");
        let name = owner.0.clone();
        let first = hold_as(&reno(0), 1, &name).unwrap();
        let second = hold_as(&reno(0), 1, &name).unwrap();
        drop(first);
        assert!(registered(&name));
        drop(second);
        assert!(!registered(&name));
    }

    #[test]
    fn holding_what_a_person_loaded_takes_their_tunables_and_ends_with_neither() {
        let owner = name("e");
        let name = owner.0.clone();
        load_as(&reno(100), &name).unwrap();
        let held = hold_as(&reno(0), 1, &name).unwrap();
        assert_eq!(held.tunables(), &reno(100));
        assert!(unload_name(name.clone()).unwrap().held);
        drop(held);
        assert!(!registered(&name));
    }

    #[test]
    fn tunables_that_are_asked_for_are_had_or_refused_with_both_values() {
        let owner = name("g");
        let held = exactly(&reno(100), hold_as(&reno(100), 1, &owner.0).unwrap()).unwrap();
        assert_eq!(held.tunables(), &reno(100));
        let refused = exactly(&reno(7), hold_as(&reno(7), 1, &owner.0).unwrap());
        let message = refused.unwrap_err().to_string();
        assert!(message.contains("max_ssthresh_segments=100") && message.contains("segments=7"), "{message}");
    }

    #[test]
    fn a_registration_of_another_speed_of_time_is_had_or_refused_with_both() {
        let owner = name("h");
        let held = exactly(&reno(0), hold_as(&reno(0), 4, &owner.0).unwrap()).unwrap();
        assert_eq!(held.dilation(), 4);
        let message = hold_as(&reno(0), 1, &owner.0).unwrap_err().to_string();
        assert!(message.contains("dilation 4") && message.contains("dilation 1"), "{message}");
        assert!(!loaded::find(&owner.0).unwrap().unwrap().settings.unwrap().is_this_build_with(&reno(0)));
    }

    #[test]
    fn a_name_held_with_other_settings_is_not_pinned_over() {
        let owner = name("f");
        let name = owner.0.clone();
        let _held = hold_as(&reno(0), 1, &name).unwrap();
        let message = load_as(&reno(100), &name).unwrap_err().to_string();
        assert!(message.contains("held by a running longfat with other settings"), "{message}");
    }

    #[test]
    fn a_name_that_the_kernel_itself_has_is_taken() {
        let message = attach(&reno(0), 1, "cubic", None).unwrap_err().to_string();
        assert!(message.starts_with("'cubic' is registered in this kernel by another program"), "{message}");
    }

    #[test]
    fn unloading_what_is_not_loaded_says_how_to_load_it() {
        let message = unload_name("lf_none".into()).unwrap_err().to_string();
        assert_eq!(message, "'lf_none' is not loaded; 'longfat cc load lf_none' loads it");
    }

    #[test]
    fn ensuring_holds_ours_once_and_names_what_the_kernel_has_not() {
        let held = ensure(&["lf_highspeed", "reno", "lf_highspeed", "cubic"]).unwrap();
        assert_eq!(held.iter().map(Registration::kernel_name).collect::<Vec<_>>(), ["lf_highspeed"]);
        let message = ensure(&["vegsa"]).unwrap_err().to_string();
        assert!(message.contains("'vegsa'") && message.contains("lf_highspeed"), "{message}");
        assert!(ensure(&["lf_higspeed"]).unwrap_err().to_string().contains("did you mean 'highspeed'?"));
    }
}
