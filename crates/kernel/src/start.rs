//! A start after a pause, as kernels tell it to a congestion control: by an event among others (`cwnd_event`), and
//! since Linux 7.3 by a callback of its own. An object holds a program for each, and the kernel's types say which one
//! it takes.

use libbpf_rs::{AsRawLibbpf as _, MapType, OpenObject, btf::Btf, btf::types::Struct};
use std::sync::OnceLock;

/// What the names of such programs end with.
const EVENT: &str = "_cwnd_event";
const OWN_CALLBACK: &str = "_cwnd_event_tx_start";

/// Leaves out the program that this kernel would never call. Objects without such programs stay as they are.
pub fn choose(object: &mut OpenObject) {
    let has_choice = object.progs_mut().any(|program| ends_with(program.name(), OWN_CALLBACK));
    if has_choice {
        leave_out(object, if has_own_callback() { EVENT } else { OWN_CALLBACK });
    }
}

fn ends_with(name: &std::ffi::OsStr, end: &str) -> bool {
    name.as_encoded_bytes().ends_with(end.as_bytes())
}

fn has_own_callback() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| {
        let Ok(btf) = Btf::from_vmlinux() else { return false };
        let ops: Option<Struct<'_>> = btf.type_by_name("tcp_congestion_ops");
        ops.is_some_and(|ops| {
            ops.iter().any(|member| member.name.is_some_and(|name| name == "cwnd_event_tx_start"))
        })
    })
}

/// Takes a program out of the object and out of the congestion control that names it.
fn leave_out(object: &mut OpenObject, end: &str) {
    let mut left_out = Vec::new();
    for mut program in object.progs_mut().filter(|program| ends_with(program.name(), end)) {
        program.set_autoload(false);
        left_out.push((program.as_libbpf_object().as_ptr() as usize).to_ne_bytes());
    }
    for mut map in object.maps_mut().filter(|map| map.map_type() == MapType::StructOps) {
        // Until it is loaded, a member points to libbpf's own record of its program.
        let members = map.initial_value_mut().unwrap_or_default();
        for member in members.chunks_exact_mut(size_of::<usize>()) {
            if left_out.iter().any(|program| member == program) {
                member.fill(0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::{self, bpf_object};

    /// Programs that will be loaded, of those for a start after a pause, and how many members point to them.
    fn kept(object: &mut OpenObject) -> (Vec<String>, usize) {
        let is_start = |name: &str| name.ends_with(EVENT) || name.ends_with(OWN_CALLBACK);
        let (mut names, mut pointers) = (Vec::new(), Vec::new());
        for program in object.progs_mut() {
            let name = program.name().to_string_lossy().into_owned();
            if is_start(&name) {
                pointers.push((program.as_libbpf_object().as_ptr() as usize).to_ne_bytes());
                names.extend(program.autoload().then_some(name));
            }
        }
        let maps = object.maps().filter(|map| map.map_type() == MapType::StructOps);
        let members: Vec<u8> =
            maps.flat_map(|map| map.initial_value().unwrap_or_default().to_vec()).collect();
        let of_start = |member: &&[u8]| pointers.iter().any(|pointer| member == pointer);
        (names, members.chunks_exact(size_of::<usize>()).filter(of_start).count())
    }

    #[test]
    fn of_the_two_programs_for_a_start_the_one_that_this_kernel_calls_is_kept() {
        let end = if has_own_callback() { OWN_CALLBACK } else { EVENT };
        for bytes in [
            bpf_object!(concat!(env!("OUT_DIR"), "/vegas.bpf.o")),
            bpf_object!(concat!(env!("OUT_DIR"), "/tcb_keep_cubic.bpf.o")),
            bpf_object!(concat!(env!("OUT_DIR"), "/tcb_keep_bbr.bpf.o")),
        ] {
            let mut object = object::open("start", bytes).unwrap();
            assert_eq!((kept(&mut object).0.len(), kept(&mut object).1), (2, 2));
            choose(&mut object);
            let (names, members) = kept(&mut object);
            assert!(names.len() == 1 && names[0].ends_with(end) && members == 1, "{names:?}, {members}");
        }
    }

    /// Both kinds, whatever this kernel is: what is left out is neither loaded nor named.
    #[test]
    fn either_program_can_be_left_out() {
        for (end, left) in [(EVENT, "vegas_cwnd_event_tx_start"), (OWN_CALLBACK, "vegas_cwnd_event")] {
            let mut object =
                object::open("start", bpf_object!(concat!(env!("OUT_DIR"), "/vegas.bpf.o"))).unwrap();
            leave_out(&mut object, end);
            assert_eq!(kept(&mut object), (vec![left.to_owned()], 1));
        }
    }
}
