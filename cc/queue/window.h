/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The advertised window of an inbound leg as the steady limit of a relay's queue.
 *
 * The model      What is under way to the relay plus what waits in it shall be
 *                   limit = rate * (inbound round trip + 3/4 target) * gain,
 *                so with the outbound leg at `rate` and a full pipe into the relay, three quarters of a target wait:
 *                what estimates err by stays below it. The window is what the limit leaves: limit - waiting. The sum is
 *                kept, so bytes come in as bytes go out.
 * The rate       is the drain measured; twice that while it grows (an outbound leg in slow start doubles each round
 *                trip: it must find the next window waiting); before the first measurement what the outbound window
 *                could send, and two such windows wait. It is never more than twice the outbound window per round trip.
 *                The pipe into the relay is kept full for the greatest rate of late: an outbound leg whose window is a
 *                saw-tooth wants it back before the inbound leg could bring it.
 * gain           is 1 and grows by a quarter per interval in which nothing was waiting, up to 8: round-trip times
 *                are estimates, and an outbound leg that runs dry is the worse error. It comes back by halves.
 * Haste          What a growing leg will want next must be under way already where the inbound round trip is long.
 *                Where it is short, that is there when it is asked for, and asked for before, it would only wait, and
 *                teach the sender to have as much under way. So doubling and gain count for what waits in the
 *                proportion of the inbound round trip to the target, and wholly from a target on.
 * Never zero     The window is at least two segments: a window of zero is probed with a back-off, and its sender
 *                begins again with slow start (Isogaki 2005, section 5.4). Where that is still too fast, on a leg
 *                with a round trip of microseconds, the hard limit holds: the relay does not read beyond `ahead`, and
 *                the receive buffer holds `buffer`.
 */
#ifndef LONGFAT_QUEUE_WINDOW_H
#define LONGFAT_QUEUE_WINDOW_H

#include "drain.h"

/* What an outbound leg finds at its beginning: an initial window (RFC 6928) and what it grows to at once. */
#define LF_WINDOW_FLOOR_BYTES 65536u /* until a rate was measured: of 10 Mbit/s it would be 52 ms */
#define LF_WINDOW_MOST_BYTES 0x3fffffffu
/*
 * Segments, whatever the rate: a burst of acknowledgements must find something to send, and a sender something to send
 * for. Of a share of 5 Mbit/s eight are 19 ms.
 */
#define LF_LIMIT_SEGMENTS 8
#define LF_AHEAD_SEGMENTS 4
#define LF_BUFFER_SEGMENTS 2
#define LF_GAIN_ONE 64u
#define LF_GAIN_MOST (8 * LF_GAIN_ONE)

struct lf_window_state {
	struct lf_drain drain;
	lf_u64 peak_bytes_per_s;      /* of the drain, of late */
	lf_u32 gain_x64;              /* 0: not begun */
	lf_u32 delay_us;
};

/* What is to be set. */
struct lf_window {
	lf_u32 limit_bytes;           /* under way to the relay and waiting in it */
	lf_u32 window_bytes;          /* to be advertised */
	lf_u32 ahead_bytes;           /* the relay reads no more than this ahead of the outbound leg */
	lf_u32 buffer_bytes;          /* the receive buffer shall hold so much payload */
};

LF_INLINE void lf_window_gain(struct lf_window_state *s)
{
	lf_u32 up = s->gain_x64 + s->gain_x64 / 4;

	s->peak_bytes_per_s -= s->peak_bytes_per_s / 16;
	if (s->peak_bytes_per_s < s->drain.bytes_per_s)
		s->peak_bytes_per_s = s->drain.bytes_per_s;
	if (s->drain.was_dry)
		s->gain_x64 = up > LF_GAIN_MOST ? LF_GAIN_MOST : up;
	else
		s->gain_x64 -= (s->gain_x64 - LF_GAIN_ONE + 1) / 2;
}

LF_INLINE lf_u64 lf_window_rate(const struct lf_queue_view *v, const struct lf_window_state *s)
{
	lf_u64 rtt_us = v->outbound_rtt_us ? v->outbound_rtt_us : 1000;
	lf_u64 could = 2 * (lf_u64)v->outbound_cwnd_bytes * 1000000 / rtt_us;
	lf_u64 rate = s->drain.bytes_per_s;

	if (rate == 0)
		return could;
	if (could < rate)
		could = rate;
	rate = rate * s->gain_x64 / LF_GAIN_ONE * (s->drain.is_growing ? 2 : 1);
	return rate < could ? rate : could;
}

/* The rate for what may wait, between the drain measured and the rate that is to come. */
LF_INLINE lf_u64 lf_window_haste(const struct lf_queue_view *v, const struct lf_window_state *s, lf_u64 rate,
				 lf_u32 target_us)
{
	lf_u64 drain = s->drain.bytes_per_s;

	if (rate <= drain || v->inbound_rtt_us >= target_us)
		return rate;
	return drain + (rate - drain) / target_us * v->inbound_rtt_us;
}

LF_INLINE lf_u32 lf_window_within(lf_u64 bytes, lf_u64 least)
{
	if (bytes < least)
		bytes = least;
	return bytes > LF_WINDOW_MOST_BYTES ? LF_WINDOW_MOST_BYTES : (lf_u32)bytes;
}

/* Looks at a connection: at any time, at least as often as the inbound round trip and the target ask for. */
LF_INLINE void lf_window_update(const struct lf_queue_view *v, struct lf_window_state *s, lf_u32 target_us,
				struct lf_window *out)
{
	lf_u64 waiting = lf_waiting_bytes(v), mss = v->mss_bytes, limit, rate, hasty, ahead;

	if (s->gain_x64 == 0)
		s->gain_x64 = LF_GAIN_ONE;
	if (lf_drain_on_view(&s->drain, v)) {
		lf_window_gain(s);
		lf_drain_begin(&s->drain, v);
	}
	s->delay_us = s->drain.bytes_per_s ? lf_delay_us(waiting, s->drain.bytes_per_s) : 0;
	rate = lf_window_rate(v, s);
	limit = lf_bytes_in(rate > s->peak_bytes_per_s ? rate : s->peak_bytes_per_s, v->inbound_rtt_us);
	hasty = lf_window_haste(v, s, rate, target_us);
	limit += s->drain.bytes_per_s ? lf_bytes_in(hasty, target_us) / 4 * 3 : 2 * (lf_u64)v->outbound_cwnd_bytes;
	out->limit_bytes = lf_window_within(limit, s->drain.bytes_per_s ? LF_LIMIT_SEGMENTS * mss : LF_WINDOW_FLOOR_BYTES);
	limit = out->limit_bytes;
	out->window_bytes = lf_window_within(limit > waiting ? limit - waiting : 0, 2 * mss);
	/*
	 * Half a target is ready for the outbound leg, the rest where it closes the window. What its first window over its
	 * first round trip would make of a target is not asked: megabytes, before the path has shown anything of its rate.
	 */
	ahead = s->drain.bytes_per_s ? lf_bytes_in(hasty, target_us) / 2 : limit / 2;
	out->ahead_bytes = lf_window_within(ahead, LF_AHEAD_SEGMENTS * mss);
	/* What was read ahead waits, too. */
	out->buffer_bytes = lf_window_within(limit > out->ahead_bytes ? limit - out->ahead_bytes : 0, LF_BUFFER_SEGMENTS * mss);
}

#endif
