/* SPDX-License-Identifier: GPL-2.0 */
/*
 * From the kernel's callbacks to the contract and back: the whole of what stands between an algorithm's header and a
 * struct_ops congestion control. NAME.bpf.c says LF_STRUCT_OPS(NAME, LF_NAME_TUNABLES, LF_NAME_OPTIONAL) and nothing
 * else; that of an algorithm that measures defines LF_MEASURES before it includes this.
 */
#ifndef LONGFAT_STRUCT_OPS_H
#define LONGFAT_STRUCT_OPS_H

#include "kernel.h"
#include "saved.h"
#include "../include/record.h"
#include "../include/window.h"

/* Filled by the loader before loading, constant afterwards: so the verifier drops the recording when it is off. */
struct lf_settings {
	lf_u64 build_id; /* of the sources; lets another process recognise its own */
	lf_u32 record;   /* 1: write every callback to `records` */
	lf_u32 dilation; /* the connection's time passes so many times slower than the kernel's; 0 is 1 */
};

/* Its size is set by the loader when recording; a page otherwise, because the kernel has no smaller ones. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} records SEC(".maps");

/* Callbacks that found no room in `records`. */
__u64 records_lost SEC(".bss.lost");

LF_INLINE lf_u32 lf_dilation(const volatile struct lf_settings *settings)
{
	lf_u32 dilation = settings->dilation;

	return dilation ? dilation : 1;
}

/* A time of the kernel's in the connection's own. */
LF_INLINE lf_u32 lf_own_us(lf_u32 us, lf_u32 dilation)
{
	/* "Never measured" is no time. A round trip of less than a microsecond counts as one: algorithms divide by it. */
	return us == 0 || us == 0xffffffffu ? us : lf_max(us / dilation, 1);
}

LF_INLINE void lf_from_kernel(struct lf_conn *c, const struct tcp_sock *tp, lf_u32 dilation)
{
	c->now_us = tp->tcp_mstamp / dilation;
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
	c->srtt_us = lf_own_us(tp->srtt_us >> 3, dilation);
	c->min_rtt_us = lf_own_us(tp->rtt_min.s[0].v, dilation);
}

LF_INLINE void lf_to_kernel(struct tcp_sock *tp, const struct lf_conn *c)
{
	tp->snd_cwnd = c->cwnd_segments;
	tp->snd_cwnd_cnt = c->cwnd_credit_segments;
	tp->snd_ssthresh = c->ssthresh_segments;
}

#ifdef LF_MEASURES

/* Private state, too large for icsk_ca_priv; `longfat avail` reads its beginning. */
struct lf_large_state {
	lf_u64 words[LF_LARGE_STATE_BYTES / 8];
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct lf_large_state);
} lf_states SEC(".maps");

LF_INLINE void *lf_state_of(struct sock *sk, lf_u32 op)
{
	struct lf_large_state *state;
	int word;

	if (op != LF_OP_INIT)
		return bpf_sk_storage_get(&lf_states, sk, 0, 0);
	state = bpf_sk_storage_get(&lf_states, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!state)
		return 0;
	/* The socket may have had this congestion control before. */
	for (word = 0; word < LF_LARGE_STATE_BYTES / 8; word++)
		state->words[word] = 0;
	if (sk->sk_pacing_status == SK_PACING_NONE)
		sk->sk_pacing_status = SK_PACING_NEEDED;
	return state;
}

LF_INLINE void lf_copy_state(lf_u64 *to, const lf_u64 *state)
{
	int word;

	for (word = 0; word < LF_LARGE_STATE_BYTES / 8; word++)
		to[word] = state[word];
}

/* Without memory for its state a connection is Reno. */
LF_INLINE void lf_without_state(struct lf_conn *c, const struct lf_ack *ack)
{
	struct lf_reno_tunables tunables = { 0 };

	lf_reno_on_ack(c, 0, &tunables, ack);
}

#define LF_STATE_OR(cc, op, otherwise) \
	struct lf_##cc##_state *state = lf_state_of(sk, op); \
	if (!state) { \
		otherwise; \
	}

#else

#define LF_STATE_OR(cc, op, otherwise) \
	struct lf_##cc##_state *state = (void *)tp->inet_conn.icsk_ca_priv;

LF_INLINE void lf_copy_state(lf_u64 *to, const lf_u64 *state)
{
	int word;

	for (word = 0; word < LF_STATE_BYTES / 8; word++)
		to[word] = state[word];
	for (; word < LF_LARGE_STATE_BYTES / 8; word++)
		to[word] = 0;
}

#endif

/* From here on a rate in bytes per second is no limit, at any speed of time: the kernel's is all ones. */
#define LF_NO_LIMIT (1ull << 48)

LF_INLINE lf_u64 lf_own_rate(lf_u64 rate, lf_u32 dilation)
{
	return rate >= LF_NO_LIMIT ? rate : rate * dilation;
}

LF_INLINE lf_u64 lf_kernel_rate(lf_u64 rate, lf_u32 dilation)
{
	return rate >= LF_NO_LIMIT * dilation ? rate : rate / dilation;
}

LF_INLINE void lf_sending_from_kernel(struct lf_sending *send, const struct sock *sk, const struct tcp_sock *tp,
				      lf_u32 dilation)
{
	lf_u64 rate = lf_own_rate(sk->sk_pacing_rate, dilation), burst;
	lf_u32 mss = tp->mss_cache ? tp->mss_cache : 1;

	burst = (rate >> (sk->sk_pacing_shift & 63)) / mss;
	if (burst > sk->sk_gso_max_segs)
		burst = sk->sk_gso_max_segs;
	send->pacing_bytes_per_s = rate;
	send->next_seq = tp->snd_nxt;
	send->una_seq = tp->snd_una;
	send->unsent_bytes = tp->write_seq - tp->snd_nxt;
	send->packet_bytes = tp->mss_cache + tp->tcp_header_len + (sk->__sk_common.skc_family == AF_INET6 ? 40 : 20);
	send->burst_segments = lf_max((lf_u32)burst, 2);
	send->repair_segments = tp->sacked_out + tp->lost_out + tp->retrans_out;
}

LF_INLINE struct lf_record *lf_record_begin(const volatile struct lf_settings *settings, lf_u32 op,
					    const struct tcp_sock *tp, const void *state, const struct lf_conn *c,
					    lf_u32 acked, lf_u32 rtt_us)
{
	struct lf_sending none = { 0 };
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
	record->sending_before = none;
	record->sending_after = none;
	lf_copy_state(record->state_before, state);
	return record;
}

LF_INLINE void lf_record_end(struct lf_record *record, const void *state, const struct lf_conn *c, lf_u32 result)
{
	if (!record)
		return;
	record->after = *c;
	record->result = result;
	lf_copy_state(record->state_after, state);
	/* A wake-up per callback would cost more than the callback; the reader polls. */
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
}

/* What every callback begins with; `state` is the algorithm's private one. `otherwise` where there is none. */
#define LF_ENTER(cc, op, acked, rtt_us, otherwise) \
	struct tcp_sock *tp = (struct tcp_sock *)sk; \
	struct lf_##cc##_tunables tunables = lf_settings.tunables; \
	lf_u32 dilation = lf_dilation(&lf_settings.head); \
	struct lf_conn conn; \
	struct lf_record *record; \
	lf_from_kernel(&conn, tp, dilation); \
	LF_STATE_OR(cc, op, otherwise) \
	record = lf_record_begin(&lf_settings.head, op, tp, state, &conn, acked, rtt_us)

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
		rtt_us = lf_own_us(rtt_us ? rtt_us : 1, lf_dilation(&lf_settings.head)); \
		LF_ENTER(cc, LF_OP_ON_RTT_SAMPLE, 0, rtt_us, return); \
		lf_##cc##_on_rtt_sample(&conn, state, &tunables, rtt_us); \
		lf_record_end(record, state, &conn, 0); \
	}

/* The loader keeps the one of the two that the kernel calls. */
#define LF_MEMBER_on_restart(cc) \
	.cwnd_event = (void *)cc##_cwnd_event, \
	.cwnd_event_tx_start = (void *)cc##_cwnd_event_tx_start,
#define LF_PROGRAM_on_restart(cc) \
	LF_INLINE void cc##_restart(struct sock *sk) \
	{ \
		LF_ENTER(cc, LF_OP_ON_RESTART, 0, 0, return); \
		lf_##cc##_on_restart(&conn, state, &tunables); \
		lf_record_end(record, state, &conn, 0); \
	} \
	\
	SEC("struct_ops") \
	void BPF_PROG(cc##_cwnd_event, struct sock *sk, enum tcp_ca_event event) \
	{ \
		if (event == CA_EVENT_TX_START) \
			cc##_restart(sk); \
	} \
	\
	SEC("struct_ops") \
	void BPF_PROG(cc##_cwnd_event_tx_start, struct sock *sk) \
	{ \
		cc##_restart(sk); \
	}

/* What a sender is about to do goes with the record, too. */
#define LF_SENDING(sk, tp, record) \
	struct lf_sending send; \
	lf_sending_from_kernel(&send, sk, tp, dilation); \
	if (record) \
		record->sending_before = send

/* Called by tcp_write_xmit just before a send that the window or pacing may still stop. */
#define LF_MEMBER_on_send(cc) .min_tso_segs = (void *)cc##_min_tso_segs,
#define LF_PROGRAM_on_send(cc) \
	SEC("struct_ops") \
	__u32 BPF_PROG(cc##_min_tso_segs, struct sock *sk) \
	{ \
		LF_ENTER(cc, LF_OP_ON_SEND, 0, 0, return 2); \
		LF_SENDING(sk, tp, record); \
		lf_u64 rate = send.pacing_bytes_per_s; \
		lf_u32 burst = lf_##cc##_on_send(&conn, state, &tunables, &send); \
		lf_to_kernel(tp, &conn); \
		if (send.pacing_bytes_per_s != rate) \
			sk->sk_pacing_rate = lf_kernel_rate(send.pacing_bytes_per_s, dilation); \
		if (record) \
			record->sending_after = send; \
		lf_record_end(record, state, &conn, burst); \
		return burst; \
	}

#define LF_MEMBER_on_ack_seen(cc) .in_ack_event = (void *)cc##_in_ack_event,
#define LF_PROGRAM_on_ack_seen(cc) \
	SEC("struct_ops") \
	void BPF_PROG(cc##_in_ack_event, struct sock *sk, __u32 flags) \
	{ \
		LF_ENTER(cc, LF_OP_ON_ACK_SEEN, 0, 0, return); \
		LF_SENDING(sk, tp, record); \
		lf_##cc##_on_ack_seen(&conn, state, &tunables, &send); \
		lf_to_kernel(tp, &conn); \
		if (record) \
			record->sending_after = send; \
		lf_record_end(record, state, &conn, 0); \
	}

/* Times in a state that was put back are of long ago: it goes on as after a pause. */
#define LF_RESUME(cc, function) LF_RESUME_##function(cc)
#define LF_RESUME_on_restart(cc) lf_##cc##_on_restart(&conn, state, &tunables);
#define LF_RESUME_on_rtt_sample(cc)
#define LF_RESUME_on_send(cc)
#define LF_RESUME_on_ack_seen(cc)

#define LF_STRUCT_OPS(cc, TUNABLES, OPTIONAL) \
	const volatile struct { \
		struct lf_settings head; \
		struct lf_##cc##_tunables tunables; \
	} lf_settings SEC(".rodata.lf") = { .tunables = { TUNABLES(LF_TUNABLE_DEFAULT) } }; \
	\
	SEC("struct_ops") \
	void BPF_PROG(cc##_init, struct sock *sk) \
	{ \
		LF_ENTER(cc, LF_OP_INIT, 0, 0, return); \
		lf_##cc##_init(&conn, state, &tunables); \
		lf_to_kernel(tp, &conn); \
		struct lf_saved *saved = lf_restore(sk); \
		if (saved && saved->begin_epoch) { \
			lf_from_kernel(&conn, tp, dilation); \
			OPTIONAL(LF_RESUME) \
		} \
		lf_record_end(record, state, &conn, 0); \
	} \
	\
	SEC("struct_ops") \
	void BPF_PROG(cc##_cong_avoid, struct sock *sk, __u32 seq, __u32 acked) \
	{ \
		struct lf_ack ack = { .acked_segments = acked }; \
		LF_ENTER(cc, LF_OP_ON_ACK, acked, 0, lf_without_state(&conn, &ack); lf_to_kernel(tp, &conn); return); \
		lf_##cc##_on_ack(&conn, state, &tunables, &ack); \
		lf_to_kernel(tp, &conn); \
		lf_record_end(record, state, &conn, 0); \
	} \
	\
	SEC("struct_ops") \
	__u32 BPF_PROG(cc##_ssthresh, struct sock *sk) \
	{ \
		LF_ENTER(cc, LF_OP_SSTHRESH, 0, 0, return lf_max(conn.cwnd_segments >> 1, 2)); \
		lf_u32 result = lf_##cc##_ssthresh(&conn, state, &tunables); \
		lf_record_end(record, state, &conn, result); \
		return result; \
	} \
	\
	SEC("struct_ops") \
	__u32 BPF_PROG(cc##_undo_cwnd, struct sock *sk) \
	{ \
		LF_ENTER(cc, LF_OP_UNDO_CWND, 0, 0, return lf_window_before_loss(&conn)); \
		lf_u32 result = lf_##cc##_undo_cwnd(&conn, state, &tunables); \
		lf_record_end(record, state, &conn, result); \
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
