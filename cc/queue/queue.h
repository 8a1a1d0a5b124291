/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * What happens at each data packet that arrives on an inbound leg: measure, ask the controller, and mark unless it is
 * too early or would let the outbound leg run dry.
 */
#ifndef LONGFAT_QUEUE_QUEUE_H
#define LONGFAT_QUEUE_QUEUE_H

#include "every.h"
#include "fixed.h"
#include "pi.h"
#include "red.h"

/* A round trip for the hold-off when the leg's is shorter, or not known: its sender's timers are no finer. */
#define LF_HOLD_OFF_LEAST_US 1000u

/*
 * A sender that is told to slow down sends half as much for at least a round trip. Unless the missing half waits
 * here already, the outbound leg would run dry.
 */
LF_INLINE lf_u32 lf_would_run_dry(const struct lf_queue_view *v, const struct lf_queue_state *s)
{
	return lf_waiting_bytes(v) < lf_bytes_in(s->drain.bytes_per_s, v->inbound_rtt_us) / 2 + 2 * (lf_u64)v->mss_bytes;
}

LF_INLINE lf_u32 lf_queue_probability(const struct lf_queue_view *v, struct lf_queue_state *s,
				      const struct lf_queue_settings *t)
{
	switch (t->kind) {
	case LF_QUEUE_FIXED:
		return lf_fixed_probability(v, t);
	case LF_QUEUE_RED:
		return lf_red_probability(v, t);
	case LF_QUEUE_PI:
		return lf_pi_probability(v, s, t);
	case LF_QUEUE_EVERY:
		return lf_every_probability(v, s, t);
	}
	return 0;
}

LF_INLINE void lf_queue_measure(const struct lf_queue_view *v, struct lf_queue_state *s)
{
	if (lf_drain_on_view(&s->drain, v))
		lf_drain_begin(&s->drain, v);
	s->packets++;
	s->waiting_bytes = lf_waiting_bytes(v);
	s->backlog_bytes = lf_backlog_bytes(v);
	/* Before the first measurement nothing is known to be late. */
	s->delay_us = s->drain.bytes_per_s ? lf_delay_us(s->waiting_bytes, s->drain.bytes_per_s) : 0;
}

/* A data packet arrives: 1 when it is to be marked. Call lf_queue_marked once it was. */
LF_INLINE lf_u32 lf_queue_on_packet(const struct lf_queue_view *v, struct lf_queue_state *s,
				    const struct lf_queue_settings *t)
{
	lf_u32 p;

	lf_queue_measure(v, s);
	p = lf_queue_probability(v, s, t);
	if (p == 0 || v->random > p || v->now_us < s->hold_until_us)
		return 0;
	return t->hold_off_rtts == 0 || !lf_would_run_dry(v, s);
}

/* The packet was marked (a sender without ECN cannot be told so). */
LF_INLINE void lf_queue_marked(const struct lf_queue_view *v, struct lf_queue_state *s,
			       const struct lf_queue_settings *t)
{
	lf_u64 rtt_us = v->inbound_rtt_us > LF_HOLD_OFF_LEAST_US ? v->inbound_rtt_us : LF_HOLD_OFF_LEAST_US;

	s->marks++;
	if (t->hold_off_rtts)
		s->hold_until_us = v->now_us + rtt_us * t->hold_off_rtts;
}

#endif
