/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * BIC-TCP: a binary search for the largest window without loss, between the window after the last loss and the one
 * before it.
 *
 * Model      Three parts of growth per round trip: linear, S_max, while the end of the search is far; a part 1/B of the
 *            distance when that is less; and a slow crossing of the last segments below and the first above w_max,
 *            after which the search goes on upwards in the reverse order (max probing). Where S_max rules, it responds
 *            as AIMD(S_max, 1 - beta): mean cwnd = sqrt(S_max (1 + beta) / (2 (1 - beta) p)).
 * States     slow start as Reno, or limited slow start above max_ssthresh (RFC 3742);
 *            congestion avoidance: as above; + 1 each round trip up to the low window; at least + cwnd / 20 while no
 *            loss has told w_max, or a timeout made it meaningless;
 *            loss: w_max = cwnd, or (1 + beta) / 2 of it when the flow lost before it got back to w_max (fast
 *            convergence); ssthresh = beta cwnd, half up to the low window, at least 2;
 *            timeout: w_max is forgotten.
 *            Private state: w_max, and the part of a unit of credit not yet counted.
 * Units      segments; growth per round trip in 1/256 segment; beta in 1/1024.
 * Reference  L. Xu, K. Harfoush, I. Rhee, "Binary Increase Congestion Control (BIC) for Fast Long-Distance Networks",
 *            INFOCOM 2004. Constants, the step of a quarter instead of half the distance, and the slow crossing are
 *            those that Linux's tcp_bic made known.
 */
#ifndef LONGFAT_BIC_H
#define LONGFAT_BIC_H

#include "../include/window.h"

#define LF_BIC_TUNABLES(T) \
	LF_TUNABLE_MAX_SSTHRESH(T) \
	T(max_increment_segments, 16, 1, 65535, "S_max: most growth per round trip") \
	T(search_divisor, 4, 2, 64, "B: part of the distance to w_max covered per round trip; 2 is the paper's") \
	T(smooth_round_trips, 20, 1, 1000, "round trips for B segments next to w_max: S_min is B over this") \
	T(beta_1024, 819, 512, 1023, "beta: part of the window kept at a loss, in 1/1024") \
	T(low_window_segments, 14, 0, LF_WINDOW_MAX, "window up to which it is Reno") \
	T(fast_convergence, 1, 0, 1, "1: give way when the last loss came before w_max was reached")

struct lf_bic_tunables {
	LF_BIC_TUNABLES(LF_TUNABLE_FIELD)
};

struct lf_bic_state {
	lf_u32 w_max_segments; /* window at the last loss; 0: not known */
	lf_u32 credit;         /* 0 .. 255, in 1/256 of a unit of cwnd_credit_segments */
};
LF_CHECK_STATE(struct lf_bic_state);

/* Least growth while w_max is not known: a part of the window per round trip, as Linux does. */
#define LF_BIC_UNKNOWN_PART 20

LF_INLINE void lf_bic_init(struct lf_conn *c, struct lf_bic_state *s, const struct lf_bic_tunables *t)
{
	s->w_max_segments = 0;
	s->credit = 0;
}

/* Growth per round trip at a step of `step` in 1/256 segment, bounded by S_max. */
LF_INLINE lf_u32 lf_bic_bounded(const struct lf_bic_tunables *t, lf_u64 step)
{
	lf_u32 most = t->max_increment_segments << 8;

	return step < most ? (lf_u32)step : most;
}

/* Below w_max: a part 1/B of the distance, and S_min where that would be less than about one segment. */
LF_INLINE lf_u32 lf_bic_search(const struct lf_bic_tunables *t, lf_u32 distance, lf_u32 slow)
{
	if (distance < 2 * t->search_divisor)
		return slow;
	return lf_bic_bounded(t, ((lf_u64)distance << 8) / t->search_divisor);
}

/* At and above w_max: S_min at first, then the more the further, up to S_max. */
LF_INLINE lf_u32 lf_bic_probe(const struct lf_bic_tunables *t, lf_u32 distance, lf_u32 slow)
{
	if (distance < t->search_divisor)
		return slow;
	return lf_bic_bounded(t, ((lf_u64)distance << 8) / (t->search_divisor - 1));
}

/* Growth per round trip at window `w`, in 1/256 segment. */
LF_INLINE lf_u32 lf_bic_increase(const struct lf_bic_state *s, const struct lf_bic_tunables *t, lf_u32 w)
{
	lf_u32 slow = lf_bic_bounded(t, (t->search_divisor << 8) / t->smooth_round_trips);

	if (w <= t->low_window_segments)
		return 1 << 8;
	if (w < s->w_max_segments)
		return lf_bic_search(t, s->w_max_segments - w, slow);
	if (s->w_max_segments)
		return lf_bic_probe(t, w - s->w_max_segments, slow);
	return lf_max(lf_bic_bounded(t, (lf_u64)w << 8),
		      (lf_u32)lf_min(w / LF_BIC_UNKNOWN_PART, LF_WINDOW_MAX >> 8) << 8);
}

LF_INLINE void lf_bic_on_ack(struct lf_conn *c, struct lf_bic_state *s, const struct lf_bic_tunables *t,
			     const struct lf_ack *ack)
{
	lf_u32 acked = ack->acked_segments;
	lf_u64 earned;

	if (c->ca_state == LF_LOSS)
		s->w_max_segments = 0;
	if (!lf_is_cwnd_limited(c))
		return;
	if (!lf_past_slow_start(c, &acked, t->max_ssthresh_segments))
		return;
	earned = (lf_u64)acked * lf_bic_increase(s, t, c->cwnd_segments) + s->credit;
	s->credit = (lf_u32)(earned & 0xff);
	lf_congestion_avoidance(c, earned >> 8);
}

LF_INLINE lf_u32 lf_bic_ssthresh(struct lf_conn *c, struct lf_bic_state *s, const struct lf_bic_tunables *t)
{
	lf_u32 w = c->cwnd_segments;

	if (w < s->w_max_segments && t->fast_convergence)
		s->w_max_segments = (lf_u32)(((lf_u64)w * (1024 + t->beta_1024)) >> 11);
	else
		s->w_max_segments = w;
	if (w <= t->low_window_segments)
		return lf_max(w >> 1, 2);
	return lf_max((lf_u32)(((lf_u64)w * t->beta_1024) >> 10), 2);
}

LF_INLINE lf_u32 lf_bic_undo_cwnd(struct lf_conn *c, struct lf_bic_state *s, const struct lf_bic_tunables *t)
{
	return lf_window_before_loss(c);
}

#endif
