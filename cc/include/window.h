/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Window arithmetic that algorithms share. Units: segments throughout. Sums saturate at LF_WINDOW_MAX and at the
 * connection's clamp, so a window neither wraps nor becomes zero.
 */
#ifndef LONGFAT_WINDOW_H
#define LONGFAT_WINDOW_H

#include "longfat_cc.h"

LF_INLINE lf_u32 lf_min(lf_u32 a, lf_u32 b)
{
	return a < b ? a : b;
}

LF_INLINE lf_u32 lf_max(lf_u32 a, lf_u32 b)
{
	return a > b ? a : b;
}

LF_INLINE lf_u32 lf_in_slow_start(const struct lf_conn *c)
{
	return c->cwnd_segments < c->ssthresh_segments;
}

/*
 * Whether the window, and not the application or the peer, held the sender back: a window that was not used was
 * not tested, and must not grow (RFC 7661). In slow start half of it is enough: it doubles each round trip.
 */
LF_INLINE lf_u32 lf_is_cwnd_limited(const struct lf_conn *c)
{
	if (c->is_cwnd_limited)
		return 1;
	return lf_in_slow_start(c) && c->cwnd_segments < 2ull * c->max_flight_segments;
}

/* Grows the window, up to `most`, the clamp and LF_WINDOW_MAX. Never shrinks it below 1. */
LF_INLINE void lf_grow(struct lf_conn *c, lf_u64 segments, lf_u32 most)
{
	lf_u64 window = c->cwnd_segments + segments;
	lf_u32 bound = lf_min(lf_min(most, c->cwnd_clamp_segments), LF_WINDOW_MAX);

	if (window > bound)
		window = bound;
	c->cwnd_segments = lf_max((lf_u32)window, 1);
}

/* Spends credit in whole segments, one per `price`; what is left over waits in cwnd_credit_segments. */
LF_INLINE void lf_spend_credit(struct lf_conn *c, lf_u64 earned, lf_u32 price, lf_u32 most)
{
	lf_u64 credit = c->cwnd_credit_segments + earned;
	lf_u64 segments = credit / price;

	c->cwnd_credit_segments = (lf_u32)(credit - segments * price);
	lf_grow(c, segments, most);
}

/* The tunable of every algorithm that begins with slow start. */
#define LF_TUNABLE_MAX_SSTHRESH(T) \
	T(max_ssthresh_segments, 0, 0, LF_WINDOW_MAX, \
	  "window above which slow start is limited (RFC 3742 suggests 100); 0 turns the limit off")

/*
 * Limited slow start (RFC 3742, section 2): above max_ssthresh the window grows by at most max_ssthresh / 2 per
 * round trip: each acknowledged segment adds 1/K, K = int(cwnd / (max_ssthresh / 2)).
 */
LF_INLINE void lf_limited_slow_start(struct lf_conn *c, lf_u32 acked_segments, lf_u32 max_ssthresh_segments)
{
	lf_u32 k = (lf_u32)(2ull * c->cwnd_segments / max_ssthresh_segments);

	lf_spend_credit(c, acked_segments, lf_max(k, 1), c->ssthresh_segments);
}

/*
 * Slow start (RFC 5681, section 3.1, counting segments as RFC 3465 with L unbounded, as Linux does). Returns the
 * acknowledged segments left over when the window reached ssthresh. max_ssthresh_segments 0: unlimited.
 */
LF_INLINE lf_u32 lf_slow_start(struct lf_conn *c, lf_u32 acked_segments, lf_u32 max_ssthresh_segments)
{
	lf_u32 most = c->ssthresh_segments;
	lf_u32 room, used;

	/* RFC 3742 grows as usual while cwnd <= max_ssthresh: so up to one above it. */
	if (max_ssthresh_segments)
		most = lf_min(most, max_ssthresh_segments + 1);
	room = most > c->cwnd_segments ? most - c->cwnd_segments : 0;
	used = lf_min(room, acked_segments);
	lf_grow(c, used, c->ssthresh_segments);
	acked_segments -= used;
	if (!acked_segments || !lf_in_slow_start(c) || !max_ssthresh_segments)
		return acked_segments;
	lf_limited_slow_start(c, acked_segments, max_ssthresh_segments);
	return 0;
}

/* Slow start while it lasts; whether there are acknowledged segments, left in `acked`, for congestion avoidance. */
LF_INLINE lf_u32 lf_past_slow_start(struct lf_conn *c, lf_u32 *acked, lf_u32 max_ssthresh_segments)
{
	if (!lf_in_slow_start(c))
		return 1;
	*acked = lf_slow_start(c, *acked, max_ssthresh_segments);
	return *acked != 0;
}

/*
 * Congestion avoidance: `earned` units of credit, a segment for every cwnd of them. So credit equal to the
 * acknowledged segments is one segment per round trip (RFC 5681, equation 3), a times that is a segments.
 */
LF_INLINE void lf_congestion_avoidance(struct lf_conn *c, lf_u64 earned)
{
	lf_u32 price = lf_max(c->cwnd_segments, 1);

	/* Credit of a larger window would now buy a burst: one segment for all of it (as Linux does). */
	if (c->cwnd_credit_segments >= price) {
		c->cwnd_credit_segments = 0;
		lf_grow(c, 1, LF_WINDOW_MAX);
	}
	lf_spend_credit(c, earned, price, LF_WINDOW_MAX);
}

/* Back to the window before the reduction, unless it has grown past that since. */
LF_INLINE lf_u32 lf_window_before_loss(const struct lf_conn *c)
{
	return lf_max(c->cwnd_segments, c->prior_cwnd_segments);
}

#endif
