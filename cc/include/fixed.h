/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Signed fixed-point numbers. Q16: 65536 is one; Q32: 2^32 is one. The kernel's verifier takes no signed division. */
#ifndef LONGFAT_FIXED_H
#define LONGFAT_FIXED_H

#include "longfat_cc.h"

#define LF_ONE_Q16 65536ll

/* Towards zero. The divisor is positive. */
LF_LEAF lf_s64 lf_divide(lf_s64 number, lf_u64 by)
{
	lf_u64 size = number < 0 ? 0 - (lf_u64)number : (lf_u64)number;
	lf_u64 part = size / (by ? by : 1);

	return number < 0 ? 0 - (lf_s64)part : (lf_s64)part;
}

LF_LEAF lf_s64 lf_clamp(lf_s64 number, lf_s64 least, lf_s64 most)
{
	if (number < least)
		return least;
	return number > most ? most : number;
}

LF_INLINE lf_u64 lf_min64(lf_u64 a, lf_u64 b)
{
	return a < b ? a : b;
}

LF_INLINE lf_u64 lf_max64(lf_u64 a, lf_u64 b)
{
	return a > b ? a : b;
}

/* A rate in kbit/s changed by a part of itself; 1 at least. */
LF_INLINE lf_u32 lf_scale(lf_u32 kbps, lf_s64 change_q16)
{
	lf_s64 scaled = (lf_s64)kbps + (((lf_s64)kbps * change_q16) >> 16);

	return (lf_u32)lf_clamp(scaled, 1, 0xffffffffll);
}

#endif
