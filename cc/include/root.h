/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/* Roots of whole numbers, in a fixed number of steps without branches: the BPF verifier follows every branch. */
#ifndef LONGFAT_ROOT_H
#define LONGFAT_ROOT_H

#include "longfat_cc.h"

/*
 * The greatest number whose cube is at most `x`, for x below 2^63. Newton's method from a power of two that is above
 * the root and at most twice it: the error of 1 becomes 0.42, 0.11, 0.011, 1e-4, 1e-8, and whole numbers round down,
 * never below the root.
 */
LF_INLINE lf_u32 lf_cube_root(lf_u64 x)
{
	lf_u64 root;
	lf_u32 bits = 0, step;

	if (!x)
		return 0;
	while (bits < 21 && x >> (3 * bits))
		bits++;
	root = 1ull << bits;
	for (step = 0; step < 7; step++)
		root = (2 * root + x / (root * root)) / 3;
	return (lf_u32)(root * root * root > x ? root - 1 : root);
}

/* The greatest number whose square is at most `x`, for x below 2^62. As above; six steps bring 2 to 1 + 2^-60. */
LF_LEAF lf_u32 lf_square_root(lf_u64 x)
{
	lf_u64 root;
	lf_u32 bits = 0, step;

	if (!x)
		return 0;
	for (step = 32; step; step >>= 1)
		if (bits + step <= 62 && x >> (bits + step - 1))
			bits += step;
	root = 1ull << ((bits + 1) / 2);
	for (step = 0; step < 6; step++)
		root = (root + x / root) / 2;
	return (lf_u32)(root * root > x ? root - 1 : root);
}

#endif
