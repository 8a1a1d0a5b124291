/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * Available bandwidth from the strain of measurement streams, by a Kalman filter.
 *
 * Model      A stream sent at rate u above the available bandwidth A of a bottleneck of capacity C stretches on its way
 *            by the strain (u - A) / C (fluid cross traffic), and so it does below A while the bottleneck has a
 *            queue. The state is (ln A, ln C); strain is linear in neither, so the filter is an extended one.
 *            The first stream is a train, sent as fast as may be: it arrives at somewhat less than C.
 * Noise      of the strain is learnt from the innovations. A change of A beyond what the filter follows shows as
 *            innovations of one sign (CUSUM, slack of half a deviation); then A is taken for unknown again.
 *            What a full path lets through (full.h) is A itself, and tells it ten times as well as a stream does.
 * Units      rates in kbit/s; strain in Q16; variances of ln A, of ln C and of the strain in Q32.
 * Reference  Ekelin et al. 2006 (BART): strain and a Kalman filter on the two coefficients of the line; here on A and
 *            C, whose meaning allows bounds.
 */
#ifndef LONGFAT_KALMAN_H
#define LONGFAT_KALMAN_H

#include "fixed.h"
#include "root.h"
#include "stream.h"

struct lf_kalman {
	lf_s64 var_a;    /* of ln A */
	lf_s64 var_ac;   /* covariance */
	lf_s64 var_c;    /* of ln C */
	lf_s64 noise;    /* variance of the strain */
	lf_s64 rise;     /* CUSUM of innovations that say "more than A", Q16 of a deviation */
	lf_s64 fall;     /* less */
	lf_u32 a_kbps;   /* 0: nothing known */
	lf_u32 c_kbps;
	lf_u32 round;
	lf_u32 zero;
};

/* Deviations squared, in Q32: 0.5, 0.2, 0.012, 0.002, 0.08, 0.01, 0.35, 0.02. */
#define LF_KALMAN_VAR_A (1ll << 30)
#define LF_KALMAN_VAR_C 171798692ll
#define LF_KALMAN_DRIFT_A 618475ll
#define LF_KALMAN_DRIFT_C 17180ll
#define LF_KALMAN_NOISE 27487791ll
#define LF_KALMAN_NOISE_LEAST 429497ll
#define LF_KALMAN_NOISE_MOST 526133494ll
#define LF_KALMAN_RATE_NOISE 1717987ll
/* A deviation of 0.3 of A after a step. */
#define LF_KALMAN_STEP 386547057ll
#define LF_KALMAN_SLACK (LF_ONE_Q16 / 2)
#define LF_KALMAN_ALARM (4 * LF_ONE_Q16)

/*
 * Rate of the next stream: from A and a fifth to A and four fifths, so that the strain tells A from C. The first is a
 * train. `is_gentle`: to seven twentieths, and one in five to A and a quarter of C. Close to A bursty cross traffic
 * bends the line (strain begins below A), and by such streams alone C grows and A falls without end.
 */
LF_INLINE lf_u32 lf_kalman_next(const struct lf_kalman *k, lf_u32 train_kbps, lf_u32 is_gentle)
{
	lf_u32 step = k->round * 2 % 5;
	lf_u64 kbps = (lf_u64)k->a_kbps * (120 + (is_gentle ? 5 : 15) * step) / 100;

	if (!k->a_kbps)
		return lf_max(train_kbps, 1);
	if (is_gentle && step == 4)
		kbps = (lf_u64)k->a_kbps + k->c_kbps / 4;
	kbps = lf_max64(kbps, (lf_u64)k->a_kbps + k->c_kbps / 16);
	return (lf_u32)lf_min64(lf_max64(kbps, 1), 0xffffffff);
}

LF_INLINE void lf_kalman_begin(struct lf_kalman *k, const struct lf_pass *pass)
{
	/* Not stretched: the train was no faster than the path, which may be wider by anything. */
	lf_u32 is_open = pass->sent_kbps < pass->arrived_kbps + pass->arrived_kbps / 8;

	k->c_kbps = (lf_u32)lf_min64((lf_u64)pass->arrived_kbps * (is_open ? 24 : 17) / 16, 0xffffffff);
	k->a_kbps = is_open ? pass->arrived_kbps : (lf_u32)((lf_u64)pass->arrived_kbps * 3 / 4);
	k->a_kbps = lf_max(k->a_kbps, 1);
	k->var_a = LF_KALMAN_VAR_A;
	k->var_c = LF_KALMAN_VAR_C * (is_open ? 4 : 1);
	k->var_ac = 0;
	k->noise = LF_KALMAN_NOISE;
	k->rise = 0;
	k->fall = 0;
}

enum lf_step { LF_STEP_NONE = 0, LF_STEP_DOWN = 1, LF_STEP_UP = 2 };

/* The step that it notices (enum lf_step); `sigma` is the deviation of the innovation. */
LF_LEAF lf_u32 lf_kalman_watch(struct lf_kalman *k, lf_s64 innovation, lf_u32 sigma)
{
	/* More strain than expected is less bandwidth. */
	lf_s64 score = lf_clamp(lf_divide(innovation << 16, sigma), -4 * LF_ONE_Q16, 4 * LF_ONE_Q16);
	lf_u32 step;

	if (!k)
		return LF_STEP_NONE;
	k->fall = lf_clamp(k->fall + score - LF_KALMAN_SLACK, 0, 16 * LF_ONE_Q16);
	k->rise = lf_clamp(k->rise - score - LF_KALMAN_SLACK, 0, 16 * LF_ONE_Q16);
	if (k->fall < LF_KALMAN_ALARM && k->rise < LF_KALMAN_ALARM)
		return LF_STEP_NONE;
	step = k->rise < LF_KALMAN_ALARM ? LF_STEP_DOWN : LF_STEP_UP;
	k->var_a = lf_clamp(k->var_a + LF_KALMAN_STEP, 0, LF_KALMAN_VAR_A);
	k->fall = 0;
	k->rise = 0;
	return step;
}

/* Innovations are noise and error: what exceeds the error is learnt as noise, a sixteenth each time. */
LF_INLINE void lf_kalman_learn_noise(struct lf_kalman *k, lf_s64 innovation, lf_s64 error)
{
	lf_s64 seen = lf_clamp(innovation * innovation - error, 0, LF_KALMAN_NOISE_MOST);

	k->noise = lf_clamp(k->noise + ((seen - k->noise) >> 4), LF_KALMAN_NOISE_LEAST, LF_KALMAN_NOISE_MOST);
}

/* Keeps what a garbled state could break: variances positive, the covariance not above their mean. */
LF_INLINE void lf_kalman_bound(struct lf_kalman *k)
{
	lf_s64 most;

	k->noise = lf_clamp(k->noise, LF_KALMAN_NOISE_LEAST, LF_KALMAN_NOISE_MOST);
	k->var_a = lf_clamp(k->var_a, LF_KALMAN_DRIFT_A, LF_KALMAN_VAR_A);
	k->var_c = lf_clamp(k->var_c, LF_KALMAN_DRIFT_C, LF_KALMAN_VAR_A);
	most = (lf_s64)lf_square_root((lf_u64)k->var_a) * lf_square_root((lf_u64)k->var_c);
	k->var_ac = lf_clamp(k->var_ac, 0 - most, most);
	k->c_kbps = lf_max(k->c_kbps, 1);
	k->a_kbps = lf_min(k->a_kbps, k->c_kbps);
}

/* Corrects the filter by a strain that differs by `innovation` from `expected`. Returns the step that it shows. */
LF_INLINE lf_u32 lf_kalman_correct(struct lf_kalman *k, lf_s64 innovation, lf_s64 expected)
{
	/* Derivatives of the strain by ln A and ln C. */
	lf_s64 h_a = 0 - (lf_s64)(((lf_u64)k->a_kbps << 16) / k->c_kbps), h_c = 0 - expected;
	lf_s64 ph_a = (k->var_a * h_a + k->var_ac * h_c) >> 16;
	lf_s64 ph_c = (k->var_ac * h_a + k->var_c * h_c) >> 16;
	lf_s64 error = lf_clamp((ph_a * h_a + ph_c * h_c) >> 16, 0, 1ll << 34);
	lf_s64 total = error + k->noise;
	lf_s64 gain_a = lf_divide(ph_a << 16, (lf_u64)total), gain_c = lf_divide(ph_c << 16, (lf_u64)total);
	lf_u32 step;

	lf_kalman_learn_noise(k, innovation, error);
	k->a_kbps = lf_scale(k->a_kbps, lf_clamp((gain_a * innovation) >> 16, -32768, 32768));
	k->c_kbps = lf_scale(k->c_kbps, lf_clamp((gain_c * innovation) >> 16, -16384, 16384));
	k->var_a -= (gain_a * ph_a) >> 16;
	k->var_ac -= (gain_a * ph_c) >> 16;
	k->var_c -= (gain_c * ph_c) >> 16;
	step = lf_kalman_watch(k, innovation, lf_square_root((lf_u64)total));
	lf_kalman_bound(k);
	return step;
}

/*
 * Nothing arrives faster than the capacity: where a stream did by more than an eighth, the capacity was underestimated,
 * as by a train that a small window made slow. It held A down if A lay close to it, and single steps of the filter
 * would take minutes.
 */
LF_INLINE void lf_kalman_widen(struct lf_kalman *k, const struct lf_pass *pass)
{
	lf_u32 is_open = pass->sent_kbps < pass->arrived_kbps + pass->arrived_kbps / 8 &&
			 k->a_kbps >= k->c_kbps - k->c_kbps / 8;

	if (pass->arrived_kbps <= k->c_kbps + (lf_u64)k->c_kbps / 8)
		return;
	k->c_kbps = (lf_u32)lf_min64((lf_u64)pass->arrived_kbps * (is_open ? 24 : 18) / 16, 0xffffffff);
	k->var_c = LF_KALMAN_VAR_C * 4;
	k->var_ac = 0;
	if (is_open) {
		k->a_kbps = lf_max(k->a_kbps, pass->arrived_kbps);
		k->var_a = LF_KALMAN_VAR_A;
	}
}

/* What a stream tells. Returns the step that it shows, enum lf_step. */
LF_LEAF lf_u32 lf_kalman_take(struct lf_kalman *k, const struct lf_pass *pass)
{
	lf_s64 strain, expected;

	if (!k || !pass)
		return LF_STEP_NONE;
	k->round++;
	if (!k->a_kbps) {
		lf_kalman_begin(k, pass);
		return LF_STEP_NONE;
	}
	k->var_a += LF_KALMAN_DRIFT_A;
	k->var_c += LF_KALMAN_DRIFT_C;
	lf_kalman_widen(k, pass);
	lf_kalman_bound(k);
	strain = (lf_s64)(((lf_u64)pass->sent_kbps << 16) / lf_max(pass->arrived_kbps, 1)) - LF_ONE_Q16;
	strain = lf_clamp(strain, -LF_ONE_Q16 / 2, 4 * LF_ONE_Q16);
	expected = (lf_s64)(((lf_u64)pass->sent_kbps << 16) / k->c_kbps) -
		   (lf_s64)(((lf_u64)k->a_kbps << 16) / k->c_kbps);
	expected = lf_clamp(expected, -LF_ONE_Q16, 4 * LF_ONE_Q16);
	/* Sent below A, and not stretched: as it should be, if there was no queue. It tells nothing more. */
	if (expected < 0 && strain > expected && strain < LF_ONE_Q16 / 32)
		return LF_STEP_NONE;
	return lf_kalman_correct(k, strain - expected, expected);
}

/* What a full path let through: A. Returns whether it told anything. */
LF_LEAF lf_u32 lf_kalman_take_rate(struct lf_kalman *k, lf_u32 kbps)
{
	lf_s64 innovation, total, gain_a, gain_c;

	if (!k || !k->a_kbps || !kbps)
		return 0;
	/* Single round trips may have been counted too high, by acknowledgements that came together. */
	if (kbps > k->c_kbps)
		k->c_kbps += (kbps - k->c_kbps) / 8;
	k->var_a += LF_KALMAN_DRIFT_A;
	lf_kalman_bound(k);
	innovation = lf_clamp((lf_s64)(((lf_u64)kbps << 16) / k->a_kbps) - LF_ONE_Q16, -LF_ONE_Q16 / 2, LF_ONE_Q16);
	total = k->var_a + LF_KALMAN_RATE_NOISE;
	gain_a = lf_divide(k->var_a << 16, (lf_u64)total);
	gain_c = lf_divide(k->var_ac << 16, (lf_u64)total);
	k->a_kbps = lf_scale(k->a_kbps, (gain_a * innovation) >> 16);
	k->c_kbps = lf_scale(k->c_kbps, lf_clamp((gain_c * innovation) >> 16, -16384, 16384));
	k->var_c -= (gain_c * k->var_ac) >> 16;
	k->var_ac -= (gain_a * k->var_ac) >> 16;
	k->var_a -= (gain_a * k->var_a) >> 16;
	lf_kalman_bound(k);
	return 1;
}

/* Standard deviation of what single streams say, as a part of the capacity. */
LF_INLINE lf_u32 lf_kalman_spread_q16(const struct lf_kalman *k)
{
	return lf_square_root((lf_u64)lf_clamp(k->noise, 0, LF_KALMAN_NOISE_MOST));
}

/* Standard deviation of A. */
LF_INLINE lf_u32 lf_kalman_deviation(const struct lf_kalman *k)
{
	lf_u64 part_q16 = lf_square_root((lf_u64)lf_clamp(k->var_a, 0, LF_KALMAN_VAR_A));

	return (lf_u32)((k->a_kbps * part_q16) >> 16);
}

#endif
