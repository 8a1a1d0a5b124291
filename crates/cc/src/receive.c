/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* receive/ compiled natively, with external names, for the Rust side. */
#include <stddef.h>

#include "receive/give_way.h"
#include "receive/timestamps.h"

void lf_native_give_way_begin(struct lf_give_way *s, lf_u64 now_us, lf_u32 now_ts, lf_u32 next_seq, lf_u32 mss_bytes,
			      lf_u32 rtt_us);
void lf_native_give_way_begin(struct lf_give_way *s, lf_u64 now_us, lf_u32 now_ts, lf_u32 next_seq, lf_u32 mss_bytes,
			      lf_u32 rtt_us)
{
	lf_give_way_begin(s, now_us, now_ts, next_seq, mss_bytes, rtt_us);
}

void lf_native_give_way_on_segment(struct lf_give_way *s, const struct lf_arrival *a);
void lf_native_give_way_on_segment(struct lf_give_way *s, const struct lf_arrival *a)
{
	lf_give_way_on_segment(s, a);
}

lf_u32 lf_native_timestamps(const unsigned char options[LF_OPTIONS_BYTES], lf_u32 length, struct lf_timestamps *out);
lf_u32 lf_native_timestamps(const unsigned char options[LF_OPTIONS_BYTES], lf_u32 length, struct lf_timestamps *out)
{
	return lf_find_timestamps(options, length, out);
}

/* Layout of what crosses the language border, compared with the Rust mirror by a test. */
const lf_u32 lf_receive_layout[] = {
	sizeof(struct lf_give_way), sizeof(struct lf_arrival), sizeof(struct lf_timestamps),
	offsetof(struct lf_give_way, window_bytes), offsetof(struct lf_give_way, phase),
	offsetof(struct lf_give_way, has_lost), offsetof(struct lf_give_way, last_us), offsetof(struct lf_arrival, edge_seq),
};
