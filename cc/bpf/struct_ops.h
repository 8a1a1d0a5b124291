/* SPDX-License-Identifier: GPL-2.0 */
/*
 * From the kernel's callbacks to the contract and back: the whole of what stands between an algorithm's header and a
 * struct_ops congestion control. NAME.bpf.c says LF_STRUCT_OPS(NAME, LF_NAME_TUNABLES, LF_NAME_OPTIONAL) and nothing
 * else.
 */
#ifndef LONGFAT_STRUCT_OPS_H
#define LONGFAT_STRUCT_OPS_H

#include "kernel.h"
#include "../include/record.h"
#include "../include/window.h"

/* Filled by the loader before loading, constant afterwards: so the verifier drops the recording when it is off. */
struct lf_settings {
	lf_u64 build_id; /* of the sources; lets another process recognise its own */
	lf_u32 record;   /* 1: write every callback to `records` */
	lf_u32 zero;
};

/* Its size is set by the loader when recording; a page otherwise, because the kernel has no smaller ones. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} records SEC(".maps");

/* Callbacks that found no room in `records`. */
__u64 records_lost SEC(".bss.lost");

LF_INLINE void lf_from_kernel(struct lf_conn *c, const struct tcp_sock *tp)
{
	c->now_us = tp->tcp_mstamp;
	c->cwnd_segments = tp->snd_cwnd;
	c->cwnd_credit_segments = tp->snd_cwnd_cnt;
	c->ssthresh_segments = tp->snd_ssthresh;
	c->cwnd_clamp_segments = tp->snd_cwnd_clamp;
	c->prior_cwnd_segments = tp->prior_cwnd;
	c->flight_segments = tp->packets_out - tp->sacked_out - tp->lost_out + tp->retrans_out;
	c->max_flight_segments = tp->max_packets_out;
	c->is_cwnd_limited = BPF_CORE_READ_BITFIELD(tp, is_cwnd_limited);
	c->ca_state = BPF_CORE_READ_BITFIELD(&tp->inet_conn, icsk_ca_state);
	c->mss_bytes = tp->mss_cache;
	c->srtt_us = tp->srtt_us >> 3;
	c->min_rtt_us = tp->rtt_min.s[0].v;
}

LF_INLINE void lf_to_kernel(struct tcp_sock *tp, const struct lf_conn *c)
{
	tp->snd_cwnd = c->cwnd_segments;
	tp->snd_cwnd_cnt = c->cwnd_credit_segments;
	tp->snd_ssthresh = c->ssthresh_segments;
}

LF_INLINE void lf_copy_state(lf_u64 *to, const struct tcp_sock *tp)
{
	int word;

	for (word = 0; word < LF_STATE_BYTES / 8; word++)
		to[word] = tp->inet_conn.icsk_ca_priv[word];
}

LF_INLINE struct lf_record *lf_record_begin(const volatile struct lf_settings *settings, lf_u32 op,
					    const struct tcp_sock *tp, const struct lf_conn *c, lf_u32 acked,
					    lf_u32 rtt_us)
{
	struct lf_record *record;

	if (!settings->record)
		return 0;
	record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);
	if (!record) {
		__sync_fetch_and_add(&records_lost, 1);
		return 0;
	}
	record->conn_id = (lf_u64)tp;
	record->op = op;
	record->ack.acked_segments = acked;
	record->rtt_us = rtt_us;
	record->before = *c;
	lf_copy_state(record->state_before, tp);
	return record;
}

LF_INLINE void lf_record_end(struct lf_record *record, const struct tcp_sock *tp, const struct lf_conn *c,
			     lf_u32 result)
{
	if (!record)
		return;
	record->after = *c;
	record->result = result;
	lf_copy_state(record->state_after, tp);
	/* A wake-up per callback would cost more than the callback; the reader polls. */
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
}

/* What every callback begins with; `state` is the algorithm's own view of icsk_ca_priv. */
#define LF_ENTER(cc, op, acked, rtt_us) \
	struct tcp_sock *tp = (struct tcp_sock *)sk; \
	struct lf_##cc##_state *state = (void *)tp->inet_conn.icsk_ca_priv; \
	struct lf_##cc##_tunables tunables = lf_settings.tunables; \
	struct lf_conn conn; \
	struct lf_record *record; \
	lf_from_kernel(&conn, tp); \
	record = lf_record_begin(&lf_settings.head, op, tp, &conn, acked, rtt_us)

/* One program for each optional function an algorithm has, and its place among the kernel's callbacks. */
#define LF_PROGRAM(cc, function) LF_PROGRAM_##function(cc)
#define LF_MEMBER(cc, function) LF_MEMBER_##function(cc)

#define LF_MEMBER_on_rtt_sample(cc) .pkts_acked = (void *)cc##_pkts_acked,
#define LF_PROGRAM_on_rtt_sample(cc) \
	SEC("struct_ops") \
	void BPF_PROG(cc##_pkts_acked, struct sock *sk, const struct ack_sample *sample) \
	{ \
		__s32 rtt_us = sample->rtt_us; \
		if (rtt_us < 0) \
			return; \
		/* A round trip of less than a microsecond counts as one: algorithms divide by it. */ \
		rtt_us = rtt_us ? rtt_us : 1; \
		LF_ENTER(cc, LF_OP_ON_RTT_SAMPLE, 0, rtt_us); \
		lf_##cc##_on_rtt_sample(&conn, state, &tunables, rtt_us); \
		lf_record_end(record, tp, &conn, 0); \
	}

#define LF_MEMBER_on_restart(cc) .cwnd_event = (void *)cc##_cwnd_event,
#define LF_PROGRAM_on_restart(cc) \
	SEC("struct_ops") \
	void BPF_PROG(cc##_cwnd_event, struct sock *sk, enum tcp_ca_event event) \
	{ \
		if (event != CA_EVENT_TX_START) \
			return; \
		LF_ENTER(cc, LF_OP_ON_RESTART, 0, 0); \
		lf_##cc##_on_restart(&conn, state, &tunables); \
		lf_record_end(record, tp, &conn, 0); \
	}

#define LF_STRUCT_OPS(cc, TUNABLES, OPTIONAL) \
	const volatile struct { \
		struct lf_settings head; \
		struct lf_##cc##_tunables tunables; \
	} lf_settings SEC(".rodata.lf") = { .tunables = { TUNABLES(LF_TUNABLE_DEFAULT) } }; \
	\
	SEC("struct_ops") \
	void BPF_PROG(cc##_init, struct sock *sk) \
	{ \
		LF_ENTER(cc, LF_OP_INIT, 0, 0); \
		lf_##cc##_init(&conn, state, &tunables); \
		lf_to_kernel(tp, &conn); \
		lf_record_end(record, tp, &conn, 0); \
	} \
	\
	SEC("struct_ops") \
	void BPF_PROG(cc##_cong_avoid, struct sock *sk, __u32 seq, __u32 acked) \
	{ \
		LF_ENTER(cc, LF_OP_ON_ACK, acked, 0); \
		struct lf_ack ack = { .acked_segments = acked }; \
		lf_##cc##_on_ack(&conn, state, &tunables, &ack); \
		lf_to_kernel(tp, &conn); \
		lf_record_end(record, tp, &conn, 0); \
	} \
	\
	SEC("struct_ops") \
	__u32 BPF_PROG(cc##_ssthresh, struct sock *sk) \
	{ \
		LF_ENTER(cc, LF_OP_SSTHRESH, 0, 0); \
		lf_u32 result = lf_##cc##_ssthresh(&conn, state, &tunables); \
		lf_record_end(record, tp, &conn, result); \
		return result; \
	} \
	\
	SEC("struct_ops") \
	__u32 BPF_PROG(cc##_undo_cwnd, struct sock *sk) \
	{ \
		LF_ENTER(cc, LF_OP_UNDO_CWND, 0, 0); \
		lf_u32 result = lf_##cc##_undo_cwnd(&conn, state, &tunables); \
		lf_record_end(record, tp, &conn, result); \
		return result; \
	} \
	\
	OPTIONAL(LF_PROGRAM) \
	SEC(".struct_ops.link") \
	struct tcp_congestion_ops lf_##cc = { \
		.init = (void *)cc##_init, \
		.ssthresh = (void *)cc##_ssthresh, \
		.undo_cwnd = (void *)cc##_undo_cwnd, \
		.cong_avoid = (void *)cc##_cong_avoid, \
		OPTIONAL(LF_MEMBER) \
		.name = "lf_" #cc, \
	}; \
	\
	char LICENSE[] SEC("license") = "GPL"

#endif
