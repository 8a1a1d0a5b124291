/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * What a full path lets through to a connection: while its bottleneck always has a queue, what is acknowledged is all
 * that the others leave, which is the available bandwidth, without a stream.
 *
 * Model      Full is a path whose every round-trip time has been above the least one by an eighth of it (2 ms at least)
 *            for a quarter of a second, without a loss, of a connection that uses its window up: acknowledgements of a
 *            trickle may be late for other reasons. Bursts shorter than that fill it only for themselves, and what
 *            passes between them is less than what is free. What is acknowledged is counted over one round trip each.
 *            The least is that of the last one to two spans of a minute: after a change of route it is learnt anew.
 *            Streams say so sooner: where they find more than what a full path lets through, what looks like a queue is
 *            none.
 * Units      microseconds and bytes; rates in kbit/s with headers.
 */
#ifndef LONGFAT_FULL_H
#define LONGFAT_FULL_H

#include "stream.h"

#define LF_FULL_RISE_US 2000
#define LF_FULL_RISE_SHIFT 3
#define LF_FULL_US 250000
#define LF_FULL_SPAN_US 60000000

struct lf_full {
	lf_u64 since_us;   /* samples have had a queue since; 0: the last had none */
	lf_u64 round_us;   /* the round trip that is counted began; 0: none yet */
	lf_u32 first_seq;  /* of it */
	lf_u32 is_full;    /* for long enough */
	lf_u64 span_us;    /* this span of the least round-trip time began */
	lf_u32 least_us;   /* of it */
	lf_u32 before_us;  /* of the span before; 0xffffffff: none */
	lf_u32 spread_q16; /* of single round trips, as a part of the capacity, smoothed by a sixteenth */
	lf_u32 is_denied;  /* by streams, in this span */
};

LF_INLINE void lf_full_init(struct lf_full *f)
{
	f->span_us = 0;
	f->least_us = 0xffffffff;
	f->before_us = 0xffffffff;
	f->since_us = 0;
	f->round_us = 0;
	f->is_full = 0;
	f->spread_q16 = 0;
	f->is_denied = 0;
}

LF_INLINE void lf_full_end(struct lf_full *f)
{
	f->since_us = 0;
	f->round_us = 0;
	f->is_full = 0;
}

/*
 * Streams find more than what a full path lets through: what looks like a queue is none, because the path has become
 * longer, or its answers come later. The least is learnt anew for a span, in which nothing is full: what makes answers
 * late may come and go.
 */
LF_INLINE void lf_full_deny(const struct lf_conn *c, struct lf_full *f)
{
	lf_full_end(f);
	f->span_us = c->now_us;
	f->least_us = 0xffffffff;
	f->before_us = 0xffffffff;
	f->is_denied = 1;
}

LF_INLINE void lf_full_on_rtt_sample(const struct lf_conn *c, struct lf_full *f, lf_u32 rtt_us)
{
	lf_u64 least_us, span_us = c->now_us - f->span_us;

	if (span_us >= LF_FULL_SPAN_US) {
		f->span_us = c->now_us;
		f->before_us = span_us < 2 * LF_FULL_SPAN_US ? f->least_us : 0xffffffff;
		f->least_us = rtt_us;
		f->is_denied = 0;
	}
	f->least_us = lf_min(f->least_us, rtt_us);
	least_us = lf_min(f->least_us, f->before_us);
	if (rtt_us <= least_us + lf_max64(least_us >> LF_FULL_RISE_SHIFT, LF_FULL_RISE_US))
		lf_full_end(f);
	else if (!f->since_us)
		f->since_us = c->now_us;
}

LF_INLINE void lf_full_begin_round(const struct lf_conn *c, struct lf_full *f, const struct lf_sending *send)
{
	f->round_us = c->now_us;
	f->first_seq = send->una_seq;
}

/* At an acknowledgement. Returns the rate of the round trip that ends with it, if the path was full; 0 otherwise. */
LF_INLINE lf_u32 lf_full_on_ack_seen(const struct lf_conn *c, struct lf_full *f, const struct lf_sending *send)
{
	lf_u64 bytes = send->una_seq - f->first_seq, passed_us = c->now_us - f->round_us;
	lf_u32 is_late = f->round_us && passed_us > 2ull * lf_max(c->srtt_us, 1);

	/* After a pause nobody knows what the queue was meanwhile. */
	if (c->ca_state != LF_OPEN || send->repair_segments || is_late) {
		lf_full_end(f);
		return 0;
	}
	if (!f->since_us || f->is_denied || (f->round_us && passed_us < lf_max(c->srtt_us, 1)))
		return 0;
	f->is_full = f->round_us && c->now_us - f->since_us >= LF_FULL_US;
	lf_full_begin_round(c, f, send);
	return f->is_full ? lf_full_rate(c, send, bytes * 8000 / passed_us) : 0;
}

/* Notes how far a round trip's rate is from the one believed in: bursts longer than a round trip make them spread. */
LF_INLINE void lf_full_note_spread(struct lf_full *f, lf_u32 kbps, lf_u32 believed_kbps, lf_u32 capacity_kbps)
{
	lf_u64 apart_kbps = kbps > believed_kbps ? kbps - believed_kbps : believed_kbps - kbps;
	lf_u64 apart_q16 = lf_min64((apart_kbps << 16) / lf_max(capacity_kbps, 1), 65536);

	f->spread_q16 = (lf_u32)((lf_min(f->spread_q16, 65536) * 15ull + apart_q16) / 16);
}

/* A stream has told what round trips of a full path do not tell now. */
LF_INLINE void lf_full_fade_spread(struct lf_full *f)
{
	if (!f->is_full)
		f->spread_q16 -= f->spread_q16 / 16;
}

/*
 * Standard deviation of what is believed in, by what round trips spread: three fifths of it, as measured natively with
 * rates that differ at random by 2 to 16 %. The filter takes 2 % for granted.
 */
LF_INLINE lf_u32 lf_full_deviation(const struct lf_full *f, lf_u32 capacity_kbps)
{
	return (lf_u32)(((lf_u64)capacity_kbps * lf_min(f->spread_q16, 65536) * 3 / 5) >> 16);
}

#endif
