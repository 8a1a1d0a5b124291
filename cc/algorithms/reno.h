/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Reno: the standard response, and the yardstick for every other.
 *
 * Model      Additive increase, multiplicative decrease. Steady state at loss rate p: cwnd = 1.22 / sqrt(p)
 *            (one loss per sawtooth; RFC 3649, section 2).
 * States     slow start (cwnd < ssthresh): + 1 per acknowledged segment, so doubling each round trip, or limited
 *            slow start above max_ssthresh (RFC 3742);
 *            congestion avoidance: + 1 / cwnd per acknowledged segment, so + 1 each round trip;
 *            loss: ssthresh = cwnd / 2, at least 2. No private state.
 * Units      segments.
 * Reference  RFC 5681 sections 3.1 and 3.2, RFC 6582 (recovery itself is the caller's), RFC 3742. Behaves as the
 *            Linux kernel's reno when max_ssthresh_segments is 0.
 */
#ifndef LONGFAT_RENO_H
#define LONGFAT_RENO_H

#include "../include/window.h"

#define LF_RENO_TUNABLES(T) \
	LF_TUNABLE_MAX_SSTHRESH(T)

struct lf_reno_tunables {
	LF_RENO_TUNABLES(LF_TUNABLE_FIELD)
};

struct lf_reno_state {};
LF_CHECK_STATE(struct lf_reno_state);

LF_INLINE void lf_reno_init(struct lf_conn *c, struct lf_reno_state *s, const struct lf_reno_tunables *t)
{
}

LF_INLINE void lf_reno_on_ack(struct lf_conn *c, struct lf_reno_state *s, const struct lf_reno_tunables *t,
			      const struct lf_ack *ack)
{
	lf_u32 acked = ack->acked_segments;

	if (!lf_is_cwnd_limited(c))
		return;
	if (!lf_past_slow_start(c, &acked, t->max_ssthresh_segments))
		return;
	lf_congestion_avoidance(c, acked);
}

LF_INLINE lf_u32 lf_reno_ssthresh(struct lf_conn *c, struct lf_reno_state *s, const struct lf_reno_tunables *t)
{
	return lf_max(c->cwnd_segments >> 1, 2);
}

LF_INLINE lf_u32 lf_reno_undo_cwnd(struct lf_conn *c, struct lf_reno_state *s, const struct lf_reno_tunables *t)
{
	return lf_window_before_loss(c);
}

#endif
