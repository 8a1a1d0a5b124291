/* SPDX-License-Identifier: GPL-2.0 */
/* What capture.bpf.c and its reader (crates/kernel/src/capture/) agree on. */
#ifndef LONGFAT_CAPTURE_H
#define LONGFAT_CAPTURE_H

/* A ring is a row of blocks; a record lies within one. */
#define LF_BLOCK_BYTES 65536
/* Headers are looked for in this much of a packet. */
#define LF_HEADERS_BYTES 256
/* Reading a header at the last place may go this far behind. */
#define LF_SLACK_BYTES 64
/* Most that is kept of a packet when payload is asked for. */
#define LF_KEPT_MAX_BYTES 2048

/* Set in `kept` of a packet that left; a record whose `kept` is all ones says that its block has no more. */
#define LF_OUTBOUND 0x8000
#define LF_BLOCK_ENDS 0xffff

/* A record: this and `kept` octets, padded to eight. */
struct lf_record {
	__u64 time_ns; /* CLOCK_MONOTONIC, at the hook */
	__u32 wire_bytes;
	__u16 kept; /* octets, and LF_OUTBOUND */
	__u16 segments; /* packets on the wire, when the host left their making to the interface; else 0 or 1 */
};

/* One processor's ring. Everything but `tail` is written by its programs, by direction where there are two. */
struct lf_ring {
	__u64 head; /* octets written since the beginning, padding included */
	__u64 tail_seen;
	__u64 busy;
	__u64 seen[2];
	__u64 matched[2];
	__u64 dropped[2]; /* matched, and no room */
	__u64 pad[7];
	__u64 tail; /* octets read since the beginning: user space's */
	__u64 pad_tail[15];
};

enum { LF_INBOUND_INDEX = 0, LF_OUTBOUND_INDEX = 1 };

/* What is kept of a packet: up to and with this header. */
enum { LF_SNAP_LINK = 0, LF_SNAP_NETWORK = 1, LF_SNAP_TRANSPORT = 2 };

/* A filter is a row of tests; each names the next by its verdict, always one behind it. */
#define LF_TESTS_MAX 64
#define LF_ACCEPT 254
#define LF_REJECT 255

enum {
	LF_TEST_DIRECTION = 1, /* `low` */
	LF_TEST_FAMILY = 2,    /* `low`: 4 or 6, of the outermost or the innermost IP header, as the next */
	LF_TEST_ADDRESS = 3,   /* `side`, `address` under `mask`, `low`: 4 or 6 */
	LF_TEST_PROTOCOL = 4,  /* `low`: what the innermost IP header carries */
	LF_TEST_PORT = 5,      /* `side`, from `low` to `high` */
	LF_TEST_VLAN = 6,      /* any tag from `low` to `high` */
	LF_TEST_TUNNEL = 7,    /* `low`: LF_SEEN_GRE or LF_SEEN_IPIP */
	LF_TEST_TCP_FLAGS = 8, /* any of `low` */
	LF_TEST_ETHERTYPE = 9, /* `low`: what the last link header carries */
};

enum { LF_SOURCE = 1, LF_DESTINATION = 2 };
enum { LF_SEEN_GRE = 1, LF_SEEN_IPIP = 2 };

struct lf_test {
	__u8 kind;
	__u8 if_true;
	__u8 if_false;
	__u8 side;
	__u16 low;
	__u16 high;
	__u32 address[4];
	__u32 mask[4];
};

/* Fixed when the programs are loaded: the verifier leaves out what they do not ask for. */
struct lf_settings {
	__u32 ring_blocks; /* a power of two */
	__u32 is_raw_ip;   /* packets of this interface have no link header */
	__u32 snap;
	__u32 payload_bytes;
	__u32 has_filter;
	__u32 zero;
	struct lf_test tests[LF_TESTS_MAX];
};

#endif
