/* SPDX-License-Identifier: GPL-2.0 */
/* Headers of a packet as they are on the wire, in network byte order. */
#ifndef LONGFAT_IP_H
#define LONGFAT_IP_H

#include "../cc/bpf/kernel.h"

struct iphdr {
	__u8 version_ihl, tos;
	__u16 tot_len, id, frag_off;
	__u8 ttl, protocol;
	__u16 check;
	__u32 saddr, daddr;
};
struct ipv6hdr {
	__u32 flow;
	__u16 payload_len;
	__u8 nexthdr, hop_limit;
	__u32 saddr[4], daddr[4];
};
struct tcphdr {
	__u16 source, dest;
	__u32 seq, ack;
	__u8 offset, flags;
	__u16 window, check, urgent;
};

#endif
