/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * One callback as it ran in the kernel: inputs, private state before, and all it changed. Replaying it natively must
 * give the same bytes. No padding.
 */
#ifndef LONGFAT_RECORD_H
#define LONGFAT_RECORD_H

#include "longfat_cc.h"

enum lf_op {
	LF_OP_INIT = 0,
	LF_OP_ON_ACK = 1,
	LF_OP_SSTHRESH = 2,
	LF_OP_UNDO_CWND = 3,
	LF_OP_ON_RTT_SAMPLE = 4,
	LF_OP_ON_RESTART = 5,
	LF_OP_ON_SEND = 6,
	LF_OP_ON_ACK_SEEN = 7,
};

struct lf_record {
	lf_u64 conn_id; /* same value, same connection, while that lives */
	lf_u32 op;      /* enum lf_op */
	lf_u32 result;  /* what ssthresh, undo_cwnd and on_send return, in segments */
	struct lf_ack ack;
	lf_u32 rtt_us; /* of LF_OP_ON_RTT_SAMPLE; 0 for others */
	struct lf_conn before;
	struct lf_conn after;
	struct lf_sending sending_before; /* of LF_OP_ON_SEND and LF_OP_ON_ACK_SEEN; 0 for others */
	struct lf_sending sending_after;
	/* Of the algorithm's size, the rest 0. */
	lf_u64 state_before[LF_LARGE_STATE_BYTES / 8];
	lf_u64 state_after[LF_LARGE_STATE_BYTES / 8];
};

#endif
