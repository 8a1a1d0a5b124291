/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * HighSpeed TCP: Reno with an increase and a decrease that depend on the window.
 *
 * Model      Response p(w) = 0.078 / w^1.2, so mean cwnd = 0.12 / p^0.835: log-linear between (38, 1e-3) and
 *            (83000, 1e-7) segments and losses. b(w) is linear in log w from 0.5 to 0.1 between the same windows;
 *            a(w) = 2 w^2 b(w) p(w) / (2 - b(w)). At and below 38 segments it is Reno.
 * States     slow start as Reno, or limited slow start above max_ssthresh (RFC 3742, made for this algorithm);
 *            congestion avoidance: + a(w) / w per acknowledged segment, so + a(w) each round trip;
 *            loss: ssthresh = (1 - b(w)) w, at least 2.
 *            Private state: the table row of the window last seen, so that a lookup is usually two comparisons, and
 *            the part of a unit of credit not yet counted.
 * Units      segments; a in 1/256 segment, b in 1/65536.
 * Reference  RFC 3649 sections 5, 6 and Appendix B. The table is Appendix B, generated from the formulas by
 *            crates/cc/src/table.rs; row a - 1 holds the window whose increase is a. Between rows, a and b are
 *            interpolated: rows taken as steps miss the response function by up to a third (at p = 2e-4), because
 *            a is then cut to whole segments where it is 1 to 3. Above the last row, 94717 segments, a and b stay
 *            at 73 and 0.09.
 */
#ifndef LONGFAT_HIGHSPEED_H
#define LONGFAT_HIGHSPEED_H

#include "../include/window.h"

struct lf_highspeed_row {
	lf_u32 w;     /* window of the row */
	lf_u32 slope; /* 2^32 / (window of the next row - w); 0 in the last */
	lf_u32 b;     /* decrease at w, in 1/65536 */
};

/* Generated: LF_HIGHSPEED_ROWS, and that many rows and an end row that no window reaches. */
#include "lf_highspeed_table.h"

#define LF_HIGHSPEED_TUNABLES(T) \
	LF_TUNABLE_MAX_SSTHRESH(T)

struct lf_highspeed_tunables {
	LF_HIGHSPEED_TUNABLES(LF_TUNABLE_FIELD)
};

struct lf_highspeed_state {
	lf_u32 row;    /* 0 .. LF_HIGHSPEED_ROWS - 1 */
	lf_u32 credit; /* 0 .. 255, in 1/256 of a unit of cwnd_credit_segments */
};
LF_CHECK_STATE(struct lf_highspeed_state);

/* Where a window lies in the table: `row` at or below it, and `above` segments beyond that row's window. */
struct lf_highspeed_place {
	lf_u32 row;
	lf_u32 above;
};

/* The last row whose window is at most `w`, else the first, by bisection: 7 steps for up to 128 rows. */
LF_INLINE lf_u32 lf_highspeed_search(lf_u32 w)
{
	lf_u32 row = 0, step;

	_Static_assert(LF_HIGHSPEED_ROWS <= 128, "bisection needs more steps");
	for (step = 64; step; step >>= 1) {
		lf_u32 next = row + step;

		if (next < LF_HIGHSPEED_ROWS && lf_highspeed_table[next].w <= w)
			row = next;
	}
	return row;
}

LF_INLINE struct lf_highspeed_place lf_highspeed_find(struct lf_highspeed_state *s, lf_u32 w)
{
	struct lf_highspeed_place place = { .row = s->row, .above = 0 };

	if (place.row >= LF_HIGHSPEED_ROWS || w < lf_highspeed_table[place.row].w ||
	    w >= lf_highspeed_table[place.row + 1].w) {
		place.row = lf_highspeed_search(w);
		s->row = place.row;
	}
	if (w > lf_highspeed_table[place.row].w)
		place.above = w - lf_highspeed_table[place.row].w;
	return place;
}

/* a(w) in 1/256 segment per round trip. */
LF_INLINE lf_u32 lf_highspeed_increase(struct lf_highspeed_place place)
{
	lf_u64 part = (lf_u64)place.above * lf_highspeed_table[place.row].slope;

	return ((place.row + 1) << 8) + (lf_u32)(part >> 24);
}

/* b(w) in 1/65536. In the last row the slope is 0, so that the end row does not count. */
LF_INLINE lf_u32 lf_highspeed_decrease(struct lf_highspeed_place place)
{
	const struct lf_highspeed_row *row = &lf_highspeed_table[place.row];
	lf_u64 fall = row[0].b - row[1].b;

	return row->b - (lf_u32)((fall * place.above * row->slope) >> 32);
}

LF_INLINE void lf_highspeed_init(struct lf_conn *c, struct lf_highspeed_state *s,
				 const struct lf_highspeed_tunables *t)
{
	s->row = 0;
	s->credit = 0;
}

LF_INLINE void lf_highspeed_on_ack(struct lf_conn *c, struct lf_highspeed_state *s,
				   const struct lf_highspeed_tunables *t, const struct lf_ack *ack)
{
	lf_u32 acked = ack->acked_segments;
	lf_u64 earned;

	if (!lf_is_cwnd_limited(c))
		return;
	if (!lf_past_slow_start(c, &acked, t->max_ssthresh_segments))
		return;
	earned = (lf_u64)acked * lf_highspeed_increase(lf_highspeed_find(s, c->cwnd_segments)) + s->credit;
	s->credit = (lf_u32)(earned & 0xff);
	lf_congestion_avoidance(c, earned >> 8);
}

LF_INLINE lf_u32 lf_highspeed_ssthresh(struct lf_conn *c, struct lf_highspeed_state *s,
				       const struct lf_highspeed_tunables *t)
{
	lf_u32 w = c->cwnd_segments;
	lf_u64 fall = (lf_u64)w * lf_highspeed_decrease(lf_highspeed_find(s, w));

	return lf_max(w - (lf_u32)(fall >> 16), 2);
}

LF_INLINE lf_u32 lf_highspeed_undo_cwnd(struct lf_conn *c, struct lf_highspeed_state *s,
					const struct lf_highspeed_tunables *t)
{
	return lf_window_before_loss(c);
}

#endif
