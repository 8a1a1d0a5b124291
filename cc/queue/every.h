/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Every N bytes: one packet is marked for so many bytes received, whatever waits.
 *
 * Reference  Isogaki 2005, section 5.3: a call that makes TCP echo congestion, once per N reads of 1024 bytes. It is
 *            the thesis's measure of what a mark does, not a way to hold a queue. Where N is less than a packet all are
 *            marked.
 */
#ifndef LONGFAT_QUEUE_EVERY_H
#define LONGFAT_QUEUE_EVERY_H

#include "longfat_queue.h"

LF_INLINE lf_u32 lf_every_probability(const struct lf_queue_view *v, const struct lf_queue_state *s,
				      const struct lf_queue_settings *t)
{
	return v->received_bytes >= (s->marks + 1) * t->allowed_bytes ? LF_CERTAIN : 0;
}

#endif
