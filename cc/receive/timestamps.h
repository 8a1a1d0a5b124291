/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* The timestamps option among the options of an arriving TCP header (RFC 9293, section 3.1; RFC 7323, section 3.2). */
#ifndef LONGFAT_TIMESTAMPS_H
#define LONGFAT_TIMESTAMPS_H

#include "../include/longfat_cc.h"

#define LF_OPTIONS_BYTES 40 /* a header has no room for more */
#define LF_OPTION_END 0
#define LF_OPTION_NOP 1
#define LF_OPTION_TIMESTAMPS 8
#define LF_TIMESTAMPS_LENGTH 10

struct lf_timestamps {
	lf_u32 value;
	lf_u32 echo;
};

LF_INLINE lf_u32 lf_big_endian(const unsigned char *at)
{
	return (lf_u32)at[0] << 24 | (lf_u32)at[1] << 16 | (lf_u32)at[2] << 8 | at[3];
}

/*
 * Whether there is one. `options` has LF_OPTIONS_BYTES, of which the first `length` are the header's. One step per byte
 * at most: every option has one at least.
 */
LF_INLINE lf_u32 lf_find_timestamps(const unsigned char *options, lf_u32 length, struct lf_timestamps *out)
{
	lf_u32 at = 0, step;

	for (step = 0; step < LF_OPTIONS_BYTES; step++) {
		lf_u32 size;

		if (at + LF_TIMESTAMPS_LENGTH > length || at > LF_OPTIONS_BYTES - LF_TIMESTAMPS_LENGTH)
			return 0;
		if (options[at] == LF_OPTION_END)
			return 0;
		if (options[at] == LF_OPTION_NOP) {
			at++;
			continue;
		}
		size = options[at + 1];
		if (options[at] == LF_OPTION_TIMESTAMPS && size == LF_TIMESTAMPS_LENGTH) {
			out->value = lf_big_endian(&options[at + 2]);
			out->echo = lf_big_endian(&options[at + 6]);
			return 1;
		}
		if (size < 2)
			return 0;
		at += size;
	}
	return 0;
}

#endif
