/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What a program at tc or of a cgroup sees of a packet, and what it answers at tc. Layout is kernel ABI (linux/bpf.h).
 */
#ifndef LONGFAT_SKB_H
#define LONGFAT_SKB_H

/* What to do with a packet: go on to whoever comes next, or drop it. */
#define TCX_NEXT -1
#define TCX_DROP 2
/* As bpf_redirect() has said. */
#define TCX_REDIRECT 7

#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
#define IPPROTO_TCP 6

struct bpf_sock;

/* Of writers of a map's value. */
struct bpf_spin_lock {
	__u32 val;
};

/* Layout is kernel ABI (linux/bpf.h): remote first, as in an arriving packet. */
struct bpf_sock_tuple {
	union {
		struct {
			__u32 saddr, daddr;
			__u16 sport, dport;
		} ipv4;
		struct {
			__u32 saddr[4], daddr[4];
			__u16 sport, dport;
		} ipv6;
	};
};

struct __sk_buff {
	__u32 len;
	__u32 pkt_type;
	__u32 mark;
	__u32 queue_mapping;
	__u32 protocol;
	__u32 vlan_present;
	__u32 vlan_tci;
	__u32 vlan_proto;
	__u32 priority;
	__u32 ingress_ifindex;
	__u32 ifindex;
	__u32 tc_index;
	__u32 cb[5];
	__u32 hash;
	__u32 tc_classid;
	__u32 data;
	__u32 data_end;
	__u32 napi_id;
	__u32 family;
	__u32 remote_ip4;
	__u32 local_ip4;
	__u32 remote_ip6[4];
	__u32 local_ip6[4];
	__u32 remote_port;
	__u32 local_port;
	__u32 data_meta;
	__u64 flow_keys;
	__u64 tstamp;
	__u32 wire_len;
	__u32 gso_segs;
	struct bpf_sock *sk;
	__u32 gso_size;
};

/* Whether a packet is of a VLAN, whose interface looks at it again. A tag that has a priority alone makes none. */
static inline __attribute__((always_inline)) int is_of_vlan(const struct __sk_buff *skb)
{
	return skb->vlan_present && (skb->vlan_tci & 0xfff);
}

#endif
