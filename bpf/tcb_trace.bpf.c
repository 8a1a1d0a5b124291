// SPDX-License-Identifier: GPL-2.0
/*
 * Every ACK, retransmission and change of state of chosen connections, into a ring buffer that a reader polls.
 *
 * tcp_probe fires before the ACK is processed: a record shows what the ACK before it left. A wake-up per record would
 * cost twenty times what the record costs (BPF_RB_NO_WAKEUP). A connection is chosen by its storage; one that begins
 * while we run is recorded until user space says whether it is meant.
 */
#include "tcb.h"

enum {
	LF_TRACE_BEGIN = 1,
	LF_TRACE_ACK = 2,
	LF_TRACE_RETRANSMIT = 3,
	LF_TRACE_CA_STATE = 4,
	LF_TRACE_CC = 5,
	LF_TRACE_STATE = 6,
};

struct lf_event {
	__u64 time_ns; /* CLOCK_MONOTONIC */
	__u64 cookie;
	__u32 kind;
	__u32 snd_una;
	__u32 snd_nxt;
	__u32 snd_wnd_bytes;
	__u32 cwnd_segments;
	__u32 ssthresh_segments;
	__u32 srtt_us;
	__u32 rttvar_us;
	__u32 flight_segments;
	__u32 unacked_segments;
	__u32 lost_segments;
	__u32 total_retrans_segments;
	__u32 mss_bytes;
	__u8 tcp_state;
	__u8 ca_state;
	__u8 zero[2];
};

/* Of LF_TRACE_BEGIN and LF_TRACE_CC. */
struct lf_identity {
	struct lf_event event;
	__u8 local[16];
	__u8 remote[16];
	__u16 local_port;
	__u16 remote_port;
	__u32 netns;
	__u32 family;
	__u32 chosen; /* 0: user space is to say */
	char cc[CC_NAME_BYTES];
};

struct lf_chosen {
	__u64 ops; /* where its congestion control is, to notice another */
	__u32 undecided;
	__u32 zero;
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct tcp_congestion_ops___trace {
	char name[16];
};
struct inet_connection_sock___trace {
	struct tcp_congestion_ops___trace *icsk_ca_ops;
};
struct tcp_sock___trace {
	struct inet_connection_sock___trace inet_conn;
	__u32 snd_wnd;
	__u32 total_retrans;
};
struct sock___trace {
	__u16 sk_protocol;
	void *sk_bpf_storage;
};
#pragma clang attribute pop

/* Namespace to look at; 0: every one. */
const volatile __u32 only_netns SEC(".rodata.lf") = 0;
/* Never set: it has the object carry the types of what it writes. */
struct lf_identity *const volatile written SEC(".rodata.lf") = 0;

/* Records that found no room. */
__u64 events_lost SEC(".bss.lost");

/* Its size is set by the loader. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct lf_chosen);
} chosen SEC(".maps");

/* By cookie, from user space: 1 is meant, 2 is not. A connection whose verdict made room for others goes on to be
 * recorded, and user space leaves out what it did not mean.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1 << 18);
	__type(key, __u64);
	__type(value, __u32);
} verdicts SEC(".maps");

static __attribute__((always_inline)) void fill(struct lf_event *event, struct tcp_sock *tp, __u32 kind)
{
	struct tcp_sock___trace *more = (void *)tp;
	struct tcp_sock___tcb *sent = (void *)tp;

	event->time_ns = bpf_ktime_get_ns();
	event->cookie = bpf_get_socket_cookie(tp);
	event->kind = kind;
	event->snd_una = sent->snd_una;
	event->snd_nxt = sent->snd_nxt;
	event->snd_wnd_bytes = more->snd_wnd;
	event->cwnd_segments = tp->snd_cwnd;
	event->ssthresh_segments = tp->snd_ssthresh;
	event->srtt_us = tp->srtt_us >> 3;
	event->rttvar_us = sent->mdev_us >> 2;
	event->flight_segments = tp->packets_out - tp->sacked_out - tp->lost_out + tp->retrans_out;
	event->unacked_segments = tp->packets_out;
	event->lost_segments = tp->lost_out;
	event->total_retrans_segments = more->total_retrans;
	event->mss_bytes = tp->mss_cache;
	event->tcp_state = ((struct sock___tcb *)tp)->__sk_common.skc_state;
	event->ca_state = BPF_CORE_READ_BITFIELD(&tp->inet_conn, icsk_ca_state);
	event->zero[0] = event->zero[1] = 0;
}

static __attribute__((always_inline)) void record(struct tcp_sock *tp, __u32 kind, int state, int ca_state)
{
	struct lf_event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);

	if (!event) {
		__sync_fetch_and_add(&events_lost, 1);
		return;
	}
	fill(event, tp, kind);
	if (state >= 0)
		event->tcp_state = state;
	if (ca_state >= 0)
		event->ca_state = ca_state;
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

static __attribute__((noinline)) int identify(struct tcp_sock *tp, __u32 kind, __u32 is_chosen, __u32 state)
{
	struct sock___tcb *sk = (void *)tp;
	struct lf_identity *identity;

	if (!tp)
		return 0;
	identity = bpf_ringbuf_reserve(&events, sizeof(*identity), 0);
	if (!identity) {
		__sync_fetch_and_add(&events_lost, 1);
		return 0;
	}
	fill(&identity->event, tp, kind);
	if (state)
		identity->event.tcp_state = state;
	__builtin_memset(identity->local, 0, 32);
	identity->family = sk->__sk_common.skc_family;
	identity->local_port = sk->__sk_common.skc_num;
	identity->remote_port = __builtin_bswap16(sk->__sk_common.skc_dport);
	identity->netns = sk->__sk_common.skc_net.net->ns.inum;
	identity->chosen = is_chosen;
	if (identity->family == AF_INET6) {
		bpf_core_read(identity->local, 16, &sk->__sk_common.skc_v6_rcv_saddr);
		bpf_core_read(identity->remote, 16, &sk->__sk_common.skc_v6_daddr);
	} else {
		*(__be32 *)identity->local = sk->__sk_common.skc_rcv_saddr;
		*(__be32 *)identity->remote = sk->__sk_common.skc_daddr;
	}
	bpf_core_read(identity->cc, CC_NAME_BYTES, &((struct tcp_sock___trace *)tp)->inet_conn.icsk_ca_ops->name);
	bpf_ringbuf_submit(identity, BPF_RB_NO_WAKEUP);
	return 0;
}

static __attribute__((always_inline)) __u64 ops_of(struct tcp_sock *tp)
{
	return (__u64)((struct tcp_sock___trace *)tp)->inet_conn.icsk_ca_ops;
}

/* Whether a connection is recorded; a refused one loses its storage here. */
static __attribute__((always_inline)) struct lf_chosen *wanted(struct sock *sk)
{
	struct lf_chosen *found;
	__u32 *verdict;
	__u64 cookie;

	/* Most segments of a transfer arrive where nothing was chosen: they are let go without a call. */
	if (!((struct sock___trace *)sk)->sk_bpf_storage)
		return 0;
	found = bpf_sk_storage_get(&chosen, sk, 0, 0);
	if (!found || !found->undecided)
		return found;
	cookie = bpf_get_socket_cookie(sk);
	verdict = bpf_map_lookup_elem(&verdicts, &cookie);
	if (!verdict)
		return found;
	if (*verdict == 1) {
		found->undecided = 0;
		return found;
	}
	bpf_sk_storage_delete(&chosen, sk);
	return 0;
}

SEC("tp_btf/tcp_probe")
int BPF_PROG(on_ack, struct sock *sk)
{
	struct lf_chosen *found = wanted(sk);
	struct tcp_sock *tp = found ? bpf_skc_to_tcp_sock(sk) : 0;

	if (!tp)
		return 0;
	if (found->ops != ops_of(tp)) {
		found->ops = ops_of(tp);
		identify(tp, LF_TRACE_CC, 1, 0);
	}
	/* A segment that finds nothing outstanding acknowledges nothing. */
	if (tp->packets_out)
		record(tp, LF_TRACE_ACK, -1, -1);
	return 0;
}

SEC("tp_btf/tcp_retransmit_skb")
int BPF_PROG(on_retransmit, struct sock *sk)
{
	struct tcp_sock *tp = wanted(sk) ? bpf_skc_to_tcp_sock(sk) : 0;

	if (tp)
		record(tp, LF_TRACE_RETRANSMIT, -1, -1);
	return 0;
}

SEC("tp_btf/tcp_cong_state_set")
int BPF_PROG(on_ca_state, struct sock *sk, __u8 ca_state)
{
	struct tcp_sock *tp = wanted(sk) ? bpf_skc_to_tcp_sock(sk) : 0;

	if (tp)
		record(tp, LF_TRACE_CA_STATE, -1, ca_state);
	return 0;
}

#define TCP_ESTABLISHED 1
#define IPPROTO_TCP 6

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(on_state, struct sock *sk, int before, int after)
{
	struct lf_chosen *found;
	struct tcp_sock *tp;

	if (((struct sock___trace *)sk)->sk_protocol != IPPROTO_TCP)
		return 0;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp)
		return 0;
	if (after != TCP_ESTABLISHED) {
		if (wanted(sk))
			record(tp, LF_TRACE_STATE, after, -1);
		return 0;
	}
	if (only_netns && ((struct sock___tcb *)sk)->__sk_common.skc_net.net->ns.inum != only_netns)
		return 0;
	found = bpf_sk_storage_get(&chosen, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!found)
		return 0;
	found->undecided = 1;
	found->ops = ops_of(tp);
	identify(tp, LF_TRACE_BEGIN, 0, TCP_ESTABLISHED);
	return 0;
}

/* Connections that stand already and were chosen. */
SEC("iter/tcp")
int mark(struct bpf_iter__tcp *ctx)
{
	struct lf_chosen *found;
	struct tcp_sock *tp;
	__u32 *verdict;
	__u64 cookie;

	tp = lf_visited(ctx);
	if (!tp)
		return 0;
	cookie = bpf_get_socket_cookie(tp);
	verdict = bpf_map_lookup_elem(&verdicts, &cookie);
	if (!verdict || *verdict != 1)
		return 0;
	found = bpf_sk_storage_get(&chosen, (struct sock *)tp, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!found || found->ops)
		return 0;
	found->ops = ops_of(tp);
	identify(tp, LF_TRACE_BEGIN, 1, 0);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
