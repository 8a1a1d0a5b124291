/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * CUBIC: growth is a cubic function of the time since the last loss, and so does not depend on the round-trip time.
 *
 * Model      W_cubic(t) = C (t - K)^3 + W_max, K = cbrt((W_max - cwnd_epoch) / C): quickly back, slowly past the window
 *            of the last loss, quickly on. Mean cwnd = (C (3 + beta) / (4 (1 - beta)))^(1/4) (RTT / p)^(3/4), and
 *            Reno's 1.22 / sqrt(p) where that is more.
 * States     slow start as Reno, or limited slow start above max_ssthresh (RFC 3742);
 *            congestion avoidance: towards W_cubic(t + RTT) within a round trip, by at most half the window; or W_est,
 *            what an AIMD flow as aggressive as Reno would have, where W_cubic(t) is less (Reno-friendly region);
 *            loss: W_max = cwnd, or (1 + beta) / 2 of it when the flow lost before it got back to W_max (fast
 *            convergence); ssthresh = beta cwnd, at least 2;
 *            timeout: the next congestion avoidance begins with K = 0, W_max = cwnd;
 *            undo: everything as it was before the loss.
 *            Time in which the window was not used does not count (RFC 9438, section 5.8).
 * Units      segments; windows on the curve in 1/256 segment; time on it in ticks of 1/1024 s; C and beta in 1/1000.
 * Reference  RFC 9438. No HyStart: slow start ends at a loss, at ssthresh, or is limited by RFC 3742.
 */
#ifndef LONGFAT_CUBIC_H
#define LONGFAT_CUBIC_H

#include "../include/root.h"
#include "../include/window.h"

#define LF_CUBIC_TUNABLES(T) \
	LF_TUNABLE_MAX_SSTHRESH(T) \
	T(c_permille, 400, 10, 1000, "C: aggressiveness, in 1/1000 segment per second cubed") \
	T(beta_permille, 700, 500, 990, "beta: part of the window kept at a loss, in 1/1000") \
	T(fast_convergence, 1, 0, 1, "1: give way when the last loss came before W_max was reached")

struct lf_cubic_tunables {
	LF_CUBIC_TUNABLES(LF_TUNABLE_FIELD)
};

#define LF_CUBIC_OPTIONAL(O) O(cubic, on_restart)

/* What a loss changes, and undo brings back. */
struct lf_cubic_epoch {
	lf_u64 began_us;            /* of congestion avoidance, without unused time */
	lf_u32 w_est_segments;      /* W_est; 0: congestion avoidance has not begun since the last loss */
	lf_u32 w_max_segments;      /* W_max; 0: no loss yet */
	lf_u32 k_ticks;             /* K */
	lf_u32 prior_cwnd_segments; /* cwnd_prior: window at the last loss */
};

struct lf_cubic_state {
	struct lf_cubic_epoch now;
	struct lf_cubic_epoch before; /* the last loss */
	lf_u64 last_us;               /* of the last acknowledgement */
	lf_u64 target_256;            /* W_cubic(t + RTT) */
	lf_u64 est_credit_1024;       /* growth of W_est earned and not yet a whole segment: a segment is cwnd of it */
	lf_u32 tick;                  /* t of target_256; all ones: it must be computed */
	lf_u32 is_reno_friendly;      /* W_cubic(t) < W_est, at that tick */
	lf_u32 alpha_1024;            /* growth of W_est per round trip */
	lf_u32 credit;                /* 0 .. 255, in 1/256 of a unit of cwnd_credit_segments */
	lf_u32 timed_out;             /* 1: since the last loss */
};
LF_CHECK_STATE(struct lf_cubic_state);

#define LF_CUBIC_NO_TICK 0xffffffffu
/* 34 minutes: the cube of it is 2^63. A flow that has been without loss for longer grows by half each round trip. */
#define LF_CUBIC_MOST_TICKS (1u << 21)

/* Microseconds to ticks without a division: 68719 / 2^26 is 1024 / 10^6 to 7 parts in a million. */
LF_INLINE lf_u32 lf_cubic_ticks(lf_u64 us)
{
	if (us >> 31)
		return LF_CUBIC_MOST_TICKS;
	return lf_min((lf_u32)((us * 68719) >> 26), LF_CUBIC_MOST_TICKS);
}

LF_INLINE void lf_cubic_init(struct lf_conn *c, struct lf_cubic_state *s, const struct lf_cubic_tunables *t)
{
	s->now.began_us = 0;
	s->now.w_est_segments = 0;
	s->now.w_max_segments = 0;
	s->now.k_ticks = 0;
	s->now.prior_cwnd_segments = 0;
	s->before = s->now;
	s->last_us = c->now_us;
	s->credit = 0;
	s->timed_out = 0;
	/* 3 (1 - beta) / (1 + beta): gets as much with this beta as Reno with its own (RFC 9438, section 4.3). */
	s->alpha_1024 = 3072 * (1000 - t->beta_permille) / (1000 + t->beta_permille);
}

/* Takes the time since the last acknowledgement out of the epoch. */
LF_INLINE void lf_cubic_skip(struct lf_conn *c, struct lf_cubic_state *s)
{
	s->now.began_us += c->now_us - s->last_us;
	s->last_us = c->now_us;
}

LF_INLINE void lf_cubic_on_restart(struct lf_conn *c, struct lf_cubic_state *s, const struct lf_cubic_tunables *t)
{
	lf_cubic_skip(c, s);
}

/* K for a window that is `below` segments under W_max. */
LF_INLINE lf_u32 lf_cubic_k(lf_u32 below, const struct lf_cubic_tunables *t)
{
	lf_u64 cube = (lf_u64)below * 1000 / t->c_permille; /* s^3, below 2^38 */

	/* A tick is 2^-10 s, so its cube is 2^-30 s^3. */
	if (cube >> 33)
		return lf_cube_root(cube << 24) << 2;
	return lf_cube_root(cube << 30);
}

/* Congestion avoidance begins: sections 4.2, after a timeout 4.8, without a loss 4.10. */
LF_INLINE void lf_cubic_begin(struct lf_conn *c, struct lf_cubic_state *s, const struct lf_cubic_tunables *t)
{
	struct lf_cubic_epoch *now = &s->now;
	lf_u32 w = c->cwnd_segments;

	now->began_us = c->now_us;
	now->w_est_segments = w;
	if (s->timed_out || now->w_max_segments < w)
		now->w_max_segments = w;
	now->k_ticks = lf_cubic_k(now->w_max_segments - w, t);
	s->est_credit_1024 = 0;
	s->credit = 0;
	s->timed_out = 0;
	s->tick = LF_CUBIC_NO_TICK;
}

/* W_cubic, in 1/256 segment. */
LF_INLINE lf_u64 lf_cubic_window(const struct lf_cubic_epoch *e, const struct lf_cubic_tunables *t, lf_u32 tick)
{
	lf_u64 w_max = (lf_u64)e->w_max_segments << 8;
	lf_u32 away = tick > e->k_ticks ? tick - e->k_ticks : e->k_ticks - tick;
	lf_u64 d = lf_min(away, LF_CUBIC_MOST_TICKS);
	lf_u64 cube = (d * d * d) >> 20; /* 2^-10 s^3, at most 2^43 */
	lf_u64 off = (cube * ((t->c_permille << 16) / 1000)) >> 18;

	if (tick >= e->k_ticks)
		return w_max + off;
	return w_max > off ? w_max - off : 0;
}

/* The curve moves once a tick; within one, what was computed holds. */
LF_INLINE void lf_cubic_follow(struct lf_conn *c, struct lf_cubic_state *s, const struct lf_cubic_tunables *t)
{
	lf_u32 tick = lf_cubic_ticks(c->now_us - s->now.began_us);

	if (tick == s->tick)
		return;
	s->tick = tick;
	s->is_reno_friendly = lf_cubic_window(&s->now, t, tick) < (lf_u64)s->now.w_est_segments << 8;
	s->target_256 = lf_cubic_window(&s->now, t, tick + lf_cubic_ticks(c->srtt_us));
}

/* W_est: + alpha each round trip, + 1 once it is past the window of the last loss (section 4.3). */
LF_INLINE void lf_cubic_estimate(struct lf_conn *c, struct lf_cubic_state *s, lf_u32 acked)
{
	struct lf_cubic_epoch *now = &s->now;
	lf_u32 alpha = now->w_est_segments < now->prior_cwnd_segments ? s->alpha_1024 : 1024;
	lf_u64 price = (lf_u64)lf_max(c->cwnd_segments, 1) << 10;
	lf_u64 segments;

	s->est_credit_1024 += (lf_u64)acked * alpha;
	if (s->est_credit_1024 < price)
		return;
	segments = s->est_credit_1024 / price;
	s->est_credit_1024 -= segments * price;
	segments += now->w_est_segments;
	now->w_est_segments = segments < LF_WINDOW_MAX ? (lf_u32)segments : LF_WINDOW_MAX;
}

/* Towards the target within a round trip, by at most half the window (section 4.2). */
LF_INLINE void lf_cubic_approach(struct lf_conn *c, struct lf_cubic_state *s, lf_u32 acked)
{
	lf_u64 w_256 = (lf_u64)c->cwnd_segments << 8;
	lf_u64 gain_256, earned;

	if (s->target_256 <= w_256)
		return;
	gain_256 = s->target_256 - w_256;
	if (gain_256 > w_256 >> 1)
		gain_256 = w_256 >> 1;
	/* A window of 2^24 segments and more approaches in steps that 64 bits hold. */
	if (gain_256 >> 32)
		gain_256 = 0xffffffff;
	earned = acked * gain_256;
	earned = earned + s->credit < earned ? earned : earned + s->credit;
	s->credit = (lf_u32)(earned & 0xff);
	lf_congestion_avoidance(c, earned >> 8);
}

LF_INLINE void lf_cubic_on_ack(struct lf_conn *c, struct lf_cubic_state *s, const struct lf_cubic_tunables *t,
			       const struct lf_ack *ack)
{
	lf_u32 acked = ack->acked_segments;

	if (c->ca_state == LF_LOSS && !s->now.w_est_segments)
		s->timed_out = 1;
	if (!lf_is_cwnd_limited(c)) {
		lf_cubic_skip(c, s);
		return;
	}
	s->last_us = c->now_us;
	if (!lf_past_slow_start(c, &acked, t->max_ssthresh_segments))
		return;
	if (!s->now.w_est_segments)
		lf_cubic_begin(c, s, t);
	lf_cubic_estimate(c, s, acked);
	lf_cubic_follow(c, s, t);
	if (!s->is_reno_friendly)
		lf_cubic_approach(c, s, acked);
	else if (s->now.w_est_segments > c->cwnd_segments)
		lf_grow(c, s->now.w_est_segments - c->cwnd_segments, LF_WINDOW_MAX);
}

LF_INLINE lf_u32 lf_cubic_ssthresh(struct lf_conn *c, struct lf_cubic_state *s, const struct lf_cubic_tunables *t)
{
	struct lf_cubic_epoch *now = &s->now;
	lf_u32 w = c->cwnd_segments;

	s->before = *now;
	if (w < now->w_max_segments && t->fast_convergence)
		now->w_max_segments = (lf_u32)((lf_u64)w * (1000 + t->beta_permille) / 2000);
	else
		now->w_max_segments = w;
	now->prior_cwnd_segments = w;
	now->w_est_segments = 0;
	s->timed_out = 0;
	return lf_max((lf_u32)((lf_u64)w * t->beta_permille / 1000), 2);
}

/* Section 4.9: the curve goes on from where it was. */
LF_INLINE lf_u32 lf_cubic_undo_cwnd(struct lf_conn *c, struct lf_cubic_state *s, const struct lf_cubic_tunables *t)
{
	s->now = s->before;
	s->timed_out = 0;
	s->est_credit_1024 = 0;
	s->tick = LF_CUBIC_NO_TICK;
	return lf_window_before_loss(c);
}

#endif
