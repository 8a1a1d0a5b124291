/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The rate at which an outbound leg sends new bytes, measured over intervals of its own round trip: a window leaves
 * in bursts once per round trip, shorter intervals would see the bursts.
 *
 * In an interval in which nothing was waiting the leg sent what it got, not what it could: such an interval may
 * raise the rate, not lower it.
 */
#ifndef LONGFAT_QUEUE_DRAIN_H
#define LONGFAT_QUEUE_DRAIN_H

#include "longfat_queue.h"

#define LF_DRAIN_LEAST_US 10000u
#define LF_DRAIN_MOST_US 200000u
/* A pause: what was measured before says nothing about now. */
#define LF_DRAIN_STALE_US 2000000u

LF_INLINE lf_u64 lf_waiting_bytes(const struct lf_queue_view *v)
{
	return v->received_bytes > v->sent_bytes ? v->received_bytes - v->sent_bytes : 0;
}

LF_INLINE lf_u64 lf_backlog_bytes(const struct lf_queue_view *v)
{
	return v->received_bytes > v->acked_bytes ? v->received_bytes - v->acked_bytes : 0;
}

LF_INLINE lf_u32 lf_drain_interval_us(const struct lf_queue_view *v)
{
	if (v->outbound_rtt_us < LF_DRAIN_LEAST_US)
		return LF_DRAIN_LEAST_US;
	return v->outbound_rtt_us > LF_DRAIN_MOST_US ? LF_DRAIN_MOST_US : v->outbound_rtt_us;
}

LF_INLINE void lf_drain_begin(struct lf_drain *d, const struct lf_queue_view *v)
{
	d->since_us = v->now_us;
	d->since_sent_bytes = v->sent_bytes;
	d->was_dry = 0;
}

/* One interval is over: what it says about the rate. */
LF_INLINE void lf_drain_learn(struct lf_drain *d, lf_u64 sample)
{
	d->is_growing = sample > d->bytes_per_s + d->bytes_per_s / 4;
	if (d->bytes_per_s == 0 || d->is_growing)
		d->bytes_per_s = sample;
	else if (sample > d->bytes_per_s)
		d->bytes_per_s += (sample - d->bytes_per_s) / 2;
	else if (!d->was_dry)
		d->bytes_per_s -= (d->bytes_per_s - sample) / 2;
}

/* Takes a view into account; 1 when an interval ended with it. */
LF_INLINE lf_u32 lf_drain_on_view(struct lf_drain *d, const struct lf_queue_view *v)
{
	lf_u64 passed_us = v->now_us - d->since_us;

	if (d->since_us == 0 || v->now_us < d->since_us || v->sent_bytes < d->since_sent_bytes ||
	    passed_us > LF_DRAIN_STALE_US) {
		lf_drain_begin(d, v);
		return 0;
	}
	if (lf_waiting_bytes(v) < 2 * (lf_u64)v->mss_bytes)
		d->was_dry = 1;
	if (passed_us < lf_drain_interval_us(v))
		return 0;
	lf_drain_learn(d, (v->sent_bytes - d->since_sent_bytes) * 1000000 / passed_us);
	return 1;
}

/* How long `bytes` wait at this rate; at most about an hour, also when nothing moves. */
LF_INLINE lf_u32 lf_delay_us(lf_u64 bytes, lf_u64 bytes_per_s)
{
	lf_u64 us = bytes * 1000000 / (bytes_per_s ? bytes_per_s : 1);

	return us > LF_CERTAIN ? LF_CERTAIN : (lf_u32)us;
}

/* Bytes that move in a time at this rate. */
LF_INLINE lf_u64 lf_bytes_in(lf_u64 bytes_per_s, lf_u32 us)
{
	/* 34 Gbit/s over a minute fit. */
	return bytes_per_s * (us > 60000000u ? 60000000u : us) / 1000000;
}

#endif
