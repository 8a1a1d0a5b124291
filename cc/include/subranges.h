/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Available bandwidth by search in sub-ranges, as ImTCP was published.
 *
 * Model      A measurement takes four streams. Each covers a quarter of the search range: its gaps go from the lower to
 *            the upper rate of its sub-range. Delay that grows along a stream (PCT and PDT of pathload) votes that the
 *            available bandwidth is lower. It is looked for in the sub-range that agrees best with the votes, at the
 *            bend of arrival rate over send rate (two straight lines, least squares).
 * Range      mean of the past results +- 1.96 S / sqrt(q), a tenth of the mean at least. Where the votes say "outside":
 *            the statistics are forgotten and the range grows by half on that side.
 * Units      kbit/s. The result is smoothed by 0.12.
 * Reference  Tsugawa 2006; Jain and Dovrolis 2002 for PCT and PDT.
 */
#ifndef LONGFAT_SUBRANGES_H
#define LONGFAT_SUBRANGES_H

#include "fixed.h"
#include "root.h"
#include "stream.h"

#define LF_SUBRANGES 4
#define LF_GAPS (LF_UNITS - 1)

struct lf_gap {
	lf_u32 sent_kbps;
	lf_u32 arrived_kbps; /* 0: not known */
};

/* Of one stream. */
struct lf_gaps {
	struct lf_gap gap[LF_UNITS]; /* one more than there are, so that an index is bounded by a mask */
};

struct lf_subranges {
	lf_u64 sum;             /* of results since the range was last lost; of squares: */
	lf_u64 squares;
	lf_u32 results;         /* q */
	lf_u32 low_kbps;
	lf_u32 high_kbps;       /* 0: nothing known */
	lf_u32 next;            /* sub-range of the next stream */
	lf_u32 smoothed_kbps;   /* 0: no result yet */
	lf_u32 increasing;      /* votes, a bit per sub-range: delay grows */
	lf_u32 steady;          /* it does not; in neither: no vote */
	lf_u32 missed;          /* measurements in a row that ended outside the range */
	struct lf_gaps of[LF_SUBRANGES];
};

/* Lower end of a sub-range; that of the last plus one is the upper end of the range. */
LF_INLINE lf_u32 lf_subrange(const struct lf_subranges *r, lf_u32 number)
{
	lf_u64 width = r->high_kbps > r->low_kbps ? r->high_kbps - r->low_kbps : 0;

	return lf_max((lf_u32)lf_min64(r->low_kbps + width * number / LF_SUBRANGES, 0xffffffff), 1);
}

LF_INLINE void lf_subranges_next(const struct lf_subranges *r, lf_u32 train_kbps, struct lf_stream *s)
{
	s->from_kbps = r->high_kbps ? lf_subrange(r, r->next % LF_SUBRANGES) : lf_max(train_kbps, 1);
	s->to_kbps = r->high_kbps ? lf_subrange(r, r->next % LF_SUBRANGES + 1) : s->from_kbps;
}

/* Delay of the units of a stream, as differences of one to the next. */
struct lf_trend {
	lf_u32 steps, rising;
	lf_u64 first, last, way;
};

LF_INLINE void lf_trend_add(struct lf_trend *t, lf_u64 delay_us)
{
	if (!t->first) {
		t->first = delay_us;
	} else {
		t->steps++;
		t->rising += delay_us > t->last;
		t->way += delay_us > t->last ? delay_us - t->last : t->last - delay_us;
	}
	t->last = delay_us;
}

/* 1: delay grows; 2: it does not; 0: hard to say. */
LF_INLINE lf_u32 lf_trend_vote(const struct lf_trend *t)
{
	lf_u64 rise = t->last > t->first ? t->last - t->first : 0;
	lf_u32 pct = t->rising * 100 / lf_max(t->steps, 1);
	lf_u32 pdt = (lf_u32)(lf_min64(rise, LF_STREAM_MOST) * 100 / lf_max64(t->way, 1));

	if ((pct > 66 && pdt >= 45) || (pdt > 55 && pct >= 54))
		return 1;
	return pct < 54 && pdt < 45 ? 2 : 0;
}

LF_INLINE lf_u32 lf_gap_kbps(const struct lf_conn *c, const struct lf_sending *send, lf_u32 bytes, lf_u32 us)
{
	return us ? lf_full_rate(c, send, (lf_u64)bytes * 8000 / us) : 0;
}

/* Notes a stream's gaps in `to` and gives its vote. */
LF_LEAF lf_u32 lf_subranges_read(const struct lf_conn *c, const struct lf_stream *s, const struct lf_sending *send,
				 struct lf_gaps *gaps)
{
	struct lf_trend trend = { 0 };
	struct lf_gap *to;
	lf_u32 k;

	if (!c || !s || !send || !gaps)
		return 0;
	to = gaps->gap;
	if (s->unit[0].acked_bytes)
		lf_trend_add(&trend, 1 + (lf_u64)s->unit[0].acked_us - s->unit[0].sent_us);
	for (k = 0; k < LF_GAPS; k++) {
		const struct lf_unit *a = &s->unit[k], *b = &s->unit[k + 1];

		to[k].sent_kbps = lf_gap_kbps(c, send, a->end_bytes - (k ? s->unit[k - 1].end_bytes : 0),
					      b->sent_us - a->sent_us);
		to[k].arrived_kbps = 0;
		if (b->acked_bytes)
			lf_trend_add(&trend, 1 + (lf_u64)b->acked_us - b->sent_us);
		if (a->acked_bytes && b->acked_bytes)
			to[k].arrived_kbps = lf_gap_kbps(c, send, b->acked_bytes - a->acked_bytes,
							 b->acked_us - a->acked_us);
	}
	return lf_trend_vote(&trend);
}

/* Agreement of the votes with "it lies in sub-range a": above it delay grows, below it does not. Offset by 8. */
LF_INLINE lf_u32 lf_subranges_agreement(const struct lf_subranges *r, lf_u32 a)
{
	lf_u32 score = 8, k;

	for (k = 0; k < LF_SUBRANGES; k++) {
		lf_u32 up = (r->increasing >> k) & 1, down = (r->steady >> k) & 1;

		if (k > a)
			score += up - down;
		if (k < a)
			score += down - up;
	}
	return score;
}

/* Squared distance of points from their least-squares line, times their number; coordinates below 2^12. */
LF_LEAF lf_u64 lf_misfit(const struct lf_gaps *gaps, lf_u32 from, lf_u32 to, lf_u32 shift)
{
	lf_u64 n = 0, x = 0, y = 0, xx = 0, xy = 0, yy = 0, cov, both;
	const struct lf_gap *gap;
	lf_u32 k;

	if (!gaps)
		return 0;
	gap = gaps->gap;
	for (k = 0; k < LF_GAPS; k++) {
		lf_u64 a = lf_min(gap[k].sent_kbps >> shift, 4095), b = lf_min(gap[k].arrived_kbps >> shift, 4095);

		if (k < from || k >= to || !b)
			continue;
		n++;
		x += a;
		y += b;
		xx += a * a;
		xy += a * b;
		yy += b * b;
	}
	cov = n * xy > x * y ? n * xy - x * y : x * y - n * xy;
	both = n * yy - y * y;
	cov = cov * cov / lf_max64(n * xx - x * x, 1);
	return both > cov ? both - cov : 0;
}

/* Where arrival rate over send rate bends. 0: too few gaps are known. */
LF_LEAF lf_u32 lf_subranges_bend(const struct lf_gaps *gaps)
{
	lf_u32 known = 0, greatest = 0, shift, best = 3, k;
	const struct lf_gap *gap;
	lf_u64 least = ~0ull;

	if (!gaps)
		return 0;
	gap = gaps->gap;
	for (k = 0; k < LF_GAPS; k++) {
		known += gap[k].arrived_kbps != 0;
		greatest = lf_max(greatest, lf_max(gap[k].sent_kbps, gap[k].arrived_kbps));
	}
	if (known < 5)
		return 0;
	for (shift = 0; shift < 20; shift++)
		if (!(greatest >> shift >> 12))
			break;
	for (k = 2; k <= LF_GAPS - 2; k++) {
		lf_u64 misfit = lf_misfit(gaps, 0, k, shift) + lf_misfit(gaps, k, LF_GAPS, shift);

		if (misfit < least) {
			least = misfit;
			best = k;
		}
	}
	return (lf_u32)(((lf_u64)gap[(best - 1) & 7].sent_kbps + gap[best & 7].sent_kbps) / 2);
}

/* Standard deviation of the results since the range was last lost. */
LF_LEAF lf_u32 lf_subranges_deviation(const struct lf_subranges *r)
{
	lf_u64 q, mean, square;

	if (!r)
		return 0;
	q = lf_max(r->results, 1);
	mean = r->sum / q;
	square = r->squares / q;

	return square > mean * mean ? lf_square_root(lf_min64(square - mean * mean, 1ull << 61)) : 0;
}

/* The range around the mean of the results. */
LF_INLINE void lf_subranges_centre(struct lf_subranges *r)
{
	lf_u64 q = lf_max(r->results, 1), mean = r->sum / q;
	lf_u64 half = (lf_u64)lf_subranges_deviation(r) * 196 / (100ull * lf_max(lf_square_root(q), 1));

	half = lf_max64(half, lf_max64(mean / 10, 4));
	r->low_kbps = mean > half ? (lf_u32)lf_min64(mean - half, 0xfffffff0) : 1;
	r->high_kbps = (lf_u32)lf_min64(mean + half, 0xffffffff);
}

LF_INLINE void lf_subranges_note(struct lf_subranges *r, lf_u32 kbps)
{
	/* Bounded memory: beyond 64 results old ones fade. */
	if (r->results >= 64) {
		r->sum /= 2;
		r->squares /= 2;
		r->results /= 2;
	}
	kbps = lf_min(kbps, 1u << 28);
	r->sum += kbps;
	r->squares += (lf_u64)kbps * kbps;
	r->results++;
	r->missed = 0;
	r->smoothed_kbps = r->smoothed_kbps ? (lf_u32)(((lf_u64)r->smoothed_kbps * 88 + kbps * 12ull) / 100) : kbps;
	lf_subranges_centre(r);
}

/* It lies outside: above (1) or below (0). The width doubles after some misses in a row, so that any rate is found. */
LF_INLINE void lf_subranges_lose(struct lf_subranges *r, lf_u32 above)
{
	lf_u64 width = r->high_kbps > r->low_kbps ? r->high_kbps - r->low_kbps : 1;
	lf_u64 step = lf_max64(width / 2, 4);

	r->sum = 0;
	r->squares = 0;
	r->results = 0;
	r->missed++;
	if (above) {
		r->high_kbps = (lf_u32)lf_min64(r->high_kbps + step, 0xffffffff);
		r->smoothed_kbps = lf_max(r->smoothed_kbps, lf_subrange(r, LF_SUBRANGES - 1));
	} else {
		r->low_kbps = r->low_kbps > step + 1 ? (lf_u32)(r->low_kbps - step) : lf_max(r->low_kbps / 2, 1);
		r->smoothed_kbps = lf_min(r->smoothed_kbps, lf_subrange(r, 1));
	}
}

/* Four streams are in. Returns whether it lies within the range. */
LF_LEAF lf_u32 lf_subranges_decide(struct lf_subranges *r)
{
	lf_u32 a = 0, k, bend;

	if (!r)
		return 0;
	for (k = 1; k < LF_SUBRANGES; k++)
		if (lf_subranges_agreement(r, k) >= lf_subranges_agreement(r, a))
			a = k;
	if (r->increasing == 15 || (a == 0 && r->increasing & 1)) {
		lf_subranges_lose(r, 0);
		return 0;
	}
	if (r->steady == 15 || (a == LF_SUBRANGES - 1 && r->steady >> a)) {
		lf_subranges_lose(r, 1);
		return 0;
	}
	bend = lf_subranges_bend(&r->of[a & (LF_SUBRANGES - 1)]);
	if (!bend)
		bend = (lf_u32)(((lf_u64)lf_subrange(r, a) + lf_subrange(r, a + 1)) / 2);
	lf_subranges_note(r, bend);
	return 1;
}

/* Returns whether there is a new result. */
LF_INLINE lf_u32 lf_subranges_take(const struct lf_conn *c, struct lf_subranges *r, const struct lf_stream *s,
				   const struct lf_sending *send, const struct lf_pass *pass)
{
	lf_u32 number = r->next % LF_SUBRANGES, vote;

	if (!r->high_kbps) {
		r->high_kbps = lf_max(pass->arrived_kbps, 2);
		r->low_kbps = r->high_kbps / 2;
		r->next = 0;
		return 0;
	}
	vote = lf_subranges_read(c, s, send, &r->of[number]);
	r->increasing = (r->increasing & ~(1u << number)) | (vote == 1) << number;
	r->steady = (r->steady & ~(1u << number)) | (vote == 2) << number;
	r->next = number + 1;
	if (r->next < LF_SUBRANGES)
		return 0;
	r->next = 0;
	lf_subranges_decide(r);
	return r->smoothed_kbps != 0;
}

#endif
