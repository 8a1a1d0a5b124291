/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The contract between a congestion-control algorithm and whatever runs it: the kernel (BPF struct_ops), a
 * simulator or a test (both native). An algorithm is a set of pure functions on the two structs below, its own
 * private state and its tunables. It has no clock, no globals, no floats and no unbounded loops; it divides
 * unsigned numbers only. That is what the BPF verifier takes, and what makes it replayable bit for bit.
 *
 * An algorithm NAME lives in algorithms/NAME.h and defines
 *
 *   LF_NAME_TUNABLES(T)       its tunables, each T(field, default, least, greatest, "what it does")
 *   struct lf_NAME_state      private state of one connection, zeroed before init
 *   lf_NAME_init              a connection begins, or changes to this algorithm
 *   lf_NAME_on_ack            segments were acknowledged and the window may grow; may change the first three fields
 *   lf_NAME_ssthresh          loss or ECE: the new slow-start threshold, RFC 5681 equation (4)
 *   lf_NAME_undo_cwnd         the loss was none (RFC 3522, 4015, 5682): the window to go back to
 *   LF_NAME_OPTIONAL(O)       which of the following it has, each O(NAME, function); they change private state only
 *
 *   lf_NAME_on_rtt_sample     a round-trip time was measured, in any recovery state; before on_ack of the same ACK
 *   lf_NAME_on_restart        a segment is sent while none is in flight
 *
 * An algorithm that measures with its own segments has two more, which may change cwnd_segments, too:
 *
 *   lf_NAME_on_send           the sender is about to see whether it may send new segments; may change the pacing rate;
 *                             returns how many segments it would have sent at once, at least 1
 *   lf_NAME_on_ack_seen       an acknowledgement arrived; before on_ack of it, and before what it lets be sent. Whether
 *                             on_rtt_sample of the same one is earlier (Linux 6.18) or later (the simulator) is open
 *
 * Its state may be as large as LF_LARGE_STATE_BYTES, and begins with what it has found, a struct lf_avail. Where there
 * is no memory for that the connection is Reno.
 *
 * Who calls them does the rest of loss recovery (RFC 6675, 6937, 6298): it sets cwnd in recovery, sets cwnd to
 * one segment on a retransmission timeout, and zeroes cwnd_credit_segments on every reduction.
 */
#ifndef LONGFAT_CC_H
#define LONGFAT_CC_H

typedef __UINT32_TYPE__ lf_u32;
typedef __UINT64_TYPE__ lf_u64;
typedef __INT64_TYPE__ lf_s64;

#define LF_INLINE static inline __attribute__((always_inline, unused))

/*
 * A function of its own in BPF, which the verifier looks at once, whatever it is given, and not anew for every way to
 * every call. Its pointers may be null for all the verifier knows, and it returns a number.
 */
#ifdef __bpf__
#define LF_LEAF __attribute__((noinline))
#else
#define LF_LEAF static __attribute__((unused))
#endif

/* Room for private state: icsk_ca_priv of the kernel's inet_connection_sock. */
#define LF_STATE_BYTES 104
#define LF_CHECK_STATE(type) \
	_Static_assert(sizeof(type) <= LF_STATE_BYTES, #type " does not fit in icsk_ca_priv")

/* Room for the state of an algorithm that measures: socket storage, beside the connection. */
#define LF_LARGE_STATE_BYTES 768
#define LF_CHECK_LARGE_STATE(type) \
	_Static_assert(sizeof(type) <= LF_LARGE_STATE_BYTES, #type " is too large")

/* Greatest window: the kernel takes a window with the top bit set for a bug. */
#define LF_WINDOW_MAX 0x7fffffffu

/* Recovery states of the kernel's tcp_ca_state. */
enum lf_ca_state { LF_OPEN = 0, LF_DISORDER = 1, LF_CWR = 2, LF_RECOVERY = 3, LF_LOSS = 4 };

/* What an algorithm sees of a connection. No padding: it is recorded and compared as bytes. */
struct lf_conn {
	/* Time of this call, from any fixed point. The only clock there is. */
	lf_u64 now_us;

	/* An algorithm may change these three, within on_ack. */
	lf_u32 cwnd_segments;        /* congestion window, 1 .. LF_WINDOW_MAX */
	lf_u32 cwnd_credit_segments; /* growth earned and not yet a whole segment (kernel: snd_cwnd_cnt) */
	lf_u32 ssthresh_segments;    /* slow-start threshold; LF_WINDOW_MAX until the first loss */

	/* These it reads. */
	lf_u32 cwnd_clamp_segments;  /* upper bound of the window */
	lf_u32 prior_cwnd_segments;  /* window before the last reduction, for undo_cwnd */
	lf_u32 flight_segments;      /* sent and not known to have left the network (RFC 6675 pipe) */
	lf_u32 max_flight_segments;  /* most unacknowledged segments in the last window of sending */
	lf_u32 is_cwnd_limited;      /* 1 when the last window of sending was stopped by cwnd (RFC 7661, 2.1) */
	lf_u32 ca_state;             /* enum lf_ca_state */
	lf_u32 mss_bytes;            /* sending maximum segment size */
	lf_u32 srtt_us;              /* smoothed round-trip time (RFC 6298); 0 before the first sample */
	lf_u32 min_rtt_us;           /* least round-trip time of late; 0xffffffff before the first sample */
};

/* What an acknowledgement brought. */
struct lf_ack {
	lf_u32 acked_segments; /* newly acknowledged, cumulatively or selectively; more than 2 after a stretch ACK */
};

/* What on_send and on_ack_seen see of the sender. No padding. */
struct lf_sending {
	lf_u64 pacing_bytes_per_s; /* payload; the gap after a burst is its length over this. on_send may change it */
	lf_u32 next_seq;           /* sequence number of the next new byte */
	lf_u32 una_seq;            /* oldest unacknowledged */
	lf_u32 unsent_bytes;       /* written and never sent */
	lf_u32 packet_bytes;       /* a full-sized segment with its TCP and IP headers */
	lf_u32 burst_segments;     /* what TCP sends at once at the pacing rate */
	lf_u32 repair_segments;    /* lost, retransmitted, or arrived beyond a hole */
};

/* What a measuring algorithm has found: available bandwidth, counted with IP headers. */
struct lf_avail {
	lf_u64 at_us;               /* when; 0: nothing yet */
	lf_u32 avail_kbps;          /* what this connection could have, its own share included */
	lf_u32 deviation_kbps;      /* standard deviation of that */
	lf_u32 capacity_kbps;       /* of the bottleneck; 0: this estimator does not know */
	lf_u32 confidence_permille; /* 0 .. 1000 */
	lf_u32 results;             /* streams that gave a result */
	lf_u32 rejected;            /* streams that gave none: a loss, a pause, acknowledgements too few or too uneven */
};

/* Expansions of LF_NAME_TUNABLES: fields of a struct, and its defaults. */
#define LF_TUNABLE_FIELD(field, value, least, greatest, about) lf_u32 field;
#define LF_TUNABLE_DEFAULT(field, value, least, greatest, about) .field = (value),

/* LF_NAME_OPTIONAL of an algorithm that has none: what is not there costs nothing. */
#define LF_NO_OPTIONAL(O)

#endif
