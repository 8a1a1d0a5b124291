/* SPDX-License-Identifier: GPL-2.0 */
/* TCP packets at tc, by the connection to which they belong: both ends in one order, whoever sent a packet. */
#ifndef LONGFAT_PASSING_H
#define LONGFAT_PASSING_H

#include "direction.h"
#include "watch.h"

#define LINK_HEADER_BYTES 14

/* A packet as its connection has it. */
struct passing {
	struct packet packet;
	struct tcphdr *tcp;
	struct lf_ends ends __attribute__((aligned(8)));
	__u32 is_from_high;
	__u32 payload_bytes;
	__u32 before; /* octets before the IP header */
};

static __always_inline int compare(const __u32 *a, const __u32 *b)
{
	int i;

	for (i = 0; i < 4; i++) {
		if (a[i] != b[i])
			return a[i] < b[i] ? -1 : 1;
	}
	return 0;
}

static __always_inline void order_ends(struct passing *p)
{
	const struct direction *d = &p->packet.direction;
	const __u32 *low = d->from, *high = d->to;

	p->is_from_high = d->from_port != d->to_port ? d->from_port > d->to_port : compare(d->from, d->to) > 0;
	if (p->is_from_high) {
		low = d->to;
		high = d->from;
	}
	__builtin_memcpy(p->ends.low_address, low, 16);
	__builtin_memcpy(p->ends.high_address, high, 16);
	p->ends.low_port = p->is_from_high ? d->to_port : d->from_port;
	p->ends.high_port = p->is_from_high ? d->from_port : d->to_port;
	p->ends.is_ipv6 = d->is_ipv6;
}

/* Short frames are filled up, so the IP header says; bundles of more than 64 KiB say 0. */
static __always_inline __u32 payload_bytes(struct __sk_buff *skb, const struct passing *p)
{
	__u32 header = (p->tcp->offset >> 4) * 4, stated, rest;

	if (p->packet.direction.is_ipv6) {
		const struct ipv6hdr *ip = p->packet.ip;

		stated = __builtin_bswap16(ip->payload_len);
		header += stated ? 0 : sizeof(*ip);
	} else {
		const struct iphdr *ip = p->packet.ip;

		stated = __builtin_bswap16(ip->tot_len);
		header += sizeof(*ip);
	}
	rest = stated ? stated : skb->len - p->before;
	return rest > header ? rest - header : 0;
}

/* Whether it is a TCP packet whose header is at hand. */
static __always_inline int parse_passing(struct __sk_buff *skb, struct passing *p)
{
	if (!parse(skb, &p->packet))
		return 0;
	p->before = p->packet.ip == (void *)(long)skb->data ? 0 : LINK_HEADER_BYTES;
	p->tcp = p->packet.ip + (p->packet.direction.is_ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
	if ((void *)(p->tcp + 1) > (void *)(long)skb->data_end)
		return 0;
	order_ends(p);
	return 1;
}

/* Octets before the TCP header. */
static __always_inline __u32 tcp_at(const struct passing *p)
{
	return p->before + (p->packet.direction.is_ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
}

#endif
