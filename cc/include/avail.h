/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Measuring with a connection's own segments: when a stream leaves, what becomes of it, and what is found. Two
 * estimators behind one interface (rates of the next stream; a stream that is over): kalman.h and subranges.h.
 */
#ifndef LONGFAT_AVAIL_H
#define LONGFAT_AVAIL_H

#include "full.h"
#include "kalman.h"
#include "subranges.h"

enum lf_estimator { LF_BY_KALMAN = 0, LF_BY_SUBRANGES = 1 };

/* How an algorithm measures: its tunables. */
struct lf_measuring {
	lf_u32 estimator; /* enum lf_estimator */
	lf_u32 every;     /* round trips from one stream to the next */
	lf_u32 is_gentle; /* 1: streams are fewer and exceed the available bandwidth by less; they leave also where no window holds one */
};

/*
 * Where the window holds no stream, one in so many times of its own length: a hundredth of what the window sends, and
 * of the time, so that 99 of 100 packets of others hardly meet one.
 */
#define LF_METER_SELDOM 100
/*
 * Where it holds one, gentle streams are one part in so many of what is sent, once there are a few results; and leave
 * round trips without a stream between them, which tell others' queue from their own.
 */
#define LF_METER_SPARING 32
#define LF_METER_SPARING_ROUND_TRIPS 4
#define LF_METER_FEW_RESULTS 4
/* Least round trips between streams while what a full path lets through tells more: their ends overfill its queue. */
#define LF_METER_FULL_ROUND_TRIPS 32

/* A measuring algorithm's state begins with this. */
struct lf_meter {
	struct lf_avail found; /* read by others: first */
	struct lf_stream stream;
	struct lf_full full;   /* only of algorithms that fill their path */
	lf_u64 filled_us;      /* when the real window was last used up */
	lf_u32 kept_q16;       /* part of the streams that gave a result, smoothed */
	lf_u32 spread_q16;     /* of single streams, or round trips of a full path, as a part of the capacity; 0: not known */
	union {
		struct lf_kalman kalman;
		struct lf_subranges subranges;
	} by;
};

LF_INLINE void lf_meter_init(struct lf_meter *m)
{
	m->found.at_us = 0;
	m->found.avail_kbps = 0;
	m->found.deviation_kbps = 0;
	m->found.capacity_kbps = 0;
	m->found.confidence_permille = 0;
	m->found.results = 0;
	m->found.rejected = 0;
	m->stream.phase = LF_STREAM_NONE;
	m->stream.began_us = 0;
	m->stream.set_segments = 0;
	lf_full_init(&m->full);
	m->filled_us = 0;
	m->kept_q16 = 0;
	m->spread_q16 = 0;
	/* Either estimator: nothing known. */
	m->by.kalman.a_kbps = 0;
	m->by.kalman.round = 0;
	m->by.subranges.high_kbps = 0;
	m->by.subranges.smoothed_kbps = 0;
	m->by.subranges.next = 0;
}

/*
 * Confidence: none unless streams pass, and a deviation of a quarter of A is none either; of an eighth of the capacity
 * instead, where A is less. Streams that spread by more than an eighth of the
 * capacity met bursts longer than themselves: what is free then is no one figure, and their mean takes seconds to tell.
 */
LF_INLINE void lf_meter_trust(struct lf_meter *m)
{
	lf_u64 of = lf_max64(lf_max64(m->found.avail_kbps, m->found.capacity_kbps / 8), 1);
	lf_u64 spread = lf_min(m->spread_q16, 65536);
	lf_u64 bursts = spread > 65536 / 8 ? (spread - 65536 / 8) * 2000 >> 16 : 0;
	lf_u64 doubt = lf_min64((lf_u64)m->found.deviation_kbps * 4000 / of + bursts, 1000);

	m->found.confidence_permille = (lf_u32)(((1000 - doubt) * lf_min(m->kept_q16, 65536)) >> 16);
}

LF_INLINE void lf_meter_publish(const struct lf_conn *c, struct lf_meter *m, lf_u32 estimator)
{
	m->found.at_us = c->now_us;
	if (estimator == LF_BY_SUBRANGES) {
		m->found.avail_kbps = m->by.subranges.smoothed_kbps;
		m->found.deviation_kbps = m->by.subranges.results > 1 ? lf_subranges_deviation(&m->by.subranges) :
									m->by.subranges.smoothed_kbps / 2;
		m->found.capacity_kbps = 0;
	} else {
		m->found.avail_kbps = m->by.kalman.a_kbps;
		m->found.capacity_kbps = m->by.kalman.c_kbps;
		m->found.deviation_kbps = lf_max(lf_kalman_deviation(&m->by.kalman),
						 lf_full_deviation(&m->full, m->by.kalman.c_kbps));
		m->spread_q16 = lf_max(lf_kalman_spread_q16(&m->by.kalman), m->full.spread_q16);
	}
}

/* A stream ended; `good`: with a result. */
LF_INLINE void lf_meter_count(struct lf_meter *m, lf_u32 good)
{
	lf_u32 kept = lf_min(m->kept_q16, 65536);

	m->stream.phase = LF_STREAM_NONE;
	if (good)
		m->found.results++;
	else
		m->found.rejected++;
	m->kept_q16 = kept - kept / 16 + (good ? 4096 : 0);
	lf_meter_trust(m);
}

LF_INLINE void lf_meter_abandon(struct lf_conn *c, struct lf_meter *m)
{
	lf_stream_release(c, &m->stream);
	if (m->stream.phase != LF_STREAM_NONE)
		lf_meter_count(m, 0);
}

/*
 * What a stream says of a full path. That it passes unstretched, and those before it have arrived faster than they
 * should, says that it is none; where one was stretched, the capacity may be underestimated.
 */
LF_INLINE void lf_meter_tell_full(const struct lf_conn *c, struct lf_meter *m, const struct lf_pass *pass, lf_u32 step)
{
	lf_u32 is_unstretched = pass->arrived_kbps >= pass->sent_kbps - pass->sent_kbps / 16;

	lf_full_fade_spread(&m->full);
	if (m->full.is_full && step == LF_STEP_UP && is_unstretched)
		lf_full_deny(c, &m->full);
}

LF_INLINE void lf_meter_take(const struct lf_conn *c, struct lf_meter *m, const struct lf_sending *send,
			     lf_u32 estimator)
{
	struct lf_pass pass = { 0, 0 };
	lf_u32 good = lf_stream_pass(c, &m->stream, send, &pass);

	if (good && estimator == LF_BY_SUBRANGES) {
		if (lf_subranges_take(c, &m->by.subranges, &m->stream, send, &pass))
			lf_meter_publish(c, m, estimator);
	} else if (good) {
		lf_meter_tell_full(c, m, &pass, lf_kalman_take(&m->by.kalman, &pass));
		lf_meter_publish(c, m, estimator);
	}
	lf_meter_count(m, good);
}

/* A train: sixteen times as fast as the window lets the connection be, and so that gaps can still be told. */
LF_INLINE lf_u32 lf_meter_train_kbps(const struct lf_conn *c, const struct lf_sending *send)
{
	lf_u64 bits = (lf_u64)c->cwnd_segments * lf_min(send->packet_bytes, 65535) * 8;

	return (lf_u32)lf_min64(bits * 16000 / lf_max(c->srtt_us, 1), 0xffffffff);
}

/*
 * Time from one stream to the next: `every` round trips and a part of one more that differs each time, in no pattern.
 * Others send in bursts once per round trip, too; a stream that always met the same part of them would see that part
 * alone.
 */
LF_INLINE lf_u64 lf_meter_pause_us(const struct lf_conn *c, const struct lf_meter *m, lf_u32 every)
{
	/* Multiplicative hashing (Knuth): the top eight bits of the number of the stream times 2^32 / phi. */
	lf_u32 part = (m->found.results + m->found.rejected) * 2654435769u >> 24;

	return (lf_u64)c->srtt_us * every + (((lf_u64)c->srtt_us * part) >> 8);
}

/* The same, so that streams of these units are one part in `parts` of what the window sends. */
LF_INLINE lf_u64 lf_meter_long_pause_us(const struct lf_conn *c, lf_u32 unit_segments, lf_u32 parts)
{
	return (lf_u64)c->srtt_us * unit_segments * LF_UNITS * parts / lf_max(c->cwnd_segments, 1);
}

/* In calm, with enough written to send it whole. */
LF_INLINE lf_u32 lf_meter_may_begin(const struct lf_conn *c, const struct lf_meter *m, const struct lf_sending *send,
				    lf_u32 unit_segments, lf_u64 pause_us)
{
	lf_u64 stream_bytes = (lf_u64)unit_segments * LF_UNITS * c->mss_bytes;

	if (!unit_segments || !c->srtt_us || c->ca_state != LF_OPEN || send->repair_segments)
		return 0;
	if (send->unsent_bytes < stream_bytes || c->flight_segments >= c->cwnd_segments)
		return 0;
	return !m->stream.began_us || c->now_us - m->stream.began_us >= pause_us;
}

LF_INLINE void lf_meter_begin(struct lf_conn *c, struct lf_meter *m, const struct lf_sending *send,
			      const struct lf_measuring *how, lf_u32 unit_segments)
{
	lf_u32 train_kbps = lf_meter_train_kbps(c, send);

	if (how->estimator == LF_BY_SUBRANGES) {
		lf_subranges_next(&m->by.subranges, train_kbps, &m->stream);
	} else {
		m->stream.from_kbps = lf_kalman_next(&m->by.kalman, train_kbps, how->is_gentle);
		m->stream.to_kbps = m->stream.from_kbps;
	}
	unit_segments = lf_stream_unit_at(c, send, lf_max(m->stream.from_kbps, m->stream.to_kbps), unit_segments);
	lf_stream_begin(c, &m->stream, send, unit_segments);
}

/* Begins a stream if it is time for one: what the window holds, or seldom the least there is. */
LF_INLINE void lf_meter_try(struct lf_conn *c, struct lf_meter *m, const struct lf_sending *send,
			    const struct lf_measuring *how)
{
	lf_u32 unit_segments = lf_stream_unit(c, send);
	/* A full path, once streams have told the capacity. */
	lf_u32 tells = m->full.is_full && m->found.results >= LF_METER_FEW_RESULTS;
	lf_u32 every = tells ? lf_max(how->every, LF_METER_FULL_ROUND_TRIPS) : how->every;
	lf_u64 pause_us = lf_meter_pause_us(c, m, every);

	if (unit_segments && how->is_gentle && m->found.results >= LF_METER_FEW_RESULTS) {
		pause_us = lf_meter_pause_us(c, m, lf_max(how->every, LF_METER_SPARING_ROUND_TRIPS));
		pause_us = lf_max64(pause_us,
				    lf_meter_long_pause_us(c, lf_min(m->stream.unit_segments, 64), LF_METER_SPARING));
	}
	if (!unit_segments && how->is_gentle && m->stream.began_us) {
		/* It leaves on top of the window, and takes as long as the window would for its segments, or less. */
		unit_segments = LF_STREAM_LEAST / LF_UNITS;
		pause_us = lf_max64(pause_us, lf_meter_long_pause_us(c, unit_segments, LF_METER_SELDOM));
	}
	if (lf_meter_may_begin(c, m, send, unit_segments, pause_us))
		lf_meter_begin(c, m, send, how, unit_segments);
}

/*
 * Whether the window held the sender back in the last two round trips. While streams leave, the kernel always finds
 * the window used up, because it is cut to the stream; so once there have been some, that says nothing.
 */
LF_INLINE lf_u32 lf_meter_is_cwnd_limited(const struct lf_conn *c, const struct lf_meter *m)
{
	if (!m->stream.began_us)
		return c->is_cwnd_limited;
	return c->now_us - m->filled_us <= 2ull * c->srtt_us;
}

/*
 * Rate of the gap after the next unit: never so slow that the stream would take longer than a stream may. The kernel
 * keeps a gap whatever happens meanwhile: at the rate of a search that has come down to nothing, nothing would be sent
 * for a minute.
 */
LF_INLINE lf_u32 lf_meter_rate(const struct lf_meter *m, const struct lf_sending *send)
{
	lf_u64 bits = (lf_u64)lf_min(m->stream.unit_segments, 1024) * lf_min(send->packet_bytes, 65535) * 8;
	lf_u64 least = bits * 1000 / (LF_STREAM_MOST / (LF_UNITS - 1));

	return (lf_u32)lf_min64(lf_max64(lf_stream_rate(&m->stream), least), 0xffffffff);
}

/* Before new segments: begins or goes on with a stream. Returns the least burst. */
LF_INLINE lf_u32 lf_meter_on_send(struct lf_conn *c, struct lf_meter *m, struct lf_sending *send,
				  const struct lf_measuring *how)
{
	struct lf_stream *s = &m->stream;

	if (s->phase == LF_STREAM_LEAVING) {
		lf_stream_note_sent(s, send);
		if (s->phase == LF_STREAM_AWAITED)
			send->pacing_bytes_per_s = s->pacing_bytes_per_s;
	}
	if (s->phase != LF_STREAM_NONE && lf_stream_is_spoilt(c, s, send))
		lf_meter_abandon(c, m);
	lf_stream_release(c, s);
	if ((lf_u64)c->flight_segments + lf_max(send->burst_segments, 2) >= c->cwnd_segments)
		m->filled_us = c->now_us;
	if (s->phase == LF_STREAM_NONE)
		lf_meter_try(c, m, send, how);
	if (s->phase != LF_STREAM_LEAVING)
		return 2;
	s->tried_us = c->now_us;
	send->pacing_bytes_per_s = lf_payload_rate(c, send, lf_meter_rate(m, send));
	lf_stream_borrow(c, s);
	return lf_max(s->unit_segments, 1);
}

/* An acknowledgement, for algorithms that fill their path: before lf_meter_on_ack_seen. */
LF_INLINE void lf_meter_watch_full(const struct lf_conn *c, struct lf_meter *m, const struct lf_sending *send)
{
	lf_u32 kbps;

	if (c->now_us - m->filled_us > 2ull * c->srtt_us)
		lf_full_end(&m->full);
	kbps = lf_full_on_ack_seen(c, &m->full, send);
	if (!kbps || !m->by.kalman.a_kbps)
		return;
	lf_full_note_spread(&m->full, kbps, m->by.kalman.a_kbps, m->by.kalman.c_kbps);
	if (!lf_kalman_take_rate(&m->by.kalman, kbps))
		return;
	lf_meter_publish(c, m, LF_BY_KALMAN);
	lf_meter_trust(m);
}

/* An acknowledgement: the window becomes the real one, and times are noted. */
LF_INLINE void lf_meter_on_ack_seen(struct lf_conn *c, struct lf_meter *m, const struct lf_sending *send,
				    lf_u32 estimator)
{
	struct lf_stream *s = &m->stream;

	lf_stream_release(c, s);
	if (s->phase == LF_STREAM_NONE)
		return;
	lf_stream_note_sent(s, send);
	lf_stream_note_acked(s, send->una_seq, c->now_us);
	if (lf_stream_is_spoilt(c, s, send))
		lf_meter_abandon(c, m);
	else if (lf_stream_is_over(s, send))
		lf_meter_take(c, m, send, estimator);
}

#endif
