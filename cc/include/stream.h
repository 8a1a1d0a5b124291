/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * A measurement stream: eight bursts of a connection's own segments, sent at a chosen rate by the sender's pacing, and
 * the times at which their acknowledgements come back.
 *
 * Model      Units leave as bursts, because that is what TCP sends undisturbed at this rate: smaller ones it holds
 *            back. The gap after a unit is its length over the rate, so units may differ in length. A unit's time of
 *            arrival is that of the first acknowledgement in its second half, else of one in its first: delayed,
 *            merged or shifted by a segment, acknowledgements still pair a position in the stream with a time; and
 *            the last one, which may have waited for a segment that did not come, is seldom asked.
 *            Rates in and out are slopes of position over time (least squares), in and out of the path.
 * Borrowing  While a stream leaves, the window is "what is in flight and one unit", whatever the real window: the
 *            stream is not cut, and what it sends beyond the real window is not sent after it.
 * Units      microseconds and bytes since the stream began; rates in kbit/s with headers.
 * Reference  Tsugawa 2006, with bursts in place of single packets.
 */
#ifndef LONGFAT_STREAM_H
#define LONGFAT_STREAM_H

#include "fixed.h"
#include "window.h"

#define LF_UNITS 8
/* TCP sends at once what leaves in about a millisecond (sk_pacing_shift). */
#define LF_BURST_SHIFT 10
/* Segments of the least one: eight pairs. */
#define LF_STREAM_LEAST (2 * LF_UNITS)
/*
 * Bytes of a stream, and microseconds until all of it has left: one that takes longer tells of a path that was. Both
 * bound the sums below: 8 * 8 * 2^20 * 2^20 = 2^46.
 */
#define LF_STREAM_MOST (1u << 20)

enum lf_stream_phase { LF_STREAM_NONE = 0, LF_STREAM_LEAVING = 1, LF_STREAM_AWAITED = 2 };

struct lf_unit {
	lf_u32 end_bytes;   /* its last byte; it begins where the one before ends */
	lf_u32 sent_us;
	lf_u32 acked_bytes; /* an acknowledgement within it; 0: none */
	lf_u32 acked_us;
};

struct lf_stream {
	lf_u64 began_us;
	lf_u64 tried_us;           /* when the unit that leaves next was last tried */
	lf_u64 pacing_bytes_per_s; /* the connection's own, to go back to */
	lf_u32 phase;              /* enum lf_stream_phase */
	lf_u32 first_seq;
	lf_u32 sent_bytes;         /* of it */
	lf_u32 units;              /* sent, 0 .. LF_UNITS */
	lf_u32 unit_segments;
	lf_u32 from_kbps;          /* rate of the first gap; the rates between are on a line */
	lf_u32 to_kbps;            /* rate of the last */
	lf_u32 own_segments;       /* the real window, while it is not the one in force */
	lf_u32 set_segments;       /* the window in force instead; 0: the real one is */
	lf_u32 zero;
	struct lf_unit unit[LF_UNITS];
};

/* What a stream came to. */
struct lf_pass {
	lf_u32 sent_kbps;
	lf_u32 arrived_kbps; /* 0: no result */
};

/* Back to the real window, unless something else (a timeout) has set another. */
LF_INLINE void lf_stream_release(struct lf_conn *c, struct lf_stream *s)
{
	if (s->set_segments && c->cwnd_segments == s->set_segments && s->own_segments)
		c->cwnd_segments = lf_min(s->own_segments, LF_WINDOW_MAX);
	s->set_segments = 0;
}

/* The real window. */
LF_INLINE lf_u32 lf_stream_window(const struct lf_conn *c, const struct lf_stream *s)
{
	if (s->set_segments && c->cwnd_segments == s->set_segments && s->own_segments)
		return lf_min(s->own_segments, LF_WINDOW_MAX);
	return c->cwnd_segments;
}

LF_INLINE void lf_stream_borrow(struct lf_conn *c, struct lf_stream *s)
{
	lf_stream_release(c, s);
	s->own_segments = c->cwnd_segments;
	s->set_segments = lf_min(c->flight_segments, LF_WINDOW_MAX / 2) + lf_min(s->unit_segments, 1024);
	c->cwnd_segments = s->set_segments;
}

/* A rate with headers as one of payload in bytes per second. */
LF_INLINE lf_u64 lf_payload_rate(const struct lf_conn *c, const struct lf_sending *send, lf_u32 kbps)
{
	return lf_max64((lf_u64)kbps * 125 * lf_min(c->mss_bytes, 65535) / lf_max(send->packet_bytes, 1), 1);
}

/* Segments of a unit at most: eight of them are a stream. */
LF_INLINE lf_u32 lf_stream_unit_most(const struct lf_conn *c)
{
	return lf_min((LF_STREAM_MOST - 1) / LF_UNITS / lf_max(c->mss_bytes, 1), 64);
}

/*
 * Segments of a unit: an even number, because a receiver acknowledges every second segment, and so few that eight
 * units fit the window. 0: not even eight pairs do.
 */
LF_INLINE lf_u32 lf_stream_unit(const struct lf_conn *c, const struct lf_sending *send)
{
	lf_u32 most = lf_min(lf_min(c->cwnd_segments / LF_UNITS, send->burst_segments), lf_stream_unit_most(c));

	if (c->cwnd_segments >= LF_STREAM_LEAST && most < 2)
		most = 2;
	return most & ~1u;
}

/*
 * The same for a stream of this rate, at least `unit_segments`, as far as window and what is written go. TCP holds back
 * what is shorter than it sends at once at the rate in force (tcp_tso_should_defer), until an acknowledgement comes:
 * streams whose units only the connection's own rate had made left at half of their rate, or less.
 */
LF_INLINE lf_u32 lf_stream_unit_at(const struct lf_conn *c, const struct lf_sending *send, lf_u32 kbps,
				   lf_u32 unit_segments)
{
	lf_u32 mss = lf_max(c->mss_bytes, 1), held = lf_min(c->cwnd_segments, send->unsent_bytes / mss);
	lf_u64 burst = (lf_payload_rate(c, send, kbps) >> LF_BURST_SHIFT) / mss;

	return lf_max(unit_segments,
		      (lf_u32)lf_min64(burst + 1, lf_min(held / LF_UNITS, lf_stream_unit_most(c))) & ~1u);
}

LF_INLINE void lf_stream_begin(const struct lf_conn *c, struct lf_stream *s, const struct lf_sending *send,
			       lf_u32 unit_segments)
{
	s->phase = LF_STREAM_LEAVING;
	s->began_us = c->now_us;
	s->first_seq = send->next_seq;
	s->pacing_bytes_per_s = send->pacing_bytes_per_s;
	s->sent_bytes = 0;
	s->units = 0;
	s->unit_segments = unit_segments;
}

/* Notes what left since the last look: it left when it was last tried. */
LF_INLINE void lf_stream_note_sent(struct lf_stream *s, const struct lf_sending *send)
{
	lf_u32 sent_bytes = send->next_seq - s->first_seq;
	struct lf_unit *unit;

	if (s->phase != LF_STREAM_LEAVING || sent_bytes == s->sent_bytes)
		return;
	s->sent_bytes = sent_bytes;
	unit = &s->unit[s->units & (LF_UNITS - 1)];
	unit->end_bytes = sent_bytes;
	unit->sent_us = (lf_u32)(s->tried_us - s->began_us);
	unit->acked_bytes = 0;
	unit->acked_us = 0;
	s->units++;
	if (s->units >= LF_UNITS)
		s->phase = LF_STREAM_AWAITED;
}

/* Notes when an acknowledgement of everything up to `una_seq` came. Returns whether it falls into the stream. */
LF_LEAF lf_u32 lf_stream_note_acked(struct lf_stream *s, lf_u32 una_seq, lf_u64 now_us)
{
	lf_u32 acked_bytes, begin_bytes = 0, k;

	if (!s)
		return 0;
	acked_bytes = una_seq - s->first_seq;
	/* Beyond what was sent: an acknowledgement of before the stream. */
	if (s->phase == LF_STREAM_NONE || acked_bytes > s->sent_bytes)
		return 0;
	for (k = 0; k < LF_UNITS; k++) {
		struct lf_unit *unit = &s->unit[k];

		if (k < s->units && acked_bytes > begin_bytes && acked_bytes <= unit->end_bytes &&
		    (!unit->acked_bytes || unit->acked_bytes - begin_bytes < (unit->end_bytes - begin_bytes) / 2)) {
			unit->acked_bytes = acked_bytes;
			unit->acked_us = (lf_u32)(now_us - s->began_us);
		}
		begin_bytes = unit->end_bytes;
	}
	return 1;
}

/* Whether everything the stream sent has been acknowledged. */
LF_INLINE lf_u32 lf_stream_is_over(const struct lf_stream *s, const struct lf_sending *send)
{
	return s->phase == LF_STREAM_AWAITED && send->una_seq - s->first_seq >= s->sent_bytes &&
	       send->una_seq - s->first_seq < 1u << 31;
}

/* Whether something happened that spoils it. Its answers come a round trip after it has left. */
LF_INLINE lf_u32 lf_stream_is_spoilt(const struct lf_conn *c, const struct lf_stream *s, const struct lf_sending *send)
{
	lf_u64 answered_us = s->phase == LF_STREAM_AWAITED ? 2ull * c->srtt_us : 0;

	return c->ca_state != LF_OPEN || send->repair_segments ||
	       c->now_us - s->began_us >= LF_STREAM_MOST + answered_us;
}

/* Rate of the gap after the next unit. */
LF_INLINE lf_u32 lf_stream_rate(const struct lf_stream *s)
{
	lf_u64 part = lf_min(s->units, LF_UNITS - 2);

	return (lf_u32)(((LF_UNITS - 2 - part) * s->from_kbps + part * s->to_kbps) / (LF_UNITS - 2));
}

/* And the other way: payload over a time. */
LF_INLINE lf_u32 lf_full_rate(const struct lf_conn *c, const struct lf_sending *send, lf_u64 payload_kbps)
{
	lf_u64 kbps = lf_min64(payload_kbps, 1ull << 40) * lf_min(send->packet_bytes, 65535) / lf_max(c->mss_bytes, 1);

	return (lf_u32)lf_min64(kbps, 0xffffffff);
}

/* Sums for a least-squares line of position over time. */
struct lf_line {
	lf_u64 n, x, y, xx, xy, yy; /* x: bytes, y: microseconds */
	lf_u32 x0, y0;
};

LF_INLINE void lf_line_add(struct lf_line *line, lf_u32 bytes, lf_u32 us)
{
	lf_u64 x, y;

	if (!line->n) {
		line->x0 = bytes;
		line->y0 = us;
	}
	x = lf_min(bytes - line->x0, LF_STREAM_MOST - 1);
	y = lf_min(us - line->y0, LF_STREAM_MOST - 1);
	line->n++;
	line->x += x;
	line->y += y;
	line->xx += x * x;
	line->xy += x * y;
	line->yy += y * y;
}

/* n times the covariance of x and y; 0 where it is negative. */
LF_INLINE lf_u64 lf_line_covariance(const struct lf_line *line)
{
	lf_u64 all = line->n * line->xy, both = line->x * line->y;

	return all > both ? all - both : 0;
}

/* Payload rate: bytes per microsecond is 8000 kbit/s. 0: time stood still. */
LF_INLINE lf_u64 lf_line_kbps(const struct lf_line *line)
{
	lf_u64 xx = line->n * line->xx - line->x * line->x, xy = lf_line_covariance(line);

	return xy ? xx * 8000 / xy : 0;
}

/* Whether the points are on a line: the square of the correlation is at least 3/4. */
LF_INLINE lf_u32 lf_line_is_straight(const struct lf_line *line)
{
	lf_u64 xx = line->n * line->xx - line->x * line->x, yy = line->n * line->yy - line->y * line->y;
	lf_u64 xy = lf_line_covariance(line);
	lf_u64 up_q16 = (xy << 16) / lf_max64(xx, 1), across_q8 = (xy << 8) / lf_max64(yy, 1);

	return lf_min64(up_q16, 1u << 31) * lf_min64(across_q8, 1u << 31) >= 3ull << 22;
}

/*
 * Rates in and out of a stream that is over. At least five of the eight units must have a time of their own, and it
 * must have left evenly: no pause of the application, of the peer's window or of this host. Returns whether it has any.
 */
LF_LEAF lf_u32 lf_stream_pass(const struct lf_conn *c, const struct lf_stream *s, const struct lf_sending *send,
			      struct lf_pass *pass)
{
	struct lf_line in = { 0 }, out = { 0 };
	lf_u32 begin_bytes = 0, k;

	if (!c || !s || !send || !pass)
		return 0;
	for (k = 0; k < LF_UNITS; k++) {
		const struct lf_unit *unit = &s->unit[k];

		lf_line_add(&in, begin_bytes, unit->sent_us);
		if (unit->acked_bytes)
			lf_line_add(&out, unit->acked_bytes, unit->acked_us);
		begin_bytes = unit->end_bytes;
	}
	if (out.n < 5 || begin_bytes >= LF_STREAM_MOST || !lf_line_is_straight(&in) || !lf_line_is_straight(&out))
		return 0;
	pass->sent_kbps = lf_full_rate(c, send, lf_line_kbps(&in));
	pass->arrived_kbps = lf_full_rate(c, send, lf_line_kbps(&out));
	return pass->sent_kbps && pass->arrived_kbps;
}

#endif
