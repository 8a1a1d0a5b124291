/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The delay that a path's queues add: least of the last four round-trip times - least of the last ten minutes
 * (RFC 6817, section 2.4.2: CURRENT_FILTER and BASE_HISTORY). The least of the last four forgets pauses of the other
 * end. Units: microseconds.
 */
#ifndef LONGFAT_DELAY_H
#define LONGFAT_DELAY_H

#include "window.h"

#define LF_DELAY_MINUTES 10
#define LF_DELAY_MINUTE_US 60000000ull

struct lf_delay {
	lf_u64 minute_began_us;
	lf_u32 base_us[LF_DELAY_MINUTES]; /* least delay of each minute, 0: none; the current is `minute` */
	lf_u32 recent_us[4];
	lf_u32 minute;                    /* 0 .. LF_DELAY_MINUTES - 1 */
	lf_u32 samples;                   /* modulo 2^32 */
};

LF_INLINE void lf_delay_begin(struct lf_delay *d, lf_u64 now_us)
{
	lf_u32 k;

	for (k = 0; k < LF_DELAY_MINUTES; k++)
		d->base_us[k] = 0;
	for (k = 0; k < 4; k++)
		d->recent_us[k] = 0;
	d->minute_began_us = now_us;
	d->minute = 0;
	d->samples = 0;
}

LF_INLINE void lf_delay_sample(struct lf_delay *d, lf_u64 now_us, lf_u32 rtt_us)
{
	lf_u32 minute = d->minute < LF_DELAY_MINUTES ? d->minute : 0, k;

	if (now_us - d->minute_began_us >= LF_DELAY_MINUTE_US) {
		minute = minute + 1 < LF_DELAY_MINUTES ? minute + 1 : 0;
		d->minute_began_us = now_us;
		for (k = 0; k < LF_DELAY_MINUTES; k++)
			if (k == minute)
				d->base_us[k] = 0;
	}
	d->minute = minute;
	for (k = 0; k < LF_DELAY_MINUTES; k++)
		if (k == minute && (!d->base_us[k] || rtt_us < d->base_us[k]))
			d->base_us[k] = rtt_us;
	for (k = 0; k < 4; k++)
		if (k == (d->samples & 3))
			d->recent_us[k] = rtt_us;
	d->samples++;
}

/* Least of all that are not 0; all ones when there is none. */
LF_INLINE lf_u32 lf_delay_least_us(const lf_u32 *us, lf_u32 count)
{
	lf_u32 least = 0xffffffff, k;

	for (k = 0; k < count; k++)
		if (us[k])
			least = lf_min(least, us[k]);
	return least;
}

LF_INLINE lf_u32 lf_delay_base_us(const struct lf_delay *d)
{
	return lf_delay_least_us(d->base_us, LF_DELAY_MINUTES);
}

/* Delay above the least known. */
LF_INLINE lf_u32 lf_delay_queueing_us(const struct lf_delay *d)
{
	lf_u32 base = lf_delay_base_us(d), now = lf_delay_least_us(d->recent_us, 4);

	return now > base ? now - base : 0;
}

#endif
