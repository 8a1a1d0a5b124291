//! Programs that make packets look forwarded, from one process's hands to the next one's.
#![allow(clippy::unwrap_used)]

mod bed;

use bed::{Bed, until};
use longfat_kernel::{alike::Alike, watch::Watching};
use std::os::fd::OwnedFd;

const OWN_MARK: u32 = 7;
const NONE: [Vec<u32>; 2] = [const { Vec::new() }; 2];

/// Numbers of the programs at `eth0`: those on what arrives, those on what leaves.
fn programs(bed: &Bed) -> [Vec<u32>; 2] {
    let at = |hook| {
        let (mut ids, mut count) = ([0; 16], 16);
        // SAFETY: the name is terminated; there is room for as many numbers as said.
        let outcome = unsafe {
            let index = libc::if_nametoindex(c"eth0".as_ptr());
            let flags = std::ptr::null_mut();
            libbpf_sys::bpf_prog_query(index as i32, hook, 0, flags, ids.as_mut_ptr(), &raw mut count)
        };
        assert_eq!(outcome, 0, "{}", std::io::Error::last_os_error());
        ids[..count as usize].to_vec()
    };
    bed.near.run(|| [libbpf_sys::BPF_TCX_INGRESS, libbpf_sys::BPF_TCX_EGRESS].map(at)).unwrap()
}

/// Programs go with the last descriptor of their link. A child that another thread is about to start has one for a
/// moment, too.
fn settle(bed: &Bed, wanted: &[Vec<u32>; 2]) {
    until(|| programs(bed) == *wanted, || format!("{:?} instead of {wanted:?}", programs(bed)));
}

fn attach(bed: &Bed, left: Vec<OwnedFd>) -> Alike {
    bed.near.run(|| Alike::attach(&["eth0".into()], OWN_MARK, left)).unwrap().unwrap()
}

#[test]
fn programs_that_are_left_stand_until_others_take_their_places() {
    let bed = Bed::new("left");
    let alike = attach(&bed, Vec::new());
    let first = programs(&bed);
    assert_eq!(first.each_ref().map(Vec::len), [1, 1]);
    let left = alike.links().unwrap();
    drop(alike);
    assert_eq!(programs(&bed), first, "whoever has the links has them there");
    let next = attach(&bed, left);
    let second = programs(&bed);
    assert_eq!(second.each_ref().map(Vec::len), [1, 1], "no more than before");
    assert!(first[0] != second[0] && first[1] != second[1], "{first:?} and {second:?}");
    drop(next);
    settle(&bed, &NONE);
}

#[test]
fn links_of_an_interface_that_is_not_meant_end() {
    let bed = Bed::new("else");
    let left = attach(&bed, Vec::new()).links().unwrap();
    let elsewhere = bed.near.run(|| Alike::attach(&["lo".into()], OWN_MARK, left)).unwrap().unwrap();
    settle(&bed, &NONE);
    drop(elsewhere);
}

#[test]
fn a_watching_program_has_the_place_of_the_one_that_it_calls() {
    let bed = Bed::new("place");
    let alike = attach(&bed, Vec::new());
    let before = programs(&bed);
    let watching = bed.near.run(|| Watching::attach(&["eth0".into()], Some(&alike), None)).unwrap().unwrap();
    let with_it = programs(&bed);
    assert_eq!(with_it.each_ref().map(Vec::len), [1, 1]);
    assert!(with_it[0] != before[0] && with_it[1] == before[1], "{before:?} and {with_it:?}");
    // What a process leaves does not watch without it.
    assert_eq!(alike.links().unwrap().len(), 1);
    drop(watching);
    settle(&bed, &[Vec::new(), before[1].clone()]);
}
