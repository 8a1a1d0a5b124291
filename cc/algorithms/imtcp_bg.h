/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * ImTCP-bg: a background transfer, which uses what the measured available bandwidth leaves, and goes out of the way as
 * soon as the round-trip time rises.
 *
 * Model      cwnd <= A RTTmin (1 - (1 - phi) x / C): A the smoothed available bandwidth and C the capacity as ImTCP
 *            measures them, x the own share. Who has more leaves more free, so several such flows converge although
 *            what they measure differs: with one phi for all the shares would be (phi / (1 - phi)) times what is left
 *            free and each one's error of measurement; so they follow its square root.
 *            What is carried without a queue is free, whatever A was found to be: a window that was used up for a round
 *            trip without too much may stay, and grow while there is less than half of that. Without this an A found
 *            too low was never left: who keeps below it never sees that there is more. What was carried before a pause
 *            is forgotten. Too much is a mean RTT of a round trip beyond delta RTTmin (and 1 ms, and three packets of
 *            the path, more than it): cwnd *= psi RTTmin / RTT. Samples of acknowledgements for one segment, which
 *            receivers delay, count where there are no others. From half of that rise on, cwnd is cut by a part of
 *            1 - psi that grows evenly to all of it. All that share the path do so together, and grow by a segment
 *            each: equal shares (Chiu, Jain 1989), at a queue that hardly swings. One cut of all at too much let
 *            several grow far beyond it before any had seen it. RTTmin is the least of the last one to two spans of
 *            min_rtt_s: after a change of route it is learnt anew.
 * States     those of imtcp. From the first stream to the fourth result the window stays at 32 segments.
 *            The bound is never below 16 segments: a stream of eight pairs fits. A risen round-trip time takes the
 *            window below that, to 2, and where 16 segments are a queue keeps it there. A stream then leaves on top of
 *            the window, so seldom that all are a hundredth of what the window sends: others hardly notice, and what is
 *            found stays true.
 * Units      segments, microseconds, kbit/s.
 * Reference  Tsugawa 2006, where phi and psi are 1, delta is 1.3 and the latest sample decides.
 */
#ifndef LONGFAT_IMTCP_BG_H
#define LONGFAT_IMTCP_BG_H

#include "imtcp.h"

#define LF_IMTCP_BG_TUNABLES(T) \
	LF_TUNABLE_MAX_SSTHRESH(T) \
	T(growth, 0, 0, 2, "how the window grows within its bound: 0 as reno, 1 as cubic, 2 as highspeed") \
	T(estimator, 0, 0, 1, "0: slope and Kalman filter; 1: search in sub-ranges with votes, as published") \
	T(every_round_trips, 1, 1, 1000, "least time from one measurement stream to the next, in round trips") \
	T(share_permille, 900, 500, 1000, "phi: part of what is found available that who has it all uses at once, in 1/1000") \
	T(rtt_ratio_permille, 1030, 1010, 1000000, "delta: RTT / RTTmin that is too much, in 1/1000") \
	T(yield_permille, 850, 500, 1000, "psi: part of a window without a queue that a cut leaves, in 1/1000") \
	T(min_rtt_s, 15, 1, 3600, "span in seconds after which RTTmin is learnt anew")

struct lf_imtcp_bg_tunables {
	LF_IMTCP_BG_TUNABLES(LF_TUNABLE_FIELD)
};

#define LF_IMTCP_BG_OPTIONAL(O) \
	O(imtcp_bg, on_rtt_sample) O(imtcp_bg, on_restart) O(imtcp_bg, on_send) O(imtcp_bg, on_ack_seen)

struct lf_imtcp_bg_state {
	struct lf_imtcp_state imtcp; /* found first */
	lf_u64 span_began_us;        /* of RTTmin */
	lf_u64 round_began_us;       /* of the round trip whose samples are summed */
	lf_u64 round_rtt_us;         /* sum of its samples, by acknowledgements of several segments */
	lf_u64 lone_rtt_us;          /* sum of those by acknowledgements of one */
	lf_u32 rtt_min_us;           /* of this span; 0: none yet */
	lf_u32 rtt_min_before_us;    /* of the span before; 0: none */
	lf_u32 round_samples;        /* so far, by acknowledgements of several segments */
	lf_u32 lone_samples;         /* and of one */
	lf_u32 avail_kbps;           /* smoothed; 0: not yet */
	lf_u32 seen_results;         /* of those smoothed */
	lf_u32 packet_bytes;
	lf_u32 uncut_ppm;            /* part of a segment that cuts have left over, in millionths */
	lf_u32 carried_segments;     /* what the last round trip allows, whatever A is; 0: nothing */
	lf_u32 sample_us;            /* of the acknowledgement that is being processed; 0: none */
};
LF_CHECK_LARGE_STATE(struct lf_imtcp_bg_state);

#define LF_IMTCP_BG_FLOOR LF_STREAM_LEAST
#define LF_IMTCP_BG_LEAST 2
/* What hosts add by themselves: on short paths more than queues do. */
#define LF_IMTCP_BG_SLACK_US 1000
/* Segments leave by twos and more: on a slow link the last of them waits for the others. */
#define LF_IMTCP_BG_SLACK_PACKETS 3
/* How long a receiver delays the acknowledgement of a lone segment (Linux's TCP_DELACK_MIN). */
#define LF_IMTCP_BG_ACK_DELAY_US 40000
/* A receiver that acknowledges every segment gives more samples than this in a round trip. */
#define LF_IMTCP_BG_FEW_SAMPLES 8
/* The kernel's least retransmission timeout: a window is used anew after as long (RFC 5681, 4.1). */
#define LF_IMTCP_BG_PAUSE_US 200000
#define LF_IMTCP_BG_FIRST (4 * LF_UNITS)

LF_INLINE struct lf_imtcp_tunables lf_imtcp_bg_growth(const struct lf_imtcp_bg_tunables *t)
{
	struct lf_imtcp_tunables same = { .max_ssthresh_segments = t->max_ssthresh_segments, .growth = t->growth,
					  .estimator = t->estimator, .every_round_trips = t->every_round_trips };

	return same;
}

LF_INLINE void lf_imtcp_bg_begin_round(const struct lf_conn *c, struct lf_imtcp_bg_state *s)
{
	s->round_began_us = c->now_us;
	s->round_rtt_us = 0;
	s->round_samples = 0;
	s->lone_rtt_us = 0;
	s->lone_samples = 0;
	s->sample_us = 0;
}

LF_INLINE void lf_imtcp_bg_init(struct lf_conn *c, struct lf_imtcp_bg_state *s, const struct lf_imtcp_bg_tunables *t)
{
	struct lf_imtcp_tunables growth = lf_imtcp_bg_growth(t);

	lf_imtcp_init(c, &s->imtcp, &growth);
	s->span_began_us = c->now_us;
	lf_imtcp_bg_begin_round(c, s);
	s->rtt_min_us = 0;
	s->rtt_min_before_us = 0;
	s->avail_kbps = 0;
	s->seen_results = 0;
	s->packet_bytes = 0;
	s->uncut_ppm = 0;
	s->carried_segments = 0;
}

/* RTTmin; 0: not known. */
LF_INLINE lf_u32 lf_imtcp_bg_min_rtt(const struct lf_imtcp_bg_state *s)
{
	if (!s->rtt_min_us || !s->rtt_min_before_us)
		return s->rtt_min_us + s->rtt_min_before_us;
	return lf_min(s->rtt_min_us, s->rtt_min_before_us);
}

LF_INLINE void lf_imtcp_bg_on_rtt_sample(struct lf_conn *c, struct lf_imtcp_bg_state *s,
					 const struct lf_imtcp_bg_tunables *t, lf_u32 rtt_us)
{
	lf_u64 span_us = t->min_rtt_s * 1000000ull, passed_us = c->now_us - s->span_began_us;

	if (passed_us >= span_us) {
		s->span_began_us = c->now_us;
		s->rtt_min_before_us = passed_us < 2 * span_us ? s->rtt_min_us : 0;
		s->rtt_min_us = 0;
	}
	if (!s->rtt_min_us || rtt_us < s->rtt_min_us)
		s->rtt_min_us = rtt_us;
	s->sample_us = rtt_us;
}

/* Counts the sample of an acknowledgement. */
LF_INLINE void lf_imtcp_bg_count_sample(struct lf_imtcp_bg_state *s, lf_u32 acked_segments)
{
	if (!s->sample_us)
		return;
	if (acked_segments > 1) {
		s->round_rtt_us += s->sample_us;
		s->round_samples++;
	} else {
		s->lone_rtt_us += s->sample_us;
		s->lone_samples++;
	}
	s->sample_us = 0;
}

/*
 * Mean of the round trip's samples; 0: there are none. A receiver delays the acknowledgement of a lone segment, in a
 * small window by more than any queue: such samples count only where there are no others, and where they are few, less
 * the delay.
 */
LF_INLINE lf_u64 lf_imtcp_bg_mean_rtt(const struct lf_imtcp_bg_state *s)
{
	lf_u64 lone_us = s->lone_rtt_us / lf_max(s->lone_samples, 1), least_us = lf_imtcp_bg_min_rtt(s);

	if (s->round_samples)
		return s->round_rtt_us / s->round_samples;
	if (!lone_us || s->lone_samples >= LF_IMTCP_BG_FEW_SAMPLES)
		return lone_us;
	return lf_max64(least_us, lone_us - lf_min64(lone_us, LF_IMTCP_BG_ACK_DELAY_US));
}

/* An eighth of every new result. */
LF_INLINE void lf_imtcp_bg_smooth(struct lf_imtcp_bg_state *s)
{
	const struct lf_avail *found = &s->imtcp.meter.found;

	if (found->results == s->seen_results)
		return;
	s->seen_results = found->results;
	if (!s->avail_kbps || found->results <= LF_METER_FEW_RESULTS)
		s->avail_kbps = found->avail_kbps;
	else
		s->avail_kbps = (lf_u32)(((lf_u64)s->avail_kbps * 7 + found->avail_kbps) / 8);
}

/* Segments in flight at a rate over the least round trip. */
LF_INLINE lf_u64 lf_imtcp_bg_segments(const struct lf_imtcp_bg_state *s, lf_u32 kbps)
{
	lf_u64 segments = (lf_u64)kbps * lf_imtcp_bg_min_rtt(s) / 8000 / lf_max(s->packet_bytes, 1);

	return lf_min64(segments, LF_WINDOW_MAX);
}

/*
 * What the available bandwidth allows, or what was carried. LF_WINDOW_MAX: nothing is known yet, and nothing was tried.
 * Who has the greater share of the path leaves the greater part of it free.
 */
LF_INLINE lf_u32 lf_imtcp_bg_bound(const struct lf_conn *c, const struct lf_imtcp_bg_state *s,
				   const struct lf_imtcp_bg_tunables *t)
{
	lf_u64 whole, own, segments;

	if (!s->imtcp.meter.stream.began_us)
		return LF_WINDOW_MAX;
	if (s->seen_results < LF_METER_FEW_RESULTS)
		return LF_IMTCP_BG_FIRST;
	whole = lf_max64(lf_imtcp_bg_segments(s, s->imtcp.meter.found.capacity_kbps), 1);
	own = lf_min64(c->cwnd_segments, whole);
	segments = lf_imtcp_bg_segments(s, s->avail_kbps);
	segments -= segments * (1000 - t->share_permille) / 1000 * own / whole;
	return (lf_u32)lf_max64(lf_max64(segments, s->carried_segments), LF_IMTCP_BG_FLOOR);
}

/* How long the path's slowest link is at a few packets; 0: not known yet. */
LF_INLINE lf_u64 lf_imtcp_bg_packets_us(const struct lf_imtcp_bg_state *s)
{
	const struct lf_avail *found = &s->imtcp.meter.found;

	if (found->results < LF_METER_FEW_RESULTS)
		return 0;
	return LF_IMTCP_BG_SLACK_PACKETS * 8000ull * s->packet_bytes / lf_max(found->capacity_kbps, 1);
}

/* Part of the window that a round trip with this mean takes away, in millionths. */
LF_INLINE lf_u32 lf_imtcp_bg_cut_ppm(const struct lf_imtcp_bg_state *s, const struct lf_imtcp_bg_tunables *t,
				     lf_u64 mean_us)
{
	lf_u64 least_us = lf_imtcp_bg_min_rtt(s), packets_us = lf_imtcp_bg_packets_us(s);
	lf_u64 most_us = lf_max64(least_us * (t->rtt_ratio_permille - 1000) / 1000,
				  lf_max64(packets_us, LF_IMTCP_BG_SLACK_US));
	lf_u64 rise_us = mean_us > least_us ? mean_us - least_us : 0;

	if (rise_us > most_us)
		return (lf_u32)(1000000 - t->yield_permille * 1000 * least_us / mean_us);
	if (rise_us * 2 <= most_us)
		return 0;
	return (lf_u32)((1000 - t->yield_permille) * 1000 * (rise_us * 2 - most_us) / most_us);
}

/* What the round trip that ends has carried; a cut beyond 1 - psi says that it was too much. */
LF_INLINE void lf_imtcp_bg_note_carried(const struct lf_conn *c, struct lf_imtcp_bg_state *s,
					const struct lf_imtcp_bg_tunables *t, lf_u32 cut_ppm)
{
	lf_u32 is_too_much = cut_ppm > (1000 - t->yield_permille) * 1000;

	if (is_too_much || !lf_meter_is_cwnd_limited(c, &s->imtcp.meter))
		s->carried_segments = 0;
	else
		s->carried_segments = c->cwnd_segments + !cut_ppm;
}

/*
 * Once per round trip, by its mean: one's own streams and others' bursts raise single samples, and the least would not
 * tell a queue that comes and goes.
 */
LF_INLINE void lf_imtcp_bg_yield(struct lf_conn *c, struct lf_imtcp_bg_state *s, const struct lf_imtcp_bg_tunables *t)
{
	lf_u64 mean_us, cut_ppm;
	lf_u32 ppm, cut_segments;
	lf_u32 is_sparing = s->seen_results >= LF_METER_FEW_RESULTS || c->cwnd_segments < LF_STREAM_LEAST;

	/*
	 * A stream is a queue of one's own, which is not held against the window: where streams are few, rounds are between
	 * them.
	 */
	if (s->imtcp.meter.stream.phase != LF_STREAM_NONE && is_sparing)
		lf_imtcp_bg_begin_round(c, s);
	if (c->now_us - s->round_began_us < c->srtt_us)
		return;
	mean_us = lf_imtcp_bg_mean_rtt(s);
	if (!mean_us)
		return;
	lf_imtcp_bg_begin_round(c, s);
	ppm = lf_imtcp_bg_cut_ppm(s, t, mean_us);
	lf_imtcp_bg_note_carried(c, s, t, ppm);
	if (!ppm)
		return;
	cut_ppm = (lf_u64)c->cwnd_segments * ppm + s->uncut_ppm;
	s->uncut_ppm = (lf_u32)(cut_ppm % 1000000);
	cut_segments = (lf_u32)lf_min64(cut_ppm / 1000000, c->cwnd_segments);
	c->cwnd_segments = lf_min(c->cwnd_segments, lf_max(c->cwnd_segments - cut_segments, LF_IMTCP_BG_LEAST));
	/* What was too much is not to be found again by doubling. */
	c->ssthresh_segments = lf_min(c->ssthresh_segments, c->cwnd_segments);
}

LF_INLINE void lf_imtcp_bg_on_ack(struct lf_conn *c, struct lf_imtcp_bg_state *s, const struct lf_imtcp_bg_tunables *t,
				  const struct lf_ack *ack)
{
	struct lf_imtcp_tunables growth = lf_imtcp_bg_growth(t);
	lf_u32 bound;

	lf_imtcp_bg_smooth(s);
	lf_imtcp_bg_count_sample(s, ack->acked_segments);
	lf_imtcp_on_ack(c, &s->imtcp, &growth, ack);
	bound = lf_imtcp_bg_bound(c, s, t);
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
	/* On short paths the path may be empty after every acknowledgement: that is no pause. */
	if (c->now_us - s->round_began_us <= lf_max(LF_IMTCP_BG_PAUSE_US, 2 * c->srtt_us))
		return;
	lf_imtcp_bg_begin_round(c, s);
	s->carried_segments = 0;
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
