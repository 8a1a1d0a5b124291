/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * ImTCP: a connection that measures its path's available bandwidth with its own segments, and otherwise grows as Reno,
 * CUBIC or HighSpeed TCP.
 *
 * Model      Once per round trip eight bursts of segments leave at a chosen rate (include/stream.h); how much their
 *            acknowledgements are stretched tells how far the rate is above the available bandwidth. Two estimators:
 *            slope and Kalman filter (include/kalman.h), and the published search (include/subranges.h). While the path
 *            is full, the first also takes what it lets through (include/full.h), and streams are few.
 * States     those of the growth; a stream is none, leaving, or awaited. A loss, a pause, a timeout end a stream
 *            without result. No stream leaves with a window below 16 segments, in recovery, or when less is
 *            written than a stream takes.
 * Units      segments; rates in kbit/s with IP headers.
 * Reference  Tsugawa 2006; the growth's own.
 */
#ifndef LONGFAT_IMTCP_H
#define LONGFAT_IMTCP_H

#include "../include/avail.h"
#include "cubic.h"
#include "highspeed.h"
#include "reno.h"

enum lf_growth { LF_GROW_RENO = 0, LF_GROW_CUBIC = 1, LF_GROW_HIGHSPEED = 2 };

#define LF_IMTCP_TUNABLES(T) \
	LF_TUNABLE_MAX_SSTHRESH(T) \
	T(growth, 0, 0, 2, "how the window grows: 0 as reno, 1 as cubic, 2 as highspeed") \
	T(estimator, 0, 0, 1, "0: slope and Kalman filter; 1: search in sub-ranges with votes, as published") \
	T(every_round_trips, 1, 1, 1000, "least time from one measurement stream to the next, in round trips")

struct lf_imtcp_tunables {
	LF_IMTCP_TUNABLES(LF_TUNABLE_FIELD)
};

#define LF_IMTCP_OPTIONAL(O) O(imtcp, on_rtt_sample) O(imtcp, on_restart) O(imtcp, on_send) O(imtcp, on_ack_seen)

union lf_growth_state {
	struct lf_cubic_state cubic;
	struct lf_highspeed_state highspeed;
};

struct lf_imtcp_state {
	struct lf_meter meter; /* found first */
	lf_u32 window_at_loss_segments;
	lf_u32 zero;
	union lf_growth_state growth;
};
LF_CHECK_LARGE_STATE(struct lf_imtcp_state);

/* The growth, as the tunables choose it; max_ssthresh is the only tunable of it that is passed on. */
#define LF_CUBIC_BY_DEFAULT(max) { .max_ssthresh_segments = (max), .c_permille = 400, .beta_permille = 700, \
				   .fast_convergence = 1 }

LF_INLINE void lf_growth_init(struct lf_conn *c, union lf_growth_state *s, lf_u32 growth)
{
	struct lf_cubic_tunables cubic = LF_CUBIC_BY_DEFAULT(0);
	struct lf_highspeed_tunables highspeed = { 0 };

	if (growth == LF_GROW_CUBIC)
		lf_cubic_init(c, &s->cubic, &cubic);
	else
		lf_highspeed_init(c, &s->highspeed, &highspeed);
}

LF_INLINE void lf_growth_on_ack(struct lf_conn *c, union lf_growth_state *s, lf_u32 growth, lf_u32 max_ssthresh,
				const struct lf_ack *ack)
{
	struct lf_cubic_tunables cubic = LF_CUBIC_BY_DEFAULT(max_ssthresh);
	struct lf_highspeed_tunables highspeed = { .max_ssthresh_segments = max_ssthresh };
	struct lf_reno_tunables reno = { .max_ssthresh_segments = max_ssthresh };

	if (growth == LF_GROW_CUBIC)
		lf_cubic_on_ack(c, &s->cubic, &cubic, ack);
	else if (growth == LF_GROW_HIGHSPEED)
		lf_highspeed_on_ack(c, &s->highspeed, &highspeed, ack);
	else
		lf_reno_on_ack(c, 0, &reno, ack);
}

LF_INLINE lf_u32 lf_growth_ssthresh(struct lf_conn *c, union lf_growth_state *s, lf_u32 growth)
{
	struct lf_cubic_tunables cubic = LF_CUBIC_BY_DEFAULT(0);
	struct lf_highspeed_tunables highspeed = { 0 };

	if (growth == LF_GROW_CUBIC)
		return lf_cubic_ssthresh(c, &s->cubic, &cubic);
	if (growth == LF_GROW_HIGHSPEED)
		return lf_highspeed_ssthresh(c, &s->highspeed, &highspeed);
	return lf_max(c->cwnd_segments >> 1, 2);
}

LF_INLINE void lf_imtcp_init(struct lf_conn *c, struct lf_imtcp_state *s, const struct lf_imtcp_tunables *t)
{
	lf_meter_init(&s->meter);
	s->window_at_loss_segments = 0;
	lf_growth_init(c, &s->growth, t->growth);
}

LF_INLINE void lf_imtcp_on_ack(struct lf_conn *c, struct lf_imtcp_state *s, const struct lf_imtcp_tunables *t,
			       const struct lf_ack *ack)
{
	lf_u32 limited = c->is_cwnd_limited;

	c->is_cwnd_limited = lf_meter_is_cwnd_limited(c, &s->meter);
	lf_growth_on_ack(c, &s->growth, t->growth, t->max_ssthresh_segments, ack);
	c->is_cwnd_limited = limited;
}

LF_INLINE lf_u32 lf_imtcp_ssthresh(struct lf_conn *c, struct lf_imtcp_state *s, const struct lf_imtcp_tunables *t)
{
	struct lf_conn real = *c;

	real.cwnd_segments = lf_max(lf_stream_window(c, &s->meter.stream), 1);
	s->window_at_loss_segments = real.cwnd_segments;
	return lf_growth_ssthresh(&real, &s->growth, t->growth);
}

LF_INLINE lf_u32 lf_imtcp_undo_cwnd(struct lf_conn *c, struct lf_imtcp_state *s, const struct lf_imtcp_tunables *t)
{
	struct lf_cubic_tunables cubic = LF_CUBIC_BY_DEFAULT(0);
	struct lf_conn real = *c;

	/* The kernel's prior window may be one that was cut to a stream. */
	real.prior_cwnd_segments = lf_min(s->window_at_loss_segments, LF_WINDOW_MAX);
	if (t->growth == LF_GROW_CUBIC)
		return lf_cubic_undo_cwnd(&real, &s->growth.cubic, &cubic);
	return lf_window_before_loss(&real);
}

LF_INLINE void lf_imtcp_on_rtt_sample(struct lf_conn *c, struct lf_imtcp_state *s, const struct lf_imtcp_tunables *t,
				      lf_u32 rtt_us)
{
	lf_full_on_rtt_sample(c, &s->meter.full, rtt_us);
}

LF_INLINE void lf_imtcp_on_restart(struct lf_conn *c, struct lf_imtcp_state *s, const struct lf_imtcp_tunables *t)
{
	struct lf_cubic_tunables cubic = LF_CUBIC_BY_DEFAULT(0);

	/* Nothing was in flight: nobody knows what the queue was meanwhile. */
	lf_full_end(&s->meter.full);
	if (t->growth == LF_GROW_CUBIC)
		lf_cubic_on_restart(c, &s->growth.cubic, &cubic);
}

LF_INLINE lf_u32 lf_imtcp_on_send(struct lf_conn *c, struct lf_imtcp_state *s, const struct lf_imtcp_tunables *t,
				  struct lf_sending *send)
{
	struct lf_measuring how = { .estimator = t->estimator, .every = t->every_round_trips };

	return lf_meter_on_send(c, &s->meter, send, &how);
}

LF_INLINE void lf_imtcp_on_ack_seen(struct lf_conn *c, struct lf_imtcp_state *s, const struct lf_imtcp_tunables *t,
				    const struct lf_sending *send)
{
	if (t->estimator == LF_BY_KALMAN)
		lf_meter_watch_full(c, &s->meter, send);
	lf_meter_on_ack_seen(c, &s->meter, send, t->estimator);
}

#endif
