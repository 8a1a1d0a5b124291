/* SPDX-License-Identifier: GPL-2.0 */
/* TCP packets at tc, by the direction of a connection in which they go. */
#ifndef LONGFAT_DIRECTION_H
#define LONGFAT_DIRECTION_H

#include "ip.h"
#include "skb.h"

/* Of tcphdr.flags. */
#define FIN 0x01
#define SYN 0x02
#define RST 0x04
#define ACK 0x10
#define URG 0x20

/* One direction of a connection, as its packets have it: in network byte order. IPv4 stands in the first words. */
struct direction {
	__u32 from[4], to[4];
	__u16 from_port, to_port;
	__u32 is_ipv6;
} __attribute__((aligned(8))); /* compared by words of eight octets */

/* A TCP packet. */
struct packet {
	struct direction direction;
	void *ip;
	__u8 flags;
};

/* Words of eight octets by which two directions, or the ends of two connections, are compared. */
#define ENDS_WORDS 5

static __always_inline int is_same(const void *one, const void *other)
{
	const __u64 *a = one, *b = other;

	return !((a[4] ^ b[4]) | (a[0] ^ b[0]) | (a[2] ^ b[2]) | (a[1] ^ b[1]) | (a[3] ^ b[3]));
}

/* What tells where in an array they stand. Odd constants of their own: there and back are two places. */
static __always_inline __u32 mix(const __u32 *one, const __u32 *other, __u16 one_port, __u16 other_port)
{
	__u32 a = one[0] ^ one[1] ^ one[2] ^ one[3], b = other[0] ^ other[1] ^ other[2] ^ other[3];
	__u32 ports = (__u32)one_port << 16 | other_port;

	return ((a * 0x9e3779b1u) ^ (b * 0x85ebca77u) ^ (ports * 0xc2b2ae3du)) * 0x27d4eb2fu;
}

static __always_inline int parse_ports(struct tcphdr *tcp, void *end, struct packet *p)
{
	if ((void *)(tcp + 1) > end)
		return 0;
	p->direction.from_port = tcp->source;
	p->direction.to_port = tcp->dest;
	p->flags = tcp->flags;
	return 1;
}

/* Packets with IP options or extension headers are left alone, as are fragments. */
static __always_inline int parse4(struct iphdr *ip, void *end, struct packet *p)
{
	if ((void *)(ip + 1) > end || ip->version_ihl != 0x45 || ip->protocol != IPPROTO_TCP)
		return 0;
	if (ip->frag_off & __builtin_bswap16(0x3fff))
		return 0;
	p->direction.from[0] = ip->saddr;
	p->direction.to[0] = ip->daddr;
	return parse_ports((void *)(ip + 1), end, p);
}

static __always_inline int parse6(struct ipv6hdr *ip, void *end, struct packet *p)
{
	if ((void *)(ip + 1) > end || ip->nexthdr != IPPROTO_TCP)
		return 0;
	p->direction.is_ipv6 = 1;
	__builtin_memcpy(p->direction.from, ip->saddr, 16);
	__builtin_memcpy(p->direction.to, ip->daddr, 16);
	return parse_ports((void *)(ip + 1), end, p);
}

/* On an Ethernet interface, or one without link headers (tun and the like). */
static __always_inline int parse(struct __sk_buff *skb, struct packet *p)
{
	void *at = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	int is_ipv4 = skb->protocol == __builtin_bswap16(ETH_P_IP);

	if (!is_ipv4 && skb->protocol != __builtin_bswap16(ETH_P_IPV6))
		return 0;
	if (at + 14 > end)
		return 0;
	if (*(__u16 *)(at + 12) == (__u16)skb->protocol)
		at += 14;
	else if (*(__u8 *)at >> 4 != (is_ipv4 ? 4 : 6))
		return 0;
	p->ip = at;
	return is_ipv4 ? parse4(at, end, p) : parse6(at, end, p);
}

#endif
