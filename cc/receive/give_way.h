/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * A background transfer steered where it is received: the advertised window keeps the delay that the download adds to
 * its path at a target, whatever the sender's congestion control does.
 *
 * Model      The sender has no more under way than the window. A data segment echoes the TSval of the acknowledgement
 *            that let it go (RFC 7323), so our clock - TSecr is a round trip, the download's queue within it; queueing
 *            delay q as in include/delay.h. Only segments that bring new data count, and of those that echo the same
 *            TSval the first: it waited least at the sender.
 * Rounds     A round ends when an acknowledgement sent after its beginning is echoed. The window is decided on at its
 *            end, and after a cut only at the end of the next: before that no delay shows what the cut did.
 * States     START: doubles each round; when q passes half the target, back to half, STEADY.
 *            STEADY: q <= target: grows by half of what q lacks, (target - q) / 2 RTT of itself, doubled with each
 *            round in which q was under a quarter of the target, by a quarter at most; and by a segment. A window w
 *            counts as 256 w / (256 + w) segments there: what grows by as much as others and is cut in proportion comes
 *            to an even share. q > target: cut by twice the excess, 2 (q - target) / RTT of itself, half of itself at
 *            most.
 *            LOW: a quarter of the window for two rounds, so that the queue is empty once if it is ours and the least
 *            delay is learned anew; then CLIMB: doubles back. Begins nine times as long after the last as that took, a
 *            minute at most.
 * Loss       A retransmission (below what has arrived, and sent later) halves the window at the end of its round, but
 *            for one in which a cut has not shown yet. The target falls to half the delay seen before it where that is
 *            less, in every round: such a queue is shorter than the target. From three quarters of the window that was
 *            halved it grows by a segment per round. Both wear off with each LOW.
 * Unused     A window of which three eighths are not used says nothing: it is neither grown nor cut, but follows
 *            what is used down to twice of that. A cut begins at what is used. After a pause rounds begin anew.
 * Bounds     Two segments at least: a window of zero is probed with a back-off.
 * Units      bytes; microseconds; TSval in ticks.
 * Reference  RFC 9840 (rLEDBAT), with the reactions of LEDBAT++ (draft-irtf-iccrg-ledbat-plus-plus) where not said
 *            otherwise; docs/design/cc/give_way.md has the differences.
 */
#ifndef LONGFAT_GIVE_WAY_H
#define LONGFAT_GIVE_WAY_H

#include "../include/delay.h"
#include "../include/fixed.h"

#define LF_GIVE_WAY_TARGET_US 5000u
#define LF_GIVE_WAY_LEAST_TARGET_US 3000u /* clocks of 1 ms tell no less */
#define LF_GIVE_WAY_MOST_BYTES 0x3fffffffu
#define LF_GIVE_WAY_LEAST_BYTES 2400u /* the kernel takes no less than 2304 */
#define LF_GIVE_WAY_FIRST_SEGMENTS 10 /* RFC 6928 */
#define LF_GIVE_WAY_EVEN_SEGMENTS 256 /* windows well above grow by as much as each other */
#define LF_GIVE_WAY_AGE_MOST_US 60000000u /* no round trip, whatever the echo says; TSval may turn in 72 minutes */
#define LF_GIVE_WAY_LOW_EVERY_US 60000000u /* at most: well within the history of the least delay */

enum lf_give_way_phase { LF_WAY_START = 0, LF_WAY_STEADY = 1, LF_WAY_LOW = 2, LF_WAY_CLIMB = 3 };

/* State of one connection. No padding. */
struct lf_give_way {
	struct lf_delay delay;
	lf_u64 next_low_us;
	lf_u64 phase_began_us;   /* START, LOW (CLIMB keeps it) */
	lf_u64 last_us;          /* when new bytes arrived last */
	lf_u32 window_bytes;     /* to be advertised */
	lf_u32 mss_bytes;
	lf_u32 highest_seq;      /* after the last byte that arrived */
	lf_u32 highest_ts;       /* TSval of the segment that brought it */
	lf_u32 last_echo;
	lf_u32 round_ts;         /* our TSval when the round began */
	lf_u32 round_bytes;      /* new ones within it */
	lf_u32 target_us;
	lf_u32 peak_us;          /* greatest q of this round … */
	lf_u32 last_peak_us;     /* … and the one before */
	lf_u32 cautious_from_bytes;
	lf_u32 resume_bytes;     /* window before LOW */
	lf_u32 phase;
	lf_u32 quiet_rounds;
	lf_u32 settling_rounds;
	lf_u32 has_lost;
};

/* An arriving segment that carries data. No padding. */
struct lf_arrival {
	lf_u64 now_us;
	lf_u32 now_ts;      /* the TSval that we would send now */
	lf_u32 tick_us;     /* of our TSval: 1000 or 1 */
	lf_u32 ts_value;
	lf_u32 ts_echo;
	lf_u32 seq;
	lf_u32 payload_bytes;
	lf_u32 mss_bytes;
	lf_u32 edge_seq;    /* the first byte beyond the window */
};

/* Whether a comes after b in sequence or TSval space. */
LF_INLINE lf_u32 lf_is_after(lf_u32 a, lf_u32 b)
{
	return a != b && a - b < 0x80000000u;
}

LF_INLINE lf_u32 lf_way_floor(const struct lf_give_way *s)
{
	return lf_max(2 * s->mss_bytes, LF_GIVE_WAY_LEAST_BYTES);
}

LF_INLINE void lf_way_set(struct lf_give_way *s, lf_u64 bytes)
{
	lf_u32 most = bytes > LF_GIVE_WAY_MOST_BYTES ? LF_GIVE_WAY_MOST_BYTES : (lf_u32)bytes;

	s->window_bytes = lf_max(most, lf_way_floor(s));
}

LF_INLINE void lf_way_mss(struct lf_give_way *s, lf_u32 mss_bytes)
{
	s->mss_bytes = lf_min(lf_max(mss_bytes, 1), 65535);
}

/* A connection begins; rtt_us of its handshake, 0 when not known; next_seq: that of the first byte to come. */
LF_INLINE void lf_give_way_begin(struct lf_give_way *s, lf_u64 now_us, lf_u32 now_ts, lf_u32 next_seq, lf_u32 mss_bytes,
				 lf_u32 rtt_us)
{
	lf_delay_begin(&s->delay, now_us);
	if (rtt_us)
		lf_delay_sample(&s->delay, now_us, rtt_us);
	lf_way_mss(s, mss_bytes);
	lf_way_set(s, LF_GIVE_WAY_FIRST_SEGMENTS * (lf_u64)s->mss_bytes);
	s->next_low_us = now_us;
	s->phase_began_us = now_us;
	s->last_us = now_us;
	s->highest_seq = next_seq;
	s->highest_ts = 0;
	s->last_echo = now_ts - 1;
	s->round_ts = now_ts;
	s->round_bytes = 0;
	s->target_us = LF_GIVE_WAY_TARGET_US;
	s->peak_us = 0;
	s->last_peak_us = 0;
	s->cautious_from_bytes = LF_GIVE_WAY_MOST_BYTES;
	s->resume_bytes = 0;
	s->phase = LF_WAY_START;
	s->quiet_rounds = 0;
	s->settling_rounds = 0;
	s->has_lost = 0;
}

/* What is used, as far as a window rests on it. */
LF_INLINE lf_u64 lf_way_used(const struct lf_give_way *s)
{
	return lf_min64(s->window_bytes, s->round_bytes + (lf_u64)s->round_bytes / 4);
}

LF_INLINE lf_u32 lf_way_is_used(const struct lf_give_way *s)
{
	return 8 * (lf_u64)s->round_bytes >= 3 * (lf_u64)s->window_bytes;
}

/* To STEADY; the next LOW is nine times as far as the phase took, which may have been a pause for the most part. */
LF_INLINE void lf_way_steady(struct lf_give_way *s, lf_u64 now_us)
{
	s->phase = LF_WAY_STEADY;
	s->next_low_us = now_us + lf_min64(9 * (now_us - s->phase_began_us), LF_GIVE_WAY_LOW_EVERY_US);
}

LF_INLINE void lf_way_cut(struct lf_give_way *s, lf_u32 q_us, lf_u32 rtt_us)
{
	lf_u64 used = lf_way_used(s), part = 2 * used * (q_us - s->target_us) / lf_max(rtt_us, 1);

	part = lf_max64(lf_min64(part, used / 2), s->mss_bytes);
	lf_way_set(s, used > part ? used - part : 0);
	s->quiet_rounds = 0;
	s->settling_rounds = 1;
}

LF_INLINE void lf_way_grow(struct lf_give_way *s, lf_u32 q_us, lf_u32 rtt_us)
{
	lf_u64 window = s->window_bytes, even = LF_GIVE_WAY_EVEN_SEGMENTS * (lf_u64)s->mss_bytes;
	lf_u64 part = window * even / (window + even) * (s->target_us - q_us) / (2 * (lf_u64)lf_max(rtt_us, 1));

	s->quiet_rounds = q_us < s->target_us / 4 ? lf_min(s->quiet_rounds + 1, 8) : 0;
	part = lf_min64(part << s->quiet_rounds, window / 4);
	if (s->window_bytes >= s->cautious_from_bytes)
		part = 0;
	lf_way_set(s, window + part + s->mss_bytes);
}

LF_INLINE void lf_way_on_loss(struct lf_give_way *s, lf_u64 now_us)
{
	lf_u64 used = lf_way_used(s);

	s->cautious_from_bytes = (lf_u32)(used / 4 * 3);
	lf_way_set(s, used / 2);
	if (s->phase != LF_WAY_STEADY)
		lf_way_steady(s, now_us);
	s->quiet_rounds = 0;
	s->settling_rounds = 1;
}

LF_INLINE void lf_way_low(struct lf_give_way *s, lf_u64 now_us)
{
	s->phase = LF_WAY_LOW;
	s->phase_began_us = now_us;
	s->resume_bytes = s->window_bytes;
	lf_way_set(s, s->window_bytes / 4);
	s->settling_rounds = 1;
	s->target_us = lf_min(2 * s->target_us, LF_GIVE_WAY_TARGET_US);
	s->cautious_from_bytes = lf_min(2 * s->cautious_from_bytes, LF_GIVE_WAY_MOST_BYTES);
}

LF_INLINE void lf_way_climb(struct lf_give_way *s, lf_u64 now_us, lf_u32 q_us)
{
	lf_u64 twice = 2 * (lf_u64)s->window_bytes;

	s->phase = LF_WAY_CLIMB;
	if (q_us <= s->target_us)
		lf_way_set(s, lf_min64(twice, s->resume_bytes));
	if (q_us > s->target_us || s->window_bytes >= s->resume_bytes)
		lf_way_steady(s, now_us);
}

LF_INLINE void lf_way_decide(struct lf_give_way *s, lf_u64 now_us)
{
	lf_u32 q_us = lf_delay_queueing_us(&s->delay), rtt_us = lf_delay_base_us(&s->delay) + q_us;

	if (s->has_lost)
		lf_way_on_loss(s, now_us);
	else if (s->phase == LF_WAY_LOW || s->phase == LF_WAY_CLIMB)
		lf_way_climb(s, now_us, q_us);
	else if (!lf_way_is_used(s)) {
		if (s->phase == LF_WAY_STEADY)
			lf_way_set(s, lf_max64(s->window_bytes - s->window_bytes / 8, 2 * (lf_u64)s->round_bytes));
	} else if (s->phase == LF_WAY_START)
		lf_way_set(s, 2 * (lf_u64)s->window_bytes);
	else if (now_us >= s->next_low_us && s->window_bytes > 4 * lf_way_floor(s))
		lf_way_low(s, now_us);
	else if (q_us > s->target_us)
		lf_way_cut(s, q_us, rtt_us);
	else
		lf_way_grow(s, q_us, rtt_us);
}

LF_INLINE void lf_way_begin_round(struct lf_give_way *s, lf_u32 now_ts)
{
	lf_u32 peak_us = lf_max(s->peak_us, s->last_peak_us);

	if (s->has_lost)
		s->target_us = lf_max(lf_min(s->target_us, peak_us / 2), LF_GIVE_WAY_LEAST_TARGET_US);
	s->round_ts = now_ts;
	s->round_bytes = 0;
	s->has_lost = 0;
	s->last_peak_us = s->peak_us;
	s->peak_us = 0;
}

/* How long ago the acknowledgement was sent that the segment echoes. */
LF_INLINE lf_u64 lf_way_age_us(const struct lf_arrival *a)
{
	return (lf_u64)(a->now_ts - a->ts_echo) * a->tick_us;
}

LF_INLINE void lf_way_on_sample(struct lf_give_way *s, const struct lf_arrival *a)
{
	lf_u64 age_us = lf_way_age_us(a);
	lf_u32 q_us;

	/* A TSval of milliseconds is that of the beginning of its millisecond. */
	if (a->tick_us > 1)
		age_us += a->now_us % a->tick_us;
	lf_delay_sample(&s->delay, a->now_us, lf_max((lf_u32)age_us, 1));
	q_us = lf_delay_queueing_us(&s->delay);
	s->peak_us = lf_max(s->peak_us, q_us);
	if (s->phase != LF_WAY_START || q_us <= s->target_us / 2)
		return;
	/* The window of the round before: this one's has not shown yet. */
	lf_way_set(s, s->window_bytes / 2);
	lf_way_steady(s, a->now_us);
	s->settling_rounds = 1;
	lf_way_begin_round(s, a->now_ts);
}

/* Timestamps of before a pause are not compared with: half a turn of TSval may have passed, or all of it. */
LF_INLINE void lf_way_after_pause(struct lf_give_way *s, lf_u32 now_ts)
{
	s->last_echo = now_ts - 1;
	lf_way_begin_round(s, now_ts);
}

/* A keep-alive may carry the last byte once more (RFC 9293, 3.8.4): that one has arrived. */
LF_INLINE lf_u32 lf_way_is_retransmission(const struct lf_give_way *s, const struct lf_arrival *a)
{
	if (a->payload_bytes == 1 && a->seq == s->highest_seq - 1)
		return 0;
	return lf_is_after(s->highest_seq, a->seq) && lf_is_after(a->ts_value, s->highest_ts);
}

/* A segment with data arrives; afterwards window_bytes is what to advertise. */
LF_INLINE void lf_give_way_on_segment(struct lf_give_way *s, const struct lf_arrival *a)
{
	lf_u32 end = a->seq + a->payload_bytes;

	/* A probe of a window of zero, which is not taken and comes again; or none of the peer's. */
	if (!lf_is_after(a->edge_seq, a->seq))
		return;
	lf_way_mss(s, a->mss_bytes);
	if (lf_way_is_retransmission(s, a))
		s->has_lost = 1;
	if (!lf_is_after(end, s->highest_seq))
		return;
	if (a->now_us > s->last_us + LF_GIVE_WAY_AGE_MOST_US)
		lf_way_after_pause(s, a->now_ts);
	s->last_us = a->now_us;
	s->round_bytes += lf_min(end - s->highest_seq, a->payload_bytes);
	s->highest_seq = end;
	s->highest_ts = a->ts_value;
	if (lf_way_age_us(a) > LF_GIVE_WAY_AGE_MOST_US)
		return;
	if (lf_is_after(a->ts_echo, s->last_echo)) {
		s->last_echo = a->ts_echo;
		lf_way_on_sample(s, a);
	}
	if (!lf_is_after(a->ts_echo, s->round_ts))
		return;
	if (s->settling_rounds)
		s->settling_rounds--;
	else
		lf_way_decide(s, a->now_us);
	lf_way_begin_round(s, a->now_ts);
}

#endif
