/* SPDX-License-Identifier: GPL-2.0 */
/*
 * One control block as a record, and how it is read: declared once for every program of bpf/tcb*.bpf.c and, field by
 * field, in crates/kernel/src/tcb/block.rs.
 */
#ifndef LONGFAT_TCB_H
#define LONGFAT_TCB_H

#include "../cc/bpf/saved.h"
#include "sock_ops.h"

#define TCP_CONGESTION 13
#define TCP_RTO_MAX_MS 44
#define TCP_BPF_SNDCWND_CLAMP 1002
#define TCP_BPF_RTO_MIN 1004
#define CC_NAME_BYTES 16
#define AF_INET 2
#define AF_INET6 10

struct lf_block {
	__u64 cookie;
	__u64 state[LF_PRIVATE_WORDS];
	__u32 netns; /* inode */
	__u32 interface; /* that packets leave by; 0: no route cached */
	__u8 gateway[16];
	__u8 local[16];
	__u8 remote[16];
	__u32 snd_una;
	__u32 snd_nxt;
	__u32 cwnd_segments;
	__u32 cwnd_credit_segments;
	__u32 ssthresh_segments;
	__u32 clamp_segments;
	__u32 srtt_us;
	__u32 rttvar_us;
	__u32 min_rtt_us;
	__u32 flight_segments;
	__u32 lost_segments;
	__u32 mss_bytes;
	__u32 rto_min_us; /* 0: this kernel does not tell, as the next */
	__u32 rto_max_ms;
	__u16 local_port;
	__u16 remote_port;
	__u8 family;
	__u8 gateway_family; /* 0: on the link itself */
	__u8 tcp_state;
	__u8 ca_state;
	char cc[CC_NAME_BYTES];
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct in6_addr___tcb {
	__u8 in6_u[16];
};

struct ns_common___tcb {
	__u32 inum;
};

struct net___tcb {
	struct ns_common___tcb ns;
};

struct net_device___tcb {
	int ifindex;
};

struct dst_ops___tcb {
	unsigned short family;
};

struct dst_entry___tcb {
	struct net_device___tcb *dev;
	struct dst_ops___tcb *ops;
};

struct rtable___tcb {
	__u8 rt_gw_family;
	__be32 rt_gw4;
	struct in6_addr___tcb rt_gw6;
};

struct rt6_info___tcb {
	struct in6_addr___tcb rt6i_gateway;
};

struct possible_net_t___tcb {
	struct net___tcb *net;
};

struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	__u16 skc_family;
	volatile unsigned char skc_state;
	struct {
		struct net___tcb *net;
	} skc_net;
	struct in6_addr___tcb skc_v6_daddr;
	struct in6_addr___tcb skc_v6_rcv_saddr;
};

struct sock___tcb {
	struct sock_common __sk_common;
	struct dst_entry___tcb *sk_dst_cache;
};

struct tcp_sock___tcb {
	__u32 snd_una;
	__u32 snd_nxt;
	__u32 mdev_us; /* four times the variation, as TCP_INFO has it */
};

#pragma clang attribute pop

struct bpf_iter_meta;

struct bpf_iter__tcp {
	struct bpf_iter_meta *meta __attribute__((aligned(8)));
	struct sock_common *sk_common __attribute__((aligned(8)));
	__u32 uid __attribute__((aligned(8)));
};

/* The full socket an iterator visits; nothing at its end, and for request and time-wait sockets. */
static __attribute__((always_inline, unused)) struct tcp_sock *lf_visited(struct bpf_iter__tcp *ctx)
{
	return ctx->sk_common ? bpf_skc_to_tcp_sock(ctx->sk_common) : 0;
}

static __attribute__((always_inline, unused)) void lf_fill_addresses(struct lf_block *block, struct tcp_sock *tp)
{
	struct sock___tcb *sk = (void *)tp;

	block->family = sk->__sk_common.skc_family;
	block->local_port = sk->__sk_common.skc_num;
	block->remote_port = __builtin_bswap16(sk->__sk_common.skc_dport);
	block->tcp_state = sk->__sk_common.skc_state;
	block->netns = sk->__sk_common.skc_net.net->ns.inum;
	if (block->family == AF_INET6) {
		bpf_core_read(block->local, 16, &sk->__sk_common.skc_v6_rcv_saddr);
		bpf_core_read(block->remote, 16, &sk->__sk_common.skc_v6_daddr);
	} else {
		*(__be32 *)block->local = sk->__sk_common.skc_rcv_saddr;
		*(__be32 *)block->remote = sk->__sk_common.skc_daddr;
	}
}

/*
 * The route in use: its interface, and the router where there is one. What kind of route it is, the route itself says:
 * an IPv6 socket with an IPv4 connection has one of IPv4.
 */
static __attribute__((always_inline, unused)) void lf_fill_route(struct lf_block *block, struct tcp_sock *tp)
{
	struct dst_entry___tcb *dst = ((struct sock___tcb *)tp)->sk_dst_cache;
	struct in6_addr___tcb none = {}, gateway = {};

	block->interface = 0;
	block->gateway_family = 0;
	if (!dst)
		return;
	block->interface = BPF_CORE_READ(dst, dev, ifindex);
	if (BPF_CORE_READ(dst, ops, family) == AF_INET) {
		struct rtable___tcb *route = (void *)dst;

		bpf_core_read(&block->gateway_family, 1, &route->rt_gw_family);
		if (block->gateway_family == AF_INET)
			bpf_core_read(block->gateway, 4, &route->rt_gw4);
		else if (block->gateway_family == AF_INET6)
			bpf_core_read(block->gateway, 16, &route->rt_gw6);
		return;
	}
	bpf_core_read(&gateway, 16, &((struct rt6_info___tcb *)dst)->rt6i_gateway);
	if (__builtin_memcmp(&gateway, &none, 16)) {
		block->gateway_family = AF_INET6;
		__builtin_memcpy(block->gateway, &gateway, 16);
	}
}

static __attribute__((always_inline, unused)) void lf_fill_window(struct lf_block *block, struct tcp_sock *tp)
{
	struct tcp_sock___tcb *more = (void *)tp;
	int word;

	for (word = 0; word < LF_PRIVATE_WORDS; word++)
		block->state[word] = tp->inet_conn.icsk_ca_priv[word];
	block->snd_una = more->snd_una;
	block->snd_nxt = more->snd_nxt;
	block->cwnd_segments = tp->snd_cwnd;
	block->cwnd_credit_segments = tp->snd_cwnd_cnt;
	block->ssthresh_segments = tp->snd_ssthresh;
	block->clamp_segments = tp->snd_cwnd_clamp;
	block->srtt_us = tp->srtt_us >> 3;
	block->rttvar_us = more->mdev_us >> 2;
	block->min_rtt_us = tp->rtt_min.s[0].v;
	block->flight_segments = tp->packets_out - tp->sacked_out - tp->lost_out + tp->retrans_out;
	block->lost_segments = tp->lost_out;
	block->mss_bytes = tp->mss_cache;
	block->ca_state = BPF_CORE_READ_BITFIELD(&tp->inet_conn, icsk_ca_state);
}

/* The rest, by the options of the socket: the kernel converts its ticks. */
static __attribute__((always_inline, unused)) void lf_fill_options(struct lf_block *block, struct tcp_sock *tp)
{
	__u32 value;

	value = 0;
	block->rto_min_us = bpf_getsockopt(tp, SOL_TCP, TCP_BPF_RTO_MIN, &value, sizeof(value)) ? 0 : value;
	value = 0;
	block->rto_max_ms = bpf_getsockopt(tp, SOL_TCP, TCP_RTO_MAX_MS, &value, sizeof(value)) ? 0 : value;
	if (bpf_getsockopt(tp, SOL_TCP, TCP_CONGESTION, block->cc, CC_NAME_BYTES))
		block->cc[0] = 0;
}

static __attribute__((always_inline, unused)) void lf_fill(struct lf_block *block, struct tcp_sock *tp)
{
	block->cookie = bpf_get_socket_cookie(tp);
	lf_fill_addresses(block, tp);
	lf_fill_route(block, tp);
	lf_fill_window(block, tp);
	lf_fill_options(block, tp);
}

#endif
