/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The contract between a controller of a relay's queue and whatever runs it: the kernel at each arriving packet (BPF),
 * the simulator's relay or a test (both native). Like the congestion controls of algorithms/: pure functions on the
 * structs below, no clock, no globals, no floats, no signed division.
 *
 * The model      A relay carries the bytes of an inbound leg on by an outbound leg. What it has received and not yet
 *                sent on WAITS; what it has sent and not yet seen acknowledged is the outbound leg's flight, which its
 *                own congestion control is responsible for. Both together are the backlog.
 *                   delay = waiting / drain, where drain is the rate at which the outbound leg sends new bytes.
 *                The queue is an integrator: it does not lengthen the inbound round trip, so a sender that was told
 *                once shows the effect only one round trip later, and one told twice in that time reduces twice
 *                (Isogaki 2005, section 5.4). Hence the hold-off.
 *
 * A controller NAME lives in NAME.h and defines lf_NAME_probability: how likely this packet is to be marked, as a
 * fraction of LF_CERTAIN. queue.h does what they share.
 */
#ifndef LONGFAT_QUEUE_CONTRACT_H
#define LONGFAT_QUEUE_CONTRACT_H

#include "../include/longfat_cc.h"

/* A probability of one. */
#define LF_CERTAIN 0xffffffffu

enum lf_queue_kind { LF_QUEUE_FIXED = 0, LF_QUEUE_RED = 1, LF_QUEUE_PI = 2, LF_QUEUE_NONE = 3, LF_QUEUE_EVERY = 4 };

/* What is seen of both legs at one time. Cumulative counts begin with the connection. */
struct lf_queue_view {
	lf_u64 now_us;                /* from any fixed point */
	lf_u64 received_bytes;        /* inbound, in order */
	lf_u64 sent_bytes;            /* outbound, for the first time */
	lf_u64 acked_bytes;           /* outbound */
	lf_u32 inbound_rtt_us;        /* 0 when not known */
	lf_u32 outbound_rtt_us;       /* smoothed; 0 when not known */
	lf_u32 outbound_cwnd_bytes;
	lf_u32 mss_bytes;             /* of the inbound leg */
	lf_u32 random;                /* uniform over all values */
	lf_u32 reserved;
};

/* What a person chooses. */
struct lf_queue_settings {
	lf_u32 kind;                  /* enum lf_queue_kind */
	lf_u32 target_us;             /* pi: delay to hold; window.h: delay to allow */
	lf_u32 hold_off_rtts;         /* inbound round trips without a mark after a mark; 0: none */
	lf_u32 allowed_cwnds_x16;     /* fixed, red: backlog allowed, in sixteenths of the outbound window, or … */
	lf_u64 allowed_bytes;         /* … in bytes; the greater of the two holds. every: bytes per mark */
	lf_u64 red_bytes;             /* red: how far below it marking begins */
};

/* The outbound leg's rate, measured. */
struct lf_drain {
	lf_u64 since_us;
	lf_u64 since_sent_bytes;
	lf_u64 bytes_per_s;           /* 0 until the first interval is over */
	lf_u32 was_dry;               /* within this interval nothing was waiting */
	lf_u32 is_growing;            /* the last interval's rate exceeded the one before by a quarter */
};

/* State of one direction of one connection, zeroed before its first packet. */
struct lf_queue_state {
	struct lf_drain drain;
	lf_u64 hold_until_us;
	lf_u64 pi_at_us;
	lf_u64 marks;
	lf_u64 packets;
	lf_u64 backlog_bytes;
	lf_u64 waiting_bytes;
	lf_u32 delay_us;
	lf_u32 pi_delay_us;
	lf_u32 pi_probability;
	lf_u32 pi_least_us;
};

#endif
