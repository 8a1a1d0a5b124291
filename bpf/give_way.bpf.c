// SPDX-License-Identifier: GPL-2.0
/*
 * Holds back what the TCP sockets of one cgroup receive, by the window that they advertise (cc/receive/give_way.h).
 *
 * arrive    sees every arriving segment, before the socket does, and tells the algorithm of those with data.
 * hold      gives a connection its state when it is established, and sets the window as a clamp whenever the connection
 *           is about to send a segment: the kernel asks how long the options will be just before it chooses the window,
 *           under the socket's lock. So every acknowledgement has the window of the moment, and what the kernel does to
 *           the clamp by itself (it follows the receive buffer) is never advertised. Not asked where the options are
 *           full, which is with three blocks of selective acknowledgement. A connection of which the algorithm cannot
 *           be told (timestamps taken away on the path, headers that are not looked through) is let go of.
 * lift      lets go of sockets that outlive the command.
 *
 * What has been promised is not taken back: the kernel sees to that.
 */
#include "../cc/receive/give_way.h"
#include "../cc/receive/timestamps.h"
#include "ip.h"
#include "skb.h"
#include "sock_ops.h"
#include "tcb.h"

#define TCP_WINDOW_CLAMP 10
#define TCP_FLAG_SYN 2
#define MOST_CLAMP 0x7fffffff
/* Segments in a row without timestamps that say there will be none. */
#define MOST_UNTOLD 4

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct tcp_options_received___way {
	__u16 tstamp_ok : 1;
};

/* The fields of tcp_sock beyond those of kernel.h. */
struct tcp_sock___way {
	struct tcp_options_received___way rx_opt;
	__u32 rcv_nxt;
	__u32 rcv_wup; /* rcv_nxt when the window was last advertised */
	__u32 rcv_wnd;
	__u32 window_clamp;
	__u32 tsoffset; /* of the TSval on the wire against our clock */
	__u32 srtt_us;	/* eight times the smoothed round-trip time */
	__u16 advmss;
	__u8 tcp_usec_ts : 1; /* since 6.7 */
};

#pragma clang attribute pop

/* The lock is between segments of one connection that arrive on two processors. */
struct held {
	struct bpf_spin_lock lock;
	__u32 untold; /* segments since the last that the algorithm was told of */
	struct lf_give_way way;
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct held);
} held_back SEC(".maps");

/* Read by the loader. */
struct {
	__u64 steered;	/* connections */
	__u64 untimed;	/* connections in which no timestamps are found: left alone */
	__u64 refused;	/* windows that the kernel did not take */
} counts SEC(".bss.lf");

static __always_inline __u32 tick_us(struct tcp_sock___way *tp)
{
	if (bpf_core_field_exists(tp->tcp_usec_ts) && BPF_CORE_READ_BITFIELD(tp, tcp_usec_ts))
		return 1;
	return 1000;
}

/* The TSval that it would send now. */
static __always_inline __u32 now_ts(struct tcp_sock___way *tp, __u64 now_us)
{
	return (__u32)(now_us / tick_us(tp)) + tp->tsoffset;
}

/* Where the TCP header begins; 0: not TCP, or behind headers that are not looked through. */
static __always_inline __u32 transport_offset(struct __sk_buff *skb)
{
	struct ipv6hdr ip6;
	struct iphdr ip;

	if (skb->protocol == __builtin_bswap16(ETH_P_IP)) {
		if (bpf_skb_load_bytes(skb, 0, &ip, sizeof(ip)) || ip.protocol != IPPROTO_TCP)
			return 0;
		return (ip.version_ihl & 15) * 4;
	}
	if (bpf_skb_load_bytes(skb, 0, &ip6, sizeof(ip6)) || ip6.nexthdr != IPPROTO_TCP)
		return 0;
	return sizeof(ip6);
}

enum segment { NO_DATA, TIMED, UNTIMED };

/* What the algorithm has to know of it. */
static __always_inline enum segment parse(struct __sk_buff *skb, struct lf_arrival *a)
{
	unsigned char options[LF_OPTIONS_BYTES] = {};
	__u32 offset = transport_offset(skb), header, length;
	struct lf_timestamps ts;
	struct tcphdr tcp;

	if (!offset || bpf_skb_load_bytes(skb, offset, &tcp, sizeof(tcp)))
		return UNTIMED;
	header = (tcp.offset >> 4) * 4;
	if (tcp.flags & TCP_FLAG_SYN || skb->len <= offset + header)
		return NO_DATA;
	if (header < sizeof(tcp) + LF_TIMESTAMPS_LENGTH)
		return UNTIMED;
	length = header - sizeof(tcp);
	if (length > LF_OPTIONS_BYTES || bpf_skb_load_bytes(skb, offset + sizeof(tcp), options, length))
		return UNTIMED;
	if (!lf_find_timestamps(options, length, &ts))
		return UNTIMED;
	a->seq = __builtin_bswap32(tcp.seq);
	a->payload_bytes = skb->len - offset - header;
	a->ts_value = ts.value;
	a->ts_echo = ts.echo;
	return TIMED;
}

static __always_inline void tell(struct __sk_buff *skb, struct tcp_sock___way *tp, struct held *held)
{
	struct lf_arrival a = {};
	enum segment segment = parse(skb, &a);

	if (segment == UNTIMED)
		__sync_fetch_and_add(&held->untold, 1);
	if (segment != TIMED)
		return;
	a.now_us = bpf_ktime_get_ns() / 1000;
	a.now_ts = now_ts(tp, a.now_us);
	a.tick_us = tick_us(tp);
	a.mss_bytes = tp->advmss;
	a.edge_seq = tp->rcv_wup + tp->rcv_wnd;
	held->untold = 0;
	bpf_spin_lock(&held->lock);
	lf_give_way_on_segment(&held->way, &a);
	bpf_spin_unlock(&held->lock);
}

SEC("cgroup_skb/ingress")
int arrive(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;
	struct tcp_sock *tp;
	struct held *held;

	if (!sk)
		return 1;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp)
		return 1;
	held = bpf_sk_storage_get(&held_back, tp, 0, 0);
	if (held)
		tell(skb, (void *)tp, held);
	return 1;
}

static __always_inline void begin(struct bpf_sock_ops *ops, struct tcp_sock *sock)
{
	struct tcp_sock___way *tp = (void *)sock;
	__u64 now_us = bpf_ktime_get_ns() / 1000;
	__u32 ts = now_ts(tp, now_us);
	struct held *held;

	if (!BPF_CORE_READ_BITFIELD(tp, rx_opt.tstamp_ok)) {
		__sync_fetch_and_add(&counts.untimed, 1);
		return;
	}
	held = bpf_sk_storage_get(&held_back, sock, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!held)
		return;
	/* Segments may arrive already. */
	bpf_spin_lock(&held->lock);
	lf_give_way_begin(&held->way, now_us, ts, tp->rcv_nxt, tp->advmss, tp->srtt_us >> 3);
	bpf_spin_unlock(&held->lock);
	bpf_sock_ops_cb_flags_set(ops, ops->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
	__sync_fetch_and_add(&counts.steered, 1);
}

static __always_inline void clamp(struct bpf_sock_ops *ops, __u32 bytes)
{
	if (bpf_setsockopt(ops, SOL_TCP, TCP_WINDOW_CLAMP, &bytes, sizeof(bytes)))
		__sync_fetch_and_add(&counts.refused, 1);
}

static __always_inline void let_go(struct bpf_sock_ops *ops, struct tcp_sock *tp)
{
	bpf_sk_storage_delete(&held_back, tp);
	bpf_sock_ops_cb_flags_set(ops, ops->bpf_sock_ops_cb_flags & ~BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
	clamp(ops, MOST_CLAMP);
	__sync_fetch_and_add(&counts.steered, -1);
	__sync_fetch_and_add(&counts.untimed, 1);
}

static __always_inline void apply(struct bpf_sock_ops *ops, struct tcp_sock *tp)
{
	struct held *held = bpf_sk_storage_get(&held_back, tp, 0, 0);
	__u32 window_bytes;

	if (!held)
		return;
	if (*(volatile __u32 *)&held->untold >= MOST_UNTOLD) {
		let_go(ops, tp);
		return;
	}
	window_bytes = *(volatile __u32 *)&held->way.window_bytes;
	/* Older kernels take setting for a wish to offer no more than now, also of what is set already. */
	if (((struct tcp_sock___way *)tp)->window_clamp != window_bytes)
		clamp(ops, window_bytes);
}

SEC("sockops")
int hold(struct bpf_sock_ops *ops)
{
	__u32 op = ops->op;
	struct bpf_sock *sk;
	struct tcp_sock *tp;

	if (op == BPF_SOCK_OPS_RWND_INIT) {
		/* The first window, before anything is known; the kernel's own would be 64 KiB. */
		ops->reply = LF_GIVE_WAY_FIRST_SEGMENTS;
		return 1;
	}
	if (op != BPF_SOCK_OPS_HDR_OPT_LEN_CB && op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB &&
	    op != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		return 1;
	sk = ops->sk;
	if (!sk)
		return 1;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp)
		return 1;
	if (op == BPF_SOCK_OPS_HDR_OPT_LEN_CB)
		apply(ops, tp);
	else
		begin(ops, tp);
	return 1;
}

SEC("iter/tcp")
int lift(struct bpf_iter__tcp *ctx)
{
	struct tcp_sock *tp = lf_visited(ctx);
	int most = MOST_CLAMP;

	if (!tp || !bpf_sk_storage_get(&held_back, (struct sock *)tp, 0, 0))
		return 0;
	bpf_sk_storage_delete(&held_back, (struct sock *)tp);
	bpf_setsockopt(tp, SOL_TCP, TCP_WINDOW_CLAMP, &most, sizeof(most));
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
