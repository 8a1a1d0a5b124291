/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * LEDBAT: a background transfer that keeps the delay it adds at a target.
 *
 * Model      queueing delay = least of the last four delays - least delay of the last ten minutes;
 *            off = (target - queueing delay) / target; cwnd += gain off per round trip.
 * States     slow start as Reno (RFC 6817 leaves the start open), until the queueing delay exceeds half the target or
 *            ssthresh; then the above, by whole segments, at least 2; loss: cwnd / 2, at least 2.
 *            Delay is the round-trip time: senders do not know one-way delay without the receiver's clock. So queues
 *            of the way back count, too.
 * Units      segments; microseconds; off in Q16; gain in 1/1000.
 * Reference  RFC 6817 sections 2.4.2, 2.5. `max_allowed_cwnd` is "an unused window does not grow".
 */
#ifndef LONGFAT_LEDBAT_H
#define LONGFAT_LEDBAT_H

#include "../include/delay.h"
#include "../include/fixed.h"
#include "../include/window.h"

#define LF_LEDBAT_TUNABLES(T) \
	LF_TUNABLE_MAX_SSTHRESH(T) \
	T(target_us, 60000, 100, 100000, "queueing delay to keep, in us; RFC 6817 allows up to 100 ms") \
	T(gain_permille, 1000, 1, 1000, "segments gained per round trip with an empty queue, in 1/1000")

struct lf_ledbat_tunables {
	LF_LEDBAT_TUNABLES(LF_TUNABLE_FIELD)
};

#define LF_LEDBAT_OPTIONAL(O) O(ledbat, on_rtt_sample)

struct lf_ledbat_state {
	lf_s64 credit_q16; /* window change earned, times cwnd */
	struct lf_delay delay;
};
LF_CHECK_STATE(struct lf_ledbat_state);

LF_INLINE void lf_ledbat_init(struct lf_conn *c, struct lf_ledbat_state *s, const struct lf_ledbat_tunables *t)
{
	s->credit_q16 = 0;
	lf_delay_begin(&s->delay, c->now_us);
}

LF_INLINE void lf_ledbat_on_rtt_sample(struct lf_conn *c, struct lf_ledbat_state *s, const struct lf_ledbat_tunables *t,
				       lf_u32 rtt_us)
{
	lf_delay_sample(&s->delay, c->now_us, rtt_us);
}

/*
 * How far the queue is from the target: 1 empty, 0 at it, negative above; a window is not cut by more than eight
 * segments per round trip.
 */
LF_INLINE lf_s64 lf_ledbat_off_q16(const struct lf_ledbat_tunables *t, lf_u32 queueing_us)
{
	lf_s64 off = lf_divide(((lf_s64)t->target_us - (lf_s64)queueing_us) << 16, t->target_us);

	return lf_clamp(off, -8 * LF_ONE_Q16, LF_ONE_Q16);
}

LF_INLINE void lf_ledbat_apply(struct lf_conn *c, lf_s64 segments)
{
	lf_u64 less = segments < 0 ? 0 - (lf_u64)segments : 0;

	if (segments >= 0) {
		lf_grow(c, (lf_u64)segments, LF_WINDOW_MAX);
		return;
	}
	if (c->cwnd_segments > 2)
		c->cwnd_segments = c->cwnd_segments - 2 > less ? (lf_u32)(c->cwnd_segments - less) : 2;
	c->ssthresh_segments = lf_min(c->ssthresh_segments, lf_max(c->cwnd_segments - 1, 1));
}

LF_INLINE void lf_ledbat_on_ack(struct lf_conn *c, struct lf_ledbat_state *s, const struct lf_ledbat_tunables *t,
				const struct lf_ack *ack)
{
	lf_u32 acked = ack->acked_segments, queueing_us = s->delay.samples ? lf_delay_queueing_us(&s->delay) : 0;
	lf_s64 price = (lf_s64)lf_max(c->cwnd_segments, 1) << 16, earned, segments;

	if (lf_in_slow_start(c)) {
		if (queueing_us > t->target_us / 2)
			c->ssthresh_segments = lf_min(c->ssthresh_segments, c->cwnd_segments);
		else if (!lf_is_cwnd_limited(c) || !lf_past_slow_start(c, &acked, t->max_ssthresh_segments))
			return;
	}
	earned = lf_divide(lf_ledbat_off_q16(t, queueing_us) * acked * t->gain_permille, 1000);
	if (earned > 0 && !lf_is_cwnd_limited(c))
		return;
	s->credit_q16 = lf_clamp(s->credit_q16, 0 - price, price) + earned;
	segments = lf_divide(s->credit_q16, (lf_u64)price);
	s->credit_q16 -= segments * price;
	lf_ledbat_apply(c, segments);
}

LF_INLINE lf_u32 lf_ledbat_ssthresh(struct lf_conn *c, struct lf_ledbat_state *s, const struct lf_ledbat_tunables *t)
{
	s->credit_q16 = 0;
	return lf_max(c->cwnd_segments >> 1, 2);
}

LF_INLINE lf_u32 lf_ledbat_undo_cwnd(struct lf_conn *c, struct lf_ledbat_state *s, const struct lf_ledbat_tunables *t)
{
	return lf_window_before_loss(c);
}

#endif
