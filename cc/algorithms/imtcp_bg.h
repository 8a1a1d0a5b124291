/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * ImTCP-bg: a background transfer, which uses what the measured available bandwidth leaves, and goes out of the way as
 * soon as the round-trip time rises.
 *
 * Model      cwnd <= phi A RTTmin, A the smoothed available bandwidth as ImTCP measures it. With phi below 1 several such
 *            flows converge: x_i = phi (C - sum of the others) has one solution, all equal.
 *            RTT / RTTmin > delta: cwnd *= RTTmin / RTT, once per round trip.
 *            RTTmin is the least of the last one to two spans of min_rtt_s: after a change of route it is learnt anew.
 * States     those of imtcp. From the first stream to the fourth result the window stays at 32 segments.
 *            The window is never bounded below 16 segments: a stream of eight pairs fits, or nothing would be measured
 *            and the bound could never rise again.
 * Units      segments, microseconds, kbit/s.
 * Reference  Tsugawa 2006; phi is ours (there it is 1).
 */
#ifndef LONGFAT_IMTCP_BG_H
#define LONGFAT_IMTCP_BG_H

#include "imtcp.h"

#define LF_IMTCP_BG_TUNABLES(T) \
	LF_TUNABLE_MAX_SSTHRESH(T) \
	T(growth, 0, 0, 2, "how the window grows within its bound: 0 as reno, 1 as cubic, 2 as highspeed") \
	T(estimator, 0, 0, 1, "0: slope and Kalman filter; 1: search in sub-ranges with votes, as published") \
	T(every_round_trips, 1, 1, 1000, "least time from one measurement stream to the next, in round trips") \
	T(share_permille, 950, 500, 1000, "phi: part of the available bandwidth to use, in 1/1000") \
	T(rtt_ratio_permille, 1150, 1010, 10000, "delta: RTT / RTTmin above which the window is cut, in 1/1000") \
	T(min_rtt_s, 15, 1, 3600, "span in seconds after which RTTmin is learnt anew")

struct lf_imtcp_bg_tunables {
	LF_IMTCP_BG_TUNABLES(LF_TUNABLE_FIELD)
};

#define LF_IMTCP_BG_OPTIONAL(O) \
	O(imtcp_bg, on_rtt_sample) O(imtcp_bg, on_restart) O(imtcp_bg, on_send) O(imtcp_bg, on_ack_seen)

struct lf_imtcp_bg_state {
	struct lf_imtcp_state imtcp; /* found first */
	lf_u64 span_began_us;        /* of RTTmin */
	lf_u64 cut_us;               /* when the window was last cut for a risen RTT */
	lf_u32 rtt_min_us;           /* of this span; 0: none yet */
	lf_u32 rtt_min_before_us;    /* of the span before; 0: none */
	lf_u32 rtt_us[4];            /* the last samples, newest anywhere */
	lf_u32 samples;              /* so far, modulo 2^32 */
	lf_u32 avail_kbps;           /* smoothed; 0: not yet */
	lf_u32 seen_results;         /* of those smoothed */
	lf_u32 packet_bytes;
};
LF_CHECK_LARGE_STATE(struct lf_imtcp_bg_state);

#define LF_IMTCP_BG_FLOOR (2 * LF_UNITS)
#define LF_IMTCP_BG_FIRST (4 * LF_UNITS)
#define LF_IMTCP_BG_FEW_RESULTS 4

LF_INLINE struct lf_imtcp_tunables lf_imtcp_bg_growth(const struct lf_imtcp_bg_tunables *t)
{
	struct lf_imtcp_tunables same = { .max_ssthresh_segments = t->max_ssthresh_segments, .growth = t->growth,
					  .estimator = t->estimator, .every_round_trips = t->every_round_trips };

	return same;
}

LF_INLINE void lf_imtcp_bg_init(struct lf_conn *c, struct lf_imtcp_bg_state *s, const struct lf_imtcp_bg_tunables *t)
{
	struct lf_imtcp_tunables growth = lf_imtcp_bg_growth(t);

	lf_imtcp_init(c, &s->imtcp, &growth);
	s->span_began_us = c->now_us;
	s->cut_us = 0;
	s->rtt_min_us = 0;
	s->rtt_min_before_us = 0;
	s->samples = 0;
	s->avail_kbps = 0;
	s->seen_results = 0;
	s->packet_bytes = 0;
}

/* RTTmin; 0: not known. */
LF_INLINE lf_u32 lf_imtcp_bg_min_rtt(const struct lf_imtcp_bg_state *s)
{
	if (!s->rtt_min_us || !s->rtt_min_before_us)
		return s->rtt_min_us + s->rtt_min_before_us;
	return lf_min(s->rtt_min_us, s->rtt_min_before_us);
}

/* Least of the last four samples: one that was late alone means nothing. */
LF_INLINE lf_u32 lf_imtcp_bg_rtt(const struct lf_imtcp_bg_state *s)
{
	return lf_min(lf_min(s->rtt_us[0], s->rtt_us[1]), lf_min(s->rtt_us[2], s->rtt_us[3]));
}

LF_INLINE void lf_imtcp_bg_on_rtt_sample(struct lf_conn *c, struct lf_imtcp_bg_state *s,
					 const struct lf_imtcp_bg_tunables *t, lf_u32 rtt_us)
{
	if (c->now_us - s->span_began_us >= t->min_rtt_s * 1000000ull) {
		s->span_began_us = c->now_us;
		s->rtt_min_before_us = s->rtt_min_us;
		s->rtt_min_us = 0;
	}
	if (!s->rtt_min_us || rtt_us < s->rtt_min_us)
		s->rtt_min_us = rtt_us;
	s->rtt_us[s->samples & 3] = rtt_us;
	s->samples++;
}

/* An eighth of every new result. */
LF_INLINE void lf_imtcp_bg_smooth(struct lf_imtcp_bg_state *s)
{
	const struct lf_avail *found = &s->imtcp.meter.found;

	if (found->results == s->seen_results)
		return;
	s->seen_results = found->results;
	if (!s->avail_kbps || found->results <= LF_IMTCP_BG_FEW_RESULTS)
		s->avail_kbps = found->avail_kbps;
	else
		s->avail_kbps = (lf_u32)(((lf_u64)s->avail_kbps * 7 + found->avail_kbps) / 8);
}

/* What the available bandwidth allows. LF_WINDOW_MAX: nothing is known yet, and nothing was tried. */
LF_INLINE lf_u32 lf_imtcp_bg_bound(const struct lf_imtcp_bg_state *s, const struct lf_imtcp_bg_tunables *t)
{
	lf_u64 bits = (lf_u64)s->avail_kbps * lf_imtcp_bg_min_rtt(s) / 1000 * t->share_permille / 1000;
	lf_u64 segments = bits / (8ull * lf_max(s->packet_bytes, 1));

	if (!s->imtcp.meter.stream.began_us)
		return LF_WINDOW_MAX;
	if (s->seen_results < LF_IMTCP_BG_FEW_RESULTS)
		return LF_IMTCP_BG_FIRST;
	return (lf_u32)lf_min64(lf_max64(segments, LF_IMTCP_BG_FLOOR), LF_WINDOW_MAX);
}

/* Somebody waits: less at once, in the measure that the round trip has grown. */
LF_INLINE void lf_imtcp_bg_yield(struct lf_conn *c, struct lf_imtcp_bg_state *s, const struct lf_imtcp_bg_tunables *t)
{
	lf_u64 least = lf_imtcp_bg_min_rtt(s), now = lf_imtcp_bg_rtt(s);
	lf_u64 window;

	if (s->samples < 4 || !now || now * 1000 <= least * t->rtt_ratio_permille)
		return;
	if (c->now_us - s->cut_us < c->srtt_us || c->cwnd_segments <= LF_IMTCP_BG_FLOOR)
		return;
	s->cut_us = c->now_us;
	window = c->cwnd_segments * least / now;
	c->cwnd_segments = lf_max((lf_u32)window, LF_IMTCP_BG_FLOOR);
	/* What was too much is not to be found again by doubling. */
	c->ssthresh_segments = lf_min(c->ssthresh_segments, c->cwnd_segments);
}

LF_INLINE void lf_imtcp_bg_on_ack(struct lf_conn *c, struct lf_imtcp_bg_state *s, const struct lf_imtcp_bg_tunables *t,
				  const struct lf_ack *ack)
{
	struct lf_imtcp_tunables growth = lf_imtcp_bg_growth(t);
	lf_u32 bound;

	lf_imtcp_bg_smooth(s);
	lf_imtcp_on_ack(c, &s->imtcp, &growth, ack);
	bound = lf_imtcp_bg_bound(s, t);
	if (bound == LF_WINDOW_MAX)
		return;
	c->cwnd_segments = lf_min(c->cwnd_segments, bound);
	lf_imtcp_bg_yield(c, s, t);
}

LF_INLINE lf_u32 lf_imtcp_bg_ssthresh(struct lf_conn *c, struct lf_imtcp_bg_state *s,
				      const struct lf_imtcp_bg_tunables *t)
{
	struct lf_imtcp_tunables growth = lf_imtcp_bg_growth(t);

	return lf_imtcp_ssthresh(c, &s->imtcp, &growth);
}

LF_INLINE lf_u32 lf_imtcp_bg_undo_cwnd(struct lf_conn *c, struct lf_imtcp_bg_state *s,
				       const struct lf_imtcp_bg_tunables *t)
{
	struct lf_imtcp_tunables growth = lf_imtcp_bg_growth(t);

	return lf_imtcp_undo_cwnd(c, &s->imtcp, &growth);
}

LF_INLINE void lf_imtcp_bg_on_restart(struct lf_conn *c, struct lf_imtcp_bg_state *s,
				      const struct lf_imtcp_bg_tunables *t)
{
	struct lf_imtcp_tunables growth = lf_imtcp_bg_growth(t);

	lf_imtcp_on_restart(c, &s->imtcp, &growth);
}

LF_INLINE lf_u32 lf_imtcp_bg_on_send(struct lf_conn *c, struct lf_imtcp_bg_state *s,
				     const struct lf_imtcp_bg_tunables *t, struct lf_sending *send)
{
	struct lf_measuring how = { .estimator = t->estimator, .every = t->every_round_trips, .is_gentle = 1 };

	s->packet_bytes = send->packet_bytes;
	return lf_meter_on_send(c, &s->imtcp.meter, send, &how);
}

LF_INLINE void lf_imtcp_bg_on_ack_seen(struct lf_conn *c, struct lf_imtcp_bg_state *s,
				       const struct lf_imtcp_bg_tunables *t, const struct lf_sending *send)
{
	lf_meter_on_ack_seen(c, &s->imtcp.meter, send, t->estimator);
}

#endif
