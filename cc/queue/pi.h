/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * PI: holds a target delay. The probability is an integral of the delay's distance from the target and of its change:
 *
 *      p += alpha * (delay - target) + beta * (delay - delay before)        every period
 *
 * The delay  is the least of the last round trip: what always waits. A sender's bursts, a window at a time once per
 *            round trip, are no reason to slow down (Nichols and Jacobson 2012).
 * States     p, the delay at the last update, and the least since.
 * Units      p as a fraction of LF_CERTAIN; delays in us. alpha = 1/8 and beta = 5/4 per second of delay and update.
 *            Both are made smaller while p is small, as sqrt(p) is what a sender responds to (RFC 8033, section 4.2).
 * Aim        The target and one inbound round trip: a sender that halves its window is a round trip's worth short.
 * Departures RFC 8033 measures in a queue that delays the sender's own packets. Here the delay is that of bytes already
 *            acknowledged, so the hold-off of queue.h, not this controller, is what keeps marks one reduction apart.
 * Reference  RFC 8033 (PIE), sections 4.2, 5.5; Hollot et al. 2001.
 */
#ifndef LONGFAT_QUEUE_PI_H
#define LONGFAT_QUEUE_PI_H

#include "drain.h"

#define LF_PI_PERIOD_US 15000u
/* LF_CERTAIN * alpha / 10^6 and LF_CERTAIN * beta / 10^6: probability per us. */
#define LF_PI_ALPHA 537u
#define LF_PI_BETA 5369u
/* A change of more than this is taken as this. */
#define LF_PI_CHANGE_MAX_US 250000u
/* More than every fourth packet is never marked: one mark in a round trip is all a sender hears. */
#define LF_PI_MOST (LF_CERTAIN / 4)

/* How much smaller the gains are at a probability, as a shift (RFC 8033, section 5.5). */
LF_INLINE lf_u32 lf_pi_shift(lf_u32 p)
{
	if (p < LF_CERTAIN / 1000000)
		return 11;
	if (p < LF_CERTAIN / 100000)
		return 9;
	if (p < LF_CERTAIN / 10000)
		return 7;
	if (p < LF_CERTAIN / 1000)
		return 5;
	if (p < LF_CERTAIN / 100)
		return 3;
	return p < LF_CERTAIN / 10 ? 1 : 0;
}

LF_INLINE lf_u64 lf_pi_above(lf_u32 a_us, lf_u32 b_us)
{
	lf_u32 by = a_us > b_us ? a_us - b_us : 0;

	return by > LF_PI_CHANGE_MAX_US ? LF_PI_CHANGE_MAX_US : by;
}

LF_INLINE void lf_pi_update(struct lf_queue_state *s, lf_u32 target_us)
{
	lf_u32 shift = lf_pi_shift(s->pi_probability), before = s->pi_delay_us, now = s->pi_least_us;
	lf_u64 up = lf_pi_above(now, target_us) * LF_PI_ALPHA + lf_pi_above(now, before) * LF_PI_BETA;
	lf_u64 down = lf_pi_above(target_us, now) * LF_PI_ALPHA + lf_pi_above(before, now) * LF_PI_BETA;
	lf_u64 p = s->pi_probability;

	p += up >> shift;
	p = p > down >> shift ? p - (down >> shift) : 0;
	/* Far below the target nothing is left of it (RFC 8033, section 4.2, decay). */
	if (now < target_us / 2 && before < target_us / 2)
		p -= p / 32;
	s->pi_probability = p > LF_PI_MOST ? LF_PI_MOST : (lf_u32)p;
	s->pi_delay_us = now;
	s->pi_least_us = LF_CERTAIN;
}

LF_INLINE lf_u32 lf_pi_period_us(const struct lf_queue_view *v)
{
	return v->inbound_rtt_us > LF_PI_PERIOD_US ? v->inbound_rtt_us : LF_PI_PERIOD_US;
}

LF_INLINE lf_u32 lf_pi_probability(const struct lf_queue_view *v, struct lf_queue_state *s,
				   const struct lf_queue_settings *t)
{
	if (s->delay_us < s->pi_least_us)
		s->pi_least_us = s->delay_us;
	if (s->pi_at_us == 0 || v->now_us - s->pi_at_us > LF_DRAIN_STALE_US) {
		s->pi_at_us = v->now_us;
		s->pi_delay_us = s->pi_least_us = s->delay_us;
		s->pi_probability = 0;
	} else if (v->now_us - s->pi_at_us >= lf_pi_period_us(v)) {
		s->pi_at_us = v->now_us;
		/* A sender that halves fills its pipe again in many round trips: one must wait here meanwhile. */
		lf_pi_update(s, t->target_us + (v->inbound_rtt_us > LF_PI_CHANGE_MAX_US ? LF_PI_CHANGE_MAX_US : v->inbound_rtt_us));
	}
	return s->pi_probability;
}

#endif
