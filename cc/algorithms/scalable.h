/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Scalable TCP: multiplicative increase and decrease, so that the time to recover from a loss does not depend on the
 * window.
 *
 * Model      Response: the window at a loss is (a / b) / p at loss rate p; the mean window is a / (p ln(1 / (1 - b))),
 *            6 % less with a = 0.01, b = 0.125. Recovery takes ln(1 / (1 - b)) / ln(1 + a) round trips (13.4) at any
 *            window. Up to the legacy window of 16 segments, where its response would fall below Reno's, it is Reno.
 * States     slow start as Reno, or limited slow start above max_ssthresh (RFC 3742);
 *            congestion avoidance: + a per acknowledged segment; + 1 / cwnd up to the legacy window;
 *            loss: ssthresh = (1 - b) cwnd; half up to the legacy window; at least 2.
 *            Private state: the part of a segment not yet counted.
 * Units      segments; a, b and the part in 1/1000.
 * Reference  T. Kelly, "Scalable TCP: Improving Performance in Highspeed Wide Area Networks", Computer Communication
 *            Review 33(2), 2003.
 */
#ifndef LONGFAT_SCALABLE_H
#define LONGFAT_SCALABLE_H

#include "../include/window.h"

#define LF_SCALABLE_TUNABLES(T) \
	LF_TUNABLE_MAX_SSTHRESH(T) \
	T(increase_permille, 10, 1, 1000, "a: growth per acknowledged segment, in 1/1000 segment") \
	T(decrease_permille, 125, 1, 500, "b: part of the window that a loss takes, in 1/1000") \
	T(legacy_window_segments, 16, 0, LF_WINDOW_MAX, "window up to which it is Reno")

struct lf_scalable_tunables {
	LF_SCALABLE_TUNABLES(LF_TUNABLE_FIELD)
};

struct lf_scalable_state {
	lf_u32 part_permille; /* 0 .. 999, of a segment */
};
LF_CHECK_STATE(struct lf_scalable_state);

LF_INLINE void lf_scalable_init(struct lf_conn *c, struct lf_scalable_state *s,
				const struct lf_scalable_tunables *t)
{
	s->part_permille = 0;
}

LF_INLINE void lf_scalable_on_ack(struct lf_conn *c, struct lf_scalable_state *s,
				  const struct lf_scalable_tunables *t, const struct lf_ack *ack)
{
	lf_u32 acked = ack->acked_segments;
	lf_u64 earned;

	if (!lf_is_cwnd_limited(c))
		return;
	if (!lf_past_slow_start(c, &acked, t->max_ssthresh_segments))
		return;
	if (c->cwnd_segments <= t->legacy_window_segments) {
		lf_congestion_avoidance(c, acked);
		return;
	}
	earned = (lf_u64)acked * t->increase_permille + s->part_permille;
	s->part_permille = (lf_u32)(earned % 1000);
	lf_grow(c, earned / 1000, LF_WINDOW_MAX);
}

LF_INLINE lf_u32 lf_scalable_ssthresh(struct lf_conn *c, struct lf_scalable_state *s,
				      const struct lf_scalable_tunables *t)
{
	lf_u32 w = c->cwnd_segments;
	lf_u64 fall = (lf_u64)w * t->decrease_permille / 1000;

	if (w <= t->legacy_window_segments)
		return lf_max(w >> 1, 2);
	/* At least one segment, so that a small b is still a response. */
	return lf_max(w - lf_max((lf_u32)fall, 1), 2);
}

LF_INLINE lf_u32 lf_scalable_undo_cwnd(struct lf_conn *c, struct lf_scalable_state *s,
				       const struct lf_scalable_tunables *t)
{
	return lf_window_before_loss(c);
}

#endif
