// SPDX-License-Identifier: GPL-2.0
/*
 * Reads and sets control blocks of live connections, of any process, under the socket's lock.
 *
 * The kernel lets an iterator set options of a socket, and lets a congestion control write the windows. So the windows
 * are set by making the socket change its congestion control: init() of the one it goes through (`lfset`, renamed by
 * the loader) or of the one it ends with writes them from the socket's storage. All of it happens within one visit of
 * the iterator, so that no segment is sent or acknowledged in between.
 */
#include "tcb.h"

enum {
	LF_SET_CLAMP = 1,
	LF_SET_RTO_MIN = 2,
	LF_SET_RTO_MAX = 4,
	LF_SET_CC = 8,	    /* windows too; they need it */
	LF_KEEP_STATE = 16, /* bring the private state along */
	LF_GIVE_STATE = 32, /* take that of the request instead */
	LF_UNLESS_RECOVERING = 64,
};

enum { LF_CA_CWR = 2 }; /* enum tcp_ca_state: from here on the kernel decides on cwnd */

/* What is to be done to one socket, and what came of it. */
struct lf_request {
	__u32 actions;
	__u32 cwnd_segments;	 /* 0: as it is, as the next */
	__u32 ssthresh_segments;
	__u32 clamp_segments;
	__u32 rto_min_us;
	__u32 rto_max_ms;
	char through[CC_NAME_BYTES]; /* empty: straight to `to` */
	char to[CC_NAME_BYTES];
	__u64 state[LF_PRIVATE_WORDS];
	/* Answers: errors are negative errnos. */
	__u32 done;
	__s32 clamp_error;
	__s32 rto_min_error;
	__s32 rto_max_error;
	__s32 cc_error;
	__u32 recovering; /* nothing was done because of LF_UNLESS_RECOVERING */
	struct lf_block before;
	struct lf_block after;
};

/* By cookie: as many connections as are changed in one visit. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1 << 16);
	__type(key, __u64);
	__type(value, struct lf_request);
} requests SEC(".maps");

SEC("iter/tcp")
int look(struct bpf_iter__tcp *ctx)
{
	struct lf_block block = {};
	struct tcp_sock *tp = lf_visited(ctx);

	if (!tp)
		return 0;
	lf_fill(&block, tp);
	bpf_seq_write((struct seq_file *)*(__u64 *)ctx->meta, &block, sizeof(block));
	return 0;
}

static __attribute__((always_inline)) int change_cc(struct tcp_sock *tp, char *name)
{
	return bpf_setsockopt(tp, SOL_TCP, TCP_CONGESTION, name, CC_NAME_BYTES);
}

static __attribute__((always_inline)) void set_cc(struct tcp_sock *tp, struct lf_request *request)
{
	char reno[CC_NAME_BYTES] = "reno";
	struct lf_saved *saved = bpf_sk_storage_get(&lf_saved, (struct sock *)tp, 0, BPF_SK_STORAGE_GET_F_CREATE);

	if (!saved) {
		request->cc_error = -12; /* ENOMEM */
		return;
	}
	/* As read a moment ago, in the same visit: `before`. */
	if (request->actions & LF_GIVE_STATE)
		__builtin_memcpy(saved->state, request->state, sizeof(saved->state));
	else
		__builtin_memcpy(saved->state, request->before.state, sizeof(saved->state));
	saved->has_state = !!(request->actions & (LF_KEEP_STATE | LF_GIVE_STATE));
	saved->begin_epoch = !!(request->actions & LF_GIVE_STATE);
	saved->cwnd_segments = request->cwnd_segments;
	saved->ssthresh_segments = request->ssthresh_segments;
	/* Setting the clamp sets ssthresh as well, which nobody asked for. */
	if (!saved->ssthresh_segments && request->actions & LF_SET_CLAMP)
		saved->ssthresh_segments = request->before.ssthresh_segments;
	if (request->through[0])
		request->cc_error = change_cc(tp, request->through);
	if (!request->cc_error)
		request->cc_error = change_cc(tp, request->to);
	/* Never left with what it only was to go through. */
	if (request->cc_error && request->through[0] && change_cc(tp, request->before.cc))
		change_cc(tp, reno);
	bpf_sk_storage_delete(&lf_saved, (struct sock *)tp);
}

static __attribute__((always_inline)) int set_number(struct tcp_sock *tp, int option, __u32 value)
{
	return bpf_setsockopt(tp, SOL_TCP, option, &value, sizeof(value));
}

SEC("iter/tcp")
int set(struct bpf_iter__tcp *ctx)
{
	struct lf_request *request;
	struct tcp_sock *tp;
	__u64 cookie;

	tp = lf_visited(ctx);
	if (!tp)
		return 0;
	cookie = bpf_get_socket_cookie(tp);
	request = bpf_map_lookup_elem(&requests, &cookie);
	/* An iterator may visit a socket twice. */
	if (!request || request->done)
		return 0;
	lf_fill(&request->before, tp);
	if (request->actions & LF_UNLESS_RECOVERING && request->before.ca_state >= LF_CA_CWR) {
		request->after = request->before;
		request->recovering = 1;
		request->done = 1;
		return 0;
	}
	if (request->actions & LF_SET_CLAMP)
		request->clamp_error = set_number(tp, TCP_BPF_SNDCWND_CLAMP, request->clamp_segments);
	if (request->actions & LF_SET_RTO_MIN)
		request->rto_min_error = set_number(tp, TCP_BPF_RTO_MIN, request->rto_min_us);
	if (request->actions & LF_SET_RTO_MAX)
		request->rto_max_error = set_number(tp, TCP_RTO_MAX_MS, request->rto_max_ms);
	if (request->actions & LF_SET_CC)
		set_cc(tp, request);
	lf_fill(&request->after, tp);
	request->done = 1;
	return 0;
}

/* The congestion control that a socket is in only while it is being set. */

SEC("struct_ops")
void BPF_PROG(setter_init, struct sock *sk)
{
	lf_restore(sk);
}

SEC("struct_ops")
__u32 BPF_PROG(setter_ssthresh, struct sock *sk)
{
	return ((struct tcp_sock *)sk)->snd_ssthresh;
}

SEC("struct_ops")
__u32 BPF_PROG(setter_undo_cwnd, struct sock *sk)
{
	return ((struct tcp_sock *)sk)->snd_cwnd;
}

SEC("struct_ops")
void BPF_PROG(setter_cong_avoid, struct sock *sk, __u32 ack, __u32 acked)
{
}

SEC(".struct_ops.link")
struct tcp_congestion_ops lfset = {
	.init = (void *)setter_init,
	.ssthresh = (void *)setter_ssthresh,
	.undo_cwnd = (void *)setter_undo_cwnd,
	.cong_avoid = (void *)setter_cong_avoid,
	.name = "lfset",
};

char LICENSE[] SEC("license") = "GPL";
