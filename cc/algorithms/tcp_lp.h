/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * TCP-LP: a background transfer that takes a rising delay for the arrival of others, and yields before a loss.
 *
 * Model      d = (1 - 1/8) d + 1/8 sample; early congestion: d > d_min + delta (d_max - d_min).
 * States     up to the first loss as Reno: so the range of delay is learnt. Then as Reno, and at early congestion:
 *            cwnd / 2, and inference, for three round trips: the window does not grow, and if congestion persists
 *            after the first of them, cwnd = 2; inference begins anew. (The paper has 1; a receiver delays the
 *            acknowledgement of a lone segment, which then would look like congestion for ever. So up to a window of 2
 *            nothing is inferred.) d_max is the greatest sample but one: a lone one tells of an outage, not of a queue.
 *            Delay is the round-trip time: senders do not know one-way delay without the receiver's clock.
 * Units      segments; microseconds; d in 1/8 us; delta in 1/1000.
 * Reference  Kuzmanovic and Knightly 2003: gamma 1/8, delta 0.15, inference of three round trips.
 */
#ifndef LONGFAT_TCP_LP_H
#define LONGFAT_TCP_LP_H

#include "../include/window.h"

#define LF_TCP_LP_TUNABLES(T) \
	LF_TUNABLE_MAX_SSTHRESH(T) \
	T(delta_permille, 150, 1, 999, "part of the known range of delay above which others are assumed, in 1/1000") \
	T(inference_round_trips, 3, 1, 100, "how long the window does not grow after early congestion")

struct lf_tcp_lp_tunables {
	LF_TCP_LP_TUNABLES(LF_TUNABLE_FIELD)
};

#define LF_TCP_LP_OPTIONAL(O) O(tcp_lp, on_rtt_sample)

struct lf_tcp_lp_state {
	lf_u64 inference_us; /* when inference began; 0: none */
	lf_u64 delay_8us;    /* d; 0: no sample yet */
	lf_u32 min_us;
	lf_u32 max_us;      /* the greatest sample but one; 0: not two yet */
	lf_u32 warned;      /* 1: in this inference the window was cut already */
	lf_u32 greatest_us; /* the greatest sample */
};
LF_CHECK_STATE(struct lf_tcp_lp_state);

LF_INLINE void lf_tcp_lp_init(struct lf_conn *c, struct lf_tcp_lp_state *s, const struct lf_tcp_lp_tunables *t)
{
	s->inference_us = 0;
	s->delay_8us = 0;
	s->min_us = 0xffffffff;
	s->max_us = 0;
	s->greatest_us = 0;
	s->warned = 0;
}

LF_INLINE void lf_tcp_lp_on_rtt_sample(struct lf_conn *c, struct lf_tcp_lp_state *s, const struct lf_tcp_lp_tunables *t,
				       lf_u32 rtt_us)
{
	s->min_us = lf_min(s->min_us, rtt_us);
	s->max_us = lf_max(s->max_us, lf_min(s->greatest_us, rtt_us));
	s->greatest_us = lf_max(s->greatest_us, rtt_us);
	if (!s->delay_8us)
		s->delay_8us = 8ull * rtt_us;
	else
		s->delay_8us = s->delay_8us - s->delay_8us / 8 + rtt_us;
}

/* A range of less than a millisecond is noise, not a queue. */
LF_INLINE lf_u32 lf_tcp_lp_is_early_congestion(const struct lf_tcp_lp_state *s, const struct lf_tcp_lp_tunables *t)
{
	lf_u64 range = s->max_us > s->min_us ? s->max_us - s->min_us : 0;

	if (!s->delay_8us || range < 1000)
		return 0;
	return s->delay_8us * 125 > s->min_us * 1000ull + range * t->delta_permille;
}

LF_INLINE void lf_tcp_lp_cut(struct lf_conn *c, lf_u32 window)
{
	c->cwnd_segments = lf_max(lf_min(c->cwnd_segments, window), 2);
	/* In congestion avoidance, from here. */
	c->ssthresh_segments = lf_min(c->ssthresh_segments, c->cwnd_segments);
}

/* Returns whether the window may grow. */
LF_INLINE lf_u32 lf_tcp_lp_infer(struct lf_conn *c, struct lf_tcp_lp_state *s, const struct lf_tcp_lp_tunables *t)
{
	lf_u64 round_us = lf_max(c->srtt_us, 1), since_us = c->now_us - s->inference_us;
	lf_u32 infers = s->inference_us && since_us < round_us * t->inference_round_trips;
	lf_u32 is_early = lf_tcp_lp_is_early_congestion(s, t);

	/* So few segments measure the receiver's delay of an acknowledgement. */
	if (c->cwnd_segments <= 2)
		return 1;
	/* What was in flight at the cut says nothing about after it. */
	if (infers && since_us >= round_us && is_early && s->warned) {
		s->warned = 0;
		s->inference_us = c->now_us;
		lf_tcp_lp_cut(c, 2);
	} else if (!infers && is_early) {
		s->warned = 1;
		s->inference_us = c->now_us;
		lf_tcp_lp_cut(c, lf_max(c->cwnd_segments >> 1, 2));
	}
	return !infers && !is_early;
}

LF_INLINE void lf_tcp_lp_on_ack(struct lf_conn *c, struct lf_tcp_lp_state *s, const struct lf_tcp_lp_tunables *t,
				const struct lf_ack *ack)
{
	lf_u32 acked = ack->acked_segments;

	if (s->delay_8us && c->ssthresh_segments < LF_WINDOW_MAX && !lf_tcp_lp_infer(c, s, t))
		return;
	if (!lf_is_cwnd_limited(c))
		return;
	if (!lf_past_slow_start(c, &acked, t->max_ssthresh_segments))
		return;
	lf_congestion_avoidance(c, acked);
}

LF_INLINE lf_u32 lf_tcp_lp_ssthresh(struct lf_conn *c, struct lf_tcp_lp_state *s, const struct lf_tcp_lp_tunables *t)
{
	return lf_max(c->cwnd_segments >> 1, 2);
}

LF_INLINE lf_u32 lf_tcp_lp_undo_cwnd(struct lf_conn *c, struct lf_tcp_lp_state *s, const struct lf_tcp_lp_tunables *t)
{
	return lf_window_before_loss(c);
}

#endif
