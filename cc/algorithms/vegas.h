/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * TCP Vegas: keeps a few segments of its own in the queue, told by the round-trip time, and so stops before the loss.
 *
 * Model      Expected = w / BaseRTT, Actual = w / RTT. Their difference times BaseRTT is what the flow has queued:
 *            w (RTT - BaseRTT) / RTT segments. Equilibrium: alpha to beta of them, whatever rate and distance.
 * States     A round ends when enough segments that were sent after it began have been sampled. RTT is the least of the
 *            round's samples, BaseRTT the least of all.
 *            slow start (cwnd < ssthresh): in every other round as Reno; in between the window is held, so that the
 *            samples of segments sent under it tell whether it is too large. More than gamma queued ends it:
 *            cwnd = w BaseRTT / RTT + 1, ssthresh just below;
 *            congestion avoidance: at the end of a round + 1 below alpha, - 1 above beta;
 *            outside of normal operation (ca_state), with fewer than three samples in a round, and until something is
 *            measured: as Reno;
 *            loss: ssthresh = cwnd / 2, at least 2.
 *            Private state: the round and BaseRTT.
 * Units      segments, microseconds.
 * Reference  L. Brakmo, S. O'Malley, L. Peterson, "TCP Vegas: New Techniques for Congestion Detection and Avoidance",
 *            SIGCOMM 1994, section 3.2 and 3.3. Its retransmission is not here: that is the caller's.
 */
#ifndef LONGFAT_VEGAS_H
#define LONGFAT_VEGAS_H

#include "../include/window.h"

#define LF_VEGAS_TUNABLES(T) \
	LF_TUNABLE_MAX_SSTHRESH(T) \
	T(alpha_segments, 2, 1, 65535, "alpha: grow while fewer are queued") \
	T(beta_segments, 4, 1, 65535, "beta: shrink while more are queued") \
	T(gamma_segments, 1, 1, 65535, "gamma: slow start ends when more are queued")

struct lf_vegas_tunables {
	LF_VEGAS_TUNABLES(LF_TUNABLE_FIELD)
};

#define LF_VEGAS_OPTIONAL(O) O(vegas, on_rtt_sample) O(vegas, on_restart)

/* Samples of a round that may all be of segments whose acknowledgement was delayed: too few to tell the queue. */
#define LF_VEGAS_FEW_SAMPLES 2
/* Samples of segments sent within a round that end it: so that one late acknowledgement does not end slow start. */
#define LF_VEGAS_ENOUGH_FRESH 8

struct lf_vegas_state {
	lf_u64 round_began_us;
	lf_u32 base_rtt_us;  /* BaseRTT; 0: nothing measured yet */
	lf_u32 round_rtt_us; /* least of this round */
	lf_u32 fresh_rtt_us; /* least of the segments sent after it began */
	lf_u32 samples;      /* of this round, counted to 3; 0: the next sample begins one */
	lf_u32 fresh;        /* of segments sent after it began, counted to 8 */
	lf_u32 is_holding;   /* 1: slow start holds the window in this round */
};
LF_CHECK_STATE(struct lf_vegas_state);

LF_INLINE void lf_vegas_forget_round(struct lf_vegas_state *s)
{
	s->samples = 0;
	s->fresh = 0;
}

LF_INLINE void lf_vegas_init(struct lf_conn *c, struct lf_vegas_state *s, const struct lf_vegas_tunables *t)
{
	s->base_rtt_us = 0;
	s->is_holding = 0;
	lf_vegas_forget_round(s);
}

/* What was in the queue before the pause is gone; BaseRTT stays, because the path does. */
LF_INLINE void lf_vegas_on_restart(struct lf_conn *c, struct lf_vegas_state *s, const struct lf_vegas_tunables *t)
{
	s->is_holding = 0;
	lf_vegas_forget_round(s);
}

LF_INLINE void lf_vegas_on_rtt_sample(struct lf_conn *c, struct lf_vegas_state *s,
				      const struct lf_vegas_tunables *t, lf_u32 rtt_us)
{
	if (!s->base_rtt_us || rtt_us < s->base_rtt_us)
		s->base_rtt_us = rtt_us;
	if (c->ca_state != LF_OPEN) {
		lf_vegas_forget_round(s);
		return;
	}
	if (!s->samples) {
		s->round_began_us = c->now_us;
		s->round_rtt_us = rtt_us;
		s->fresh = 0;
	}
	s->samples = lf_min(s->samples, LF_VEGAS_FEW_SAMPLES) + 1;
	s->round_rtt_us = lf_min(s->round_rtt_us, rtt_us);
	/* The segment was sent one round-trip time ago. */
	if (s->round_began_us + rtt_us > c->now_us)
		return;
	s->fresh_rtt_us = s->fresh ? lf_min(s->fresh_rtt_us, rtt_us) : rtt_us;
	s->fresh = lf_min(s->fresh, LF_VEGAS_ENOUGH_FRESH - 1) + 1;
}

/* With one acknowledgement for two segments, half a window is all the samples of a round. */
LF_INLINE lf_u32 lf_vegas_round_over(const struct lf_conn *c, const struct lf_vegas_state *s)
{
	lf_u32 enough = lf_min(c->cwnd_segments >> 1, LF_VEGAS_ENOUGH_FRESH);

	return s->fresh >= lf_max(enough, 1);
}

/* Ends slow start at the window that just fills the path. */
LF_INLINE void lf_vegas_leave_slow_start(struct lf_conn *c, lf_u64 base_rtt_us, lf_u32 rtt_us)
{
	lf_u64 target = c->cwnd_segments * base_rtt_us / rtt_us + 1;

	if (target < c->cwnd_segments)
		c->cwnd_segments = lf_max((lf_u32)target, 2);
	c->ssthresh_segments = lf_min(c->ssthresh_segments, c->cwnd_segments - 1);
}

LF_INLINE void lf_vegas_slow_start(struct lf_conn *c, struct lf_vegas_state *s, const struct lf_vegas_tunables *t,
				   lf_u32 over, lf_u32 rtt_us, lf_u32 acked)
{
	lf_u64 queued = (lf_u64)c->cwnd_segments * (rtt_us - s->base_rtt_us);
	lf_u32 held = s->is_holding;

	if (over)
		s->is_holding = !held;
	if (!held)
		lf_slow_start(c, acked, t->max_ssthresh_segments);
	else if (over && queued > (lf_u64)t->gamma_segments * rtt_us && c->cwnd_segments > 2)
		lf_vegas_leave_slow_start(c, s->base_rtt_us, rtt_us);
}

LF_INLINE void lf_vegas_shrink(struct lf_conn *c)
{
	if (c->cwnd_segments <= 2)
		return;
	c->cwnd_segments--;
	/* Still in congestion avoidance. */
	c->ssthresh_segments = lf_min(c->ssthresh_segments, c->cwnd_segments - 1);
}

/* Once per round. `queued` is in segments times RTT, so that nothing is rounded. */
LF_INLINE void lf_vegas_avoid(struct lf_conn *c, const struct lf_vegas_tunables *t, lf_u32 base_rtt_us,
			      lf_u32 rtt_us)
{
	lf_u64 queued = (lf_u64)c->cwnd_segments * (rtt_us - base_rtt_us);

	if (queued > (lf_u64)t->beta_segments * rtt_us)
		lf_vegas_shrink(c);
	else if (queued < (lf_u64)t->alpha_segments * rtt_us)
		lf_grow(c, 1, LF_WINDOW_MAX);
}

LF_INLINE void lf_vegas_as_reno(struct lf_conn *c, const struct lf_vegas_tunables *t, lf_u32 acked)
{
	if (!lf_past_slow_start(c, &acked, t->max_ssthresh_segments))
		return;
	lf_congestion_avoidance(c, acked);
}

LF_INLINE void lf_vegas_on_ack(struct lf_conn *c, struct lf_vegas_state *s, const struct lf_vegas_tunables *t,
			       const struct lf_ack *ack)
{
	lf_u32 over = lf_vegas_round_over(c, s), few = s->samples <= LF_VEGAS_FEW_SAMPLES;

	if (over)
		lf_vegas_forget_round(s);
	if (!lf_is_cwnd_limited(c))
		return;
	if (!s->base_rtt_us || c->ca_state != LF_OPEN || (over && few))
		lf_vegas_as_reno(c, t, ack->acked_segments);
	else if (lf_in_slow_start(c))
		lf_vegas_slow_start(c, s, t, over, lf_max(s->fresh_rtt_us, s->base_rtt_us), ack->acked_segments);
	else if (over)
		lf_vegas_avoid(c, t, s->base_rtt_us, lf_max(s->round_rtt_us, s->base_rtt_us));
}

LF_INLINE lf_u32 lf_vegas_ssthresh(struct lf_conn *c, struct lf_vegas_state *s, const struct lf_vegas_tunables *t)
{
	return lf_max(c->cwnd_segments >> 1, 2);
}

LF_INLINE lf_u32 lf_vegas_undo_cwnd(struct lf_conn *c, struct lf_vegas_state *s, const struct lf_vegas_tunables *t)
{
	return lf_window_before_loss(c);
}

#endif
