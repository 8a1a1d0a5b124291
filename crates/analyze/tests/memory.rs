//! What a live flow takes, octet by octet, as the allocator is asked for it.

use longfat_analyze::{
    Settings,
    segment::{FlowKey, Segment, flag, option},
    table::FlowTable,
};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

/// Counts what this thread has.
struct Counting;

thread_local! {
    static LIVE_BYTES: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // Gone when the thread ends; nobody asks then.
    let _ = LIVE_BYTES.try_with(|live| live.set(live.get() + bytes));
}

// SAFETY: everything is the system's allocator's; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise is handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promise is handed on.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: the caller's promise is handed on.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const FLOWS: u32 = 2_000;
/// Between packets of one flow: ten seconds in all would touch every stretch of time there is.
const GAP_NS: i64 = 100_000_000;

/// The `number`th packet of a flow: data and its acknowledgement in turn, behind a handshake.
fn packet(flow: u32, number: u32) -> Segment {
    let client = (0xffff_0a00_0001, (flow % 60_000 + 1_000) as u16);
    let (from_client, data) = (number.is_multiple_of(2), number / 2 * 1000);
    let ends = [client, (0xffff_0a00_0002, 443)];
    let (key, end) = FlowKey::of(ends[usize::from(!from_client)], ends[usize::from(from_client)]);
    Segment {
        time_ns: i64::from(number) * GAP_NS + i64::from(flow),
        index: u64::from(number * FLOWS + flow),
        key,
        end,
        options: option::TIMESTAMPS,
        flags: if number < 2 { flag::SYN | if number == 1 { flag::ACK } else { 0 } } else { flag::ACK },
        sequence: if from_client { data } else { u32::from(number > 1) },
        acknowledgement: if from_client { u32::from(number > 1) } else { data + 1000 },
        window: 1000,
        payload_bytes: if from_client && number > 1 { 1000 } else { 0 },
        ts_value: number + 1,
        ts_echo: number,
        ..Segment::default()
    }
}

/// Octets for each flow that has had so many packets, and is live.
fn bytes_of_a_flow(packets: u32) -> isize {
    let before = LIVE_BYTES.get();
    let mut table = FlowTable::new(Settings::default());
    for number in 0..packets {
        (0..FLOWS).for_each(|flow| table.on_segment(&packet(flow, number)));
    }
    assert_eq!(table.live(), FLOWS as usize);
    (LIVE_BYTES.get() - before) / FLOWS as isize
}

#[test]
fn a_flow_of_few_packets_takes_little_and_a_million_of_them_two_gigabytes_at_most() {
    let few = [1, 4, 12, 32].map(bytes_of_a_flow);
    assert!(few.is_sorted() && few[0] > 0, "{few:?}");
    assert!(few[0] < 500 && few[2] < 1_000 && few[3] < 2_000, "{few:?}");
}

#[test]
fn flows_that_are_live_at_once_are_bounded_oldest_out_first_and_counted() {
    let most = 100;
    let mut table = FlowTable::new(Settings { live_flows: most, ..Settings::default() });
    // The first goes on among all others.
    for flow in 1..FLOWS {
        table.on_segment(&packet(flow, 0));
        table.on_segment(&Segment { time_ns: i64::from(flow), ..packet(0, u32::from(flow > 1) * 2) });
        assert!(table.live() <= most);
    }
    let retired = table.finish();
    assert_eq!(retired.flows, u64::from(FLOWS), "each once: the first was never cut");
    assert!(retired.cut_flows >= u64::from(FLOWS) - most as u64 && retired.cut_flows < u64::from(FLOWS));
}

#[test]
fn a_flow_that_goes_on_is_bounded_however_long_it_does() {
    let many = [33, 100, 1_000].map(bytes_of_a_flow);
    assert!(many.iter().all(|bytes| *bytes < 62_000), "{many:?}");
}

#[test]
fn few_idle_flows_wait_for_a_keep_alive_and_many_do_not() {
    let live_after = |flows: u32, hours: i64| {
        let mut table = FlowTable::new(Settings::default());
        for number in 0..4 {
            (0..flows).for_each(|flow| table.on_segment(&packet(flow, number)));
        }
        table.sweep(hours * 3_600_000_000_000);
        (table.live(), table.finish().flows)
    };
    assert_eq!(live_after(900, 1), (900, 900));
    assert_eq!(live_after(FLOWS, 1), (1_000, u64::from(FLOWS)));
    assert_eq!(live_after(900, 3), (0, 900));
}

/// Octets a flow takes after its sender jumped over a gap and then filled every second octet of that.
fn bytes_of_a_filled_gap(late: u32) -> isize {
    let before = LIVE_BYTES.get();
    let mut table = FlowTable::new(Settings::default());
    (0..3).for_each(|number| table.on_segment(&packet(0, number)));
    let sent =
        |number: u32, sequence: u32| Segment { sequence, payload_bytes: 1, ..packet(0, number * 2 + 4) };
    table.on_segment(&sent(0, 1_000_000));
    (0..late).for_each(|number| table.on_segment(&sent(number + 1, 2_000 + 2 * number)));
    LIVE_BYTES.get() - before
}

#[test]
fn a_gap_filled_at_every_second_octet_is_bounded_too() {
    let many = [20_000, 400_000].map(bytes_of_a_filled_gap);
    assert!(many[1] < many[0] + 100_000 && many[1] < 1_000_000, "{many:?}");
}
