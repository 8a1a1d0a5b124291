/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Fixed threshold: every packet is marked while the backlog exceeds what is allowed.
 *
 * Reference  Isogaki 2005, section 5.4 (a): congestion is echoed while the relay holds more than two or three windows
 *            of the outbound leg. There it was decided in user space every 10 ms, later 1 ms; here at each packet.
 */
#ifndef LONGFAT_QUEUE_FIXED_H
#define LONGFAT_QUEUE_FIXED_H

#include "drain.h"

/* The backlog allowed. */
LF_INLINE lf_u64 lf_allowed_bytes(const struct lf_queue_view *v, const struct lf_queue_settings *t)
{
	lf_u64 windows = (lf_u64)v->outbound_cwnd_bytes * t->allowed_cwnds_x16 / 16;

	return windows > t->allowed_bytes ? windows : t->allowed_bytes;
}

LF_INLINE lf_u32 lf_fixed_probability(const struct lf_queue_view *v, const struct lf_queue_settings *t)
{
	return lf_backlog_bytes(v) > lf_allowed_bytes(v, t) ? LF_CERTAIN : 0;
}

#endif
