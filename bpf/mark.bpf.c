// SPDX-License-Identifier: GPL-2.0
/*
 * Marks arriving data packets with "congestion experienced" (RFC 3168). The receiving TCP of this very host echoes it,
 * and the sender slows down by its own congestion control.
 *
 * mark     Connections of a relay: by the backlog between the two legs, as a controller of cc/queue/ decides.
 *          Everything it needs is in the two sockets: received on the inbound one, sent and acknowledged on the other.
 * congest  One connection of this host, once per so many bytes (Isogaki 2005, section 5.3).
 *
 * Both run at tc ingress, after GRO: a bundle of segments is marked as one.
 */
#include "../cc/bpf/kernel.h"
#include "../cc/queue/queue.h"
#include "ip.h"
#include "mark.h"
#include "skb.h"

/* The fields of the kernel's tcp_sock beyond those of kernel.h; offsets are the running kernel's. */
struct tcp_sock___mark {
	__u64 bytes_received;
	__u64 bytes_acked;
	__u32 snd_nxt;
	__u32 snd_una;
	__u32 snd_cwnd;
	__u32 mss_cache;
	__u32 advmss;
	__u32 srtt_us;
	struct {
		__u32 rtt_us;
	} rcv_rtt_est;
} __attribute__((preserve_access_index));

#define NS_CURRENT ((__u64)-1) /* BPF_F_CURRENT_NETNS */

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct lf_mark);
} pairs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16);
	__type(key, struct lf_tuple);
	__type(value, struct lf_every);
} flows SEC(".maps");

/* Whether anything is to be done with a packet; its connection as this end sees it, and its payload. */
struct packet {
	struct lf_tuple tuple;
	__u32 payload_bytes;
};

static __always_inline int parse_tcp(void *at, void *end, __u32 total, struct packet *p)
{
	struct tcphdr *tcp = at;
	__u32 header;

	if (at + sizeof(*tcp) > end)
		return 0;
	header = (tcp->offset >> 4) * 4;
	p->tuple.remote_port = tcp->source;
	p->tuple.local_port = tcp->dest;
	p->payload_bytes = total > header ? total - header : 0;
	return p->payload_bytes > 0;
}

/*
 * What a short frame is filled up with (IEEE 802.3: 46 bytes at least) is no payload. Bundles of more than 64 KiB say 0
 * and have none.
 */
static __always_inline __u32 without_padding(__u32 rest, __u32 stated)
{
	return stated && stated < rest ? stated : rest;
}

static __always_inline int parse4(void *at, void *end, __u32 rest, struct packet *p)
{
	struct iphdr *ip = at;
	__u32 header;

	if (at + sizeof(*ip) > end || ip->protocol != IPPROTO_TCP)
		return 0;
	/* Options are not looked through: TCP with IP options is left alone, as are fragments. */
	header = (ip->version_ihl & 15) * 4;
	if (header != sizeof(*ip) || (ip->frag_off & __builtin_bswap16(0x3fff)))
		return 0;
	rest = without_padding(rest, __builtin_bswap16(ip->tot_len));
	p->tuple.remote_address[0] = ip->saddr;
	p->tuple.local_address[0] = ip->daddr;
	return parse_tcp(at + sizeof(*ip), end, rest > header ? rest - header : 0, p);
}

static __always_inline int parse6(void *at, void *end, __u32 rest, struct packet *p)
{
	struct ipv6hdr *ip = at;

	if (at + sizeof(*ip) > end || ip->nexthdr != IPPROTO_TCP)
		return 0;
	p->tuple.is_ipv6 = 1;
	__builtin_memcpy(p->tuple.remote_address, ip->saddr, 16);
	__builtin_memcpy(p->tuple.local_address, ip->daddr, 16);
	/* The length of what follows the fixed header. */
	rest = without_padding(rest - sizeof(*ip), __builtin_bswap16(ip->payload_len));
	return parse_tcp(at + sizeof(*ip), end, rest, p);
}

/* A data packet of TCP, on an Ethernet interface or one without link headers. */
static __always_inline int parse(struct __sk_buff *skb, struct packet *p)
{
	void *at = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 link = 14, rest;
	__u8 *first = at;

	if (at + 14 + sizeof(struct iphdr) + sizeof(struct tcphdr) > end) {
		/* The headers are not at hand: they are not in one piece, or the packet is too short for data. */
		return 0;
	}
	if (skb->protocol == __builtin_bswap16(ETH_P_IP)) {
		/* tun and the like have no link header. */
		if (*(__u16 *)(at + 12) != __builtin_bswap16(ETH_P_IP) && (*first >> 4) == 4)
			link = 0;
		rest = skb->len - link;
		return parse4(at + link, end, rest, p);
	}
	if (skb->protocol == __builtin_bswap16(ETH_P_IPV6)) {
		if (*(__u16 *)(at + 12) != __builtin_bswap16(ETH_P_IPV6) && (*first >> 4) == 6)
			link = 0;
		rest = skb->len - link;
		return parse6(at + link, end, rest, p);
	}
	return 0;
}

/* The socket of a connection of this host, to be released with bpf_sk_release. */
static __always_inline struct bpf_sock *lookup(struct __sk_buff *skb, const struct lf_tuple *t)
{
	struct bpf_sock_tuple tuple = {};

	if (t->is_ipv6) {
		__builtin_memcpy(tuple.ipv6.saddr, t->remote_address, 16);
		__builtin_memcpy(tuple.ipv6.daddr, t->local_address, 16);
		tuple.ipv6.sport = t->remote_port;
		tuple.ipv6.dport = t->local_port;
		return bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv6), NS_CURRENT, 0);
	}
	tuple.ipv4.saddr = t->remote_address[0];
	tuple.ipv4.daddr = t->local_address[0];
	tuple.ipv4.sport = t->remote_port;
	tuple.ipv4.dport = t->local_port;
	return bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), NS_CURRENT, 0);
}

/*
 * A moving average with eight fractions (tcp_rcv_rtt_update), and the sender's: the lesser, as both only err upwards.
 */
static __always_inline __u32 inbound_rtt_us(struct tcp_sock___mark *in)
{
	__u32 received = in->rcv_rtt_est.rtt_us >> 3, sent = in->srtt_us >> 3;

	if (received == 0 || (sent && sent < received))
		return sent;
	return received;
}

static __always_inline void look_in(struct tcp_sock___mark *in, struct lf_queue_view *v)
{
	v->received_bytes = in->bytes_received;
	v->inbound_rtt_us = inbound_rtt_us(in);
	v->mss_bytes = in->advmss;
}

static __always_inline void look_out(struct tcp_sock___mark *out, struct lf_queue_view *v)
{
	v->acked_bytes = out->bytes_acked;
	v->sent_bytes = out->bytes_acked + (__u32)(out->snd_nxt - out->snd_una);
	v->outbound_rtt_us = out->srtt_us >> 3;
	v->outbound_cwnd_bytes = out->snd_cwnd * out->mss_cache;
}

/* Reads the outbound leg; 0 when it is gone. */
static __always_inline int see_outbound(struct __sk_buff *skb, const struct lf_tuple *t, struct lf_queue_view *v)
{
	struct bpf_sock *skc = lookup(skb, t);
	struct tcp_sock *out;

	if (!skc)
		return 0;
	out = bpf_skc_to_tcp_sock(skc);
	if (out)
		look_out((void *)out, v);
	bpf_sk_release(skc);
	return out != 0;
}

/* Marks it, or counts that it cannot be. */
static __always_inline int apply(struct __sk_buff *skb, struct lf_mark *m, const struct lf_queue_view *v)
{
	if (bpf_skb_ecn_set_ce(skb)) {
		lf_queue_marked(v, &m->state, &m->settings);
		return TCX_NEXT;
	}
	m->incapable++;
	if (!m->is_dropping)
		return TCX_NEXT;
	lf_queue_marked(v, &m->state, &m->settings);
	return TCX_DROP;
}

static __always_inline int mark_inbound(struct __sk_buff *skb, struct tcp_sock *in)
{
	struct lf_mark *m = bpf_sk_storage_get(&pairs, in, 0, 0);
	struct lf_queue_view v = {};

	if (!m)
		return TCX_NEXT;
	look_in((void *)in, &v);
	if (!see_outbound(skb, &m->outbound, &v))
		return TCX_NEXT;
	v.now_us = bpf_ktime_get_ns() / 1000;
	if (m->dilate > 1) {
		v.now_us /= m->dilate;
		v.inbound_rtt_us /= m->dilate;
		v.outbound_rtt_us /= m->dilate;
	}
	v.random = bpf_get_prandom_u32();
	if (!lf_queue_on_packet(&v, &m->state, &m->settings))
		return TCX_NEXT;
	return apply(skb, m, &v);
}

SEC("tcx/ingress")
int mark(struct __sk_buff *skb)
{
	struct packet p = {};
	struct bpf_sock *skc;
	struct tcp_sock *in;
	int verdict = TCX_NEXT;

	if (is_of_vlan(skb) || !parse(skb, &p))
		return TCX_NEXT;
	skc = lookup(skb, &p.tuple);
	if (!skc)
		return TCX_NEXT;
	in = bpf_skc_to_tcp_sock(skc);
	if (in)
		verdict = mark_inbound(skb, in);
	bpf_sk_release(skc);
	return verdict;
}

SEC("tcx/ingress")
int congest(struct __sk_buff *skb)
{
	struct packet p = {};
	struct lf_every *flow;

	if (is_of_vlan(skb) || !parse(skb, &p))
		return TCX_NEXT;
	flow = bpf_map_lookup_elem(&flows, &p.tuple);
	if (!flow)
		return TCX_NEXT;
	flow->bytes += p.payload_bytes;
	flow->since_bytes += p.payload_bytes;
	if (flow->since_bytes < flow->every_bytes)
		return TCX_NEXT;
	flow->since_bytes = 0;
	if (bpf_skb_ecn_set_ce(skb))
		flow->marks++;
	else
		flow->incapable++;
	return TCX_NEXT;
}

char LICENSE[] SEC("license") = "GPL";
