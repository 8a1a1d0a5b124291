/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * RED-like: the probability grows linearly with the backlog, from 0 at (allowed - red) to 1 at allowed. No average is
 * taken: the thesis takes none, and the queue is an integrator already.
 *
 * Reference  Isogaki 2005, section 5.4 (b), whose two sizes are called absolute and RED; Floyd and Jacobson 1993.
 */
#ifndef LONGFAT_QUEUE_RED_H
#define LONGFAT_QUEUE_RED_H

#include "fixed.h"

LF_INLINE lf_u32 lf_red_probability(const struct lf_queue_view *v, const struct lf_queue_settings *t)
{
	lf_u64 backlog = lf_backlog_bytes(v), allowed = lf_allowed_bytes(v, t);
	lf_u64 red = t->red_bytes < allowed ? t->red_bytes : allowed;

	/* The size of the slope in KiB, so that the product fits. */
	if (backlog >= allowed)
		return LF_CERTAIN;
	if (backlog <= allowed - red)
		return 0;
	return (lf_u32)((backlog - (allowed - red)) / 16 * (LF_CERTAIN / 16) / (red / 256 + 1));
}

#endif
