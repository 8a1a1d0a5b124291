/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * HighSpeed TCP: Reno with an increase and a decrease that depend on the window.
 *
 * Model      Response p(w) = 0.078 / w^1.2, so cwnd = 0.12 / p^0.835: log-linear between (38, 1e-3) and
 *            (83000, 1e-7) segments and losses. b(w) is log-linear in w from 0.5 to 0.1 between the same windows;
 *            a(w) = 2 w^2 b(w) p(w) / (2 - b(w)). At and below 38 segments it is Reno.
 * States     slow start as Reno, or limited slow start above max_ssthresh (RFC 3742, made for this algorithm);
 *            congestion avoidance: + a(w) / w per acknowledged segment, so + a(w) each round trip;
 *            loss: ssthresh = (1 - b(w)) w, at least 2.
 *            Private state: the table row of the window last seen, so that a lookup is usually two comparisons.
 * Units      segments; b in 1/65536.
 * Reference  RFC 3649 sections 5, 6 and Appendix B. The table is generated from the formulas by
 *            crates/cc/src/table.rs, row a - 1 holding the least window whose increase is a. Above the last row,
 *            94717 segments, a and b stay at 73 and 0.09.
 */
#ifndef LONGFAT_HIGHSPEED_H
#define LONGFAT_HIGHSPEED_H

#include "../include/window.h"

/* `w`: least window of the row; `b`: decrease there in 1/65536. */
struct lf_highspeed_row {
	lf_u32 w;
	lf_u32 b;
};

/* Generated: LF_HIGHSPEED_ROWS, and that many rows and an end row that no window reaches. */
#include "lf_highspeed_table.h"

#define LF_HIGHSPEED_TUNABLES(T) \
	T(max_ssthresh_segments, 0, 0, LF_WINDOW_MAX, \
	  "window above which slow start is limited (RFC 3742 suggests 100); 0 turns the limit off")

struct lf_highspeed_tunables {
	LF_HIGHSPEED_TUNABLES(LF_TUNABLE_FIELD)
};

struct lf_highspeed_state {
	lf_u32 row; /* 0 .. LF_HIGHSPEED_ROWS - 1 */
};
LF_CHECK_STATE(struct lf_highspeed_state);

/* The last row whose window is at most `w`, by bisection: 7 steps for up to 128 rows. */
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

LF_INLINE lf_u32 lf_highspeed_row_of(struct lf_highspeed_state *s, lf_u32 w)
{
	lf_u32 row = s->row;

	if (row < LF_HIGHSPEED_ROWS && lf_highspeed_table[row].w <= w && w < lf_highspeed_table[row + 1].w)
		return row;
	row = lf_highspeed_search(w);
	s->row = row;
	return row;
}

/* The window after a decrease of b(w). */
LF_INLINE lf_u32 lf_highspeed_decreased(lf_u32 w, lf_u32 row)
{
	lf_u32 b = row < LF_HIGHSPEED_ROWS ? lf_highspeed_table[row].b : 0;

	return w - (lf_u32)(((lf_u64)w * b) >> 16);
}

LF_INLINE void lf_highspeed_init(struct lf_conn *c, struct lf_highspeed_state *s,
				 const struct lf_highspeed_tunables *t)
{
	s->row = 0;
}

LF_INLINE void lf_highspeed_on_ack(struct lf_conn *c, struct lf_highspeed_state *s,
				   const struct lf_highspeed_tunables *t, const struct lf_ack *ack)
{
	lf_u32 acked = ack->acked_segments;

	if (!lf_is_cwnd_limited(c))
		return;
	if (lf_in_slow_start(c)) {
		acked = lf_slow_start(c, acked, t->max_ssthresh_segments);
		if (!acked)
			return;
	}
	/* Row a - 1 holds increase a. */
	lf_congestion_avoidance(c, (lf_u64)acked * (lf_highspeed_row_of(s, c->cwnd_segments) + 1));
}

LF_INLINE lf_u32 lf_highspeed_ssthresh(struct lf_conn *c, struct lf_highspeed_state *s,
				       const struct lf_highspeed_tunables *t)
{
	lf_u32 w = c->cwnd_segments;

	return lf_max(lf_highspeed_decreased(w, lf_highspeed_row_of(s, w)), 2);
}

LF_INLINE lf_u32 lf_highspeed_undo_cwnd(struct lf_conn *c, struct lf_highspeed_state *s,
					const struct lf_highspeed_tunables *t)
{
	return lf_window_before_loss(c);
}

#endif
