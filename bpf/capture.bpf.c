// SPDX-License-Identifier: GPL-2.0
/*
 * Headers of the packets of an interface, at tc ingress and egress, into a ring of blocks per processor that the reader
 * maps and polls: nobody is woken, nothing is locked, and one look of the reader takes many records.
 *
 * A packet's beginning is copied to where its record will be, and parsed there: link header and VLAN tags, IPv4, IPv6
 * and its extension headers, GRE and IP in IP, down to the transport header. The filter then says whether the record
 * stands, and the snap layer how long it is. What is behind it is overwritten by the next one.
 *
 * A processor's ring has one writer at a time: programs at tc run with softirqs off. Where the kernel lets them be
 * preempted all the same (PREEMPT_RT), `busy` makes a lost record of what would be a torn one.
 */
#include "../cc/bpf/kernel.h"
#include "capture.h"
#include "skb.h"

#define ETH_P_8021Q 0x8100
#define ETH_P_8021AD 0x88a8
#define ETH_P_QINQ1 0x9100
#define ETH_P_ARP 0x0806
#define ETH_P_TEB 0x6558

/* What the next header is: an EtherType, or this and an IP protocol, or nothing that is looked into. */
#define IP_CARRIES 0x10000
#define NOTHING_MORE 0x20000

/* Headers of one packet that are looked through. */
#define LAYERS_MAX 16

enum { ICMP = 1, IPIP = 4, UDP = 17, IPV6_IN_IP = 41, GRE = 47, AH = 51, ICMPV6 = 58, DCCP = 33, SCTP = 132, UDPLITE = 136 };
enum { HOP_BY_HOP = 0, ROUTING = 43, FRAGMENT = 44, DESTINATION_OPTIONS = 60, MOBILITY = 135 };

const volatile struct lf_settings settings SEC(".rodata.lf") = {};

/* Sized by the loader: a block per processor more than its ring has, for packets that find no room. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 2);
	__type(key, __u32);
	__uint(value_size, LF_BLOCK_BYTES);
} blocks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct lf_ring);
} rings SEC(".maps");

/* The beginning of a packet, and what may be read behind it. */
struct beginning {
	__u8 octets[LF_HEADERS_BYTES + LF_SLACK_BYTES];
};

struct view {
	__u32 at;   /* of the next header; behind the last one when there is no more */
	__u32 kind; /* of the next header */
	__u32 link_end;
	__u32 network_end;
	__u16 first_ip; /* where the outermost and the innermost IP header begin */
	__u16 last_ip;
	__u8 first_version; /* 4 or 6; 0: there is none */
	__u8 last_version;
	__u8 protocol; /* that the innermost one carries */
	__u8 tcp_flags;
	__u16 source_port;
	__u16 destination_port;
	__u16 ethertype;
	__u16 vlans[2];
	__u8 vlan_count;
	__u8 tunnels;
	__u8 is_fragment;
	__u8 is_short; /* the next header is not all there */
};

static __always_inline __u16 be16(const __u8 *at)
{
	return at[0] << 8 | at[1];
}

static __always_inline void see_tag(struct view *v, __u16 tci)
{
	v->vlans[v->vlan_count & 1] = tci & 0xfff;
	v->vlan_count++;
}

static __always_inline void see_ip(struct view *v, __u8 version, __u8 protocol)
{
	if (v->first_version) {
		if (!(v->tunnels & LF_SEEN_GRE))
			v->tunnels |= LF_SEEN_IPIP;
	} else {
		v->first_version = version;
		v->first_ip = v->at;
	}
	v->last_version = version;
	v->last_ip = v->at;
	v->protocol = protocol;
}

/* Goes on behind a header of `size` octets, all of which must be there. */
static __always_inline void pass(struct view *v, __u32 have, __u32 size, __u32 next)
{
	if (v->at + size > have) {
		v->is_short = 1;
		v->kind = NOTHING_MORE;
		return;
	}
	v->at += size;
	v->kind = next;
}

static __always_inline void pass_ip(struct view *v, __u32 have, __u32 size, __u8 protocol)
{
	pass(v, have, size, v->is_fragment ? NOTHING_MORE : IP_CARRIES | protocol);
	v->network_end = v->at;
}

static __always_inline void pass_ipv4(const __u8 *h, struct view *v, __u32 have)
{
	__u32 size = (h[0] & 15) * 4;

	if (h[0] >> 4 != 4 || size < 20) {
		v->kind = NOTHING_MORE;
		return;
	}
	see_ip(v, 4, h[9]);
	/* A later fragment has no transport header. */
	v->is_fragment = (be16(h + 6) & 0x1fff) != 0;
	pass_ip(v, have, size, h[9]);
}

static __always_inline void pass_ipv6(const __u8 *h, struct view *v, __u32 have)
{
	if (h[0] >> 4 != 6) {
		v->kind = NOTHING_MORE;
		return;
	}
	see_ip(v, 6, h[6]);
	v->is_fragment = 0;
	pass_ip(v, have, 40, h[6]);
}

/* An extension header of IPv6 (RFC 8200) or the authentication header (RFC 4302). */
static __always_inline void pass_extension(const __u8 *h, struct view *v, __u32 have, __u32 size)
{
	v->protocol = h[0];
	pass_ip(v, have, size, h[0]);
}

/* RFC 2784, 2890; version 1 (RFC 2637) carries PPP, which is not looked into. */
static __always_inline void pass_gre(const __u8 *h, struct view *v, __u32 have)
{
	__u32 size = 4 + (h[0] & 0x80 ? 4 : 0) + (h[0] & 0x20 ? 4 : 0) + (h[0] & 0x10 ? 4 : 0);

	v->tunnels |= LF_SEEN_GRE;
	pass(v, have, size, (h[1] & 7) == 0 ? be16(h + 2) : NOTHING_MORE);
}

static __always_inline void see_ports(const __u8 *h, struct view *v)
{
	v->source_port = be16(h);
	v->destination_port = be16(h + 2);
}

static __always_inline void pass_tcp(const __u8 *h, struct view *v, __u32 have)
{
	__u32 size = (h[12] >> 4) * 4;

	see_ports(h, v);
	v->tcp_flags = h[13];
	pass(v, have, size < 20 ? 20 : size, NOTHING_MORE);
}

/* Errors quote the beginning of the packet they are about: its headers are headers, too. */
static __always_inline __u32 icmp_bytes(__u8 type)
{
	return type == 3 || type == 5 || type == 11 || type == 12 ? 8 + 28 : 8;
}

static __always_inline __u32 icmpv6_bytes(__u8 type)
{
	if (type >= 1 && type <= 4)
		return 8 + 48;
	/* Neighbour discovery: whom it is about. */
	return type >= 133 && type <= 137 ? 24 : 8;
}

/* As much of `size` as there is: what quotes may be shorter. */
static __always_inline void pass_last(struct view *v, __u32 have, __u32 total, __u32 size)
{
	__u32 rest = total - v->at;

	pass(v, have, rest < size ? rest : size, NOTHING_MORE);
}

static __always_inline void pass_transport(const __u8 *h, struct view *v, __u32 have, __u32 total)
{
	switch (v->kind & 0xff) {
	case IPPROTO_TCP:
		return pass_tcp(h, v, have);
	case UDP:
	case UDPLITE:
		see_ports(h, v);
		return pass_last(v, have, total, 8);
	case DCCP:
	case SCTP:
		see_ports(h, v);
		return pass_last(v, have, total, 12);
	case ICMP:
		return pass_last(v, have, total, icmp_bytes(h[0]));
	case ICMPV6:
		return pass_last(v, have, total, icmpv6_bytes(h[0]));
	}
	v->kind = NOTHING_MORE;
}

static __always_inline void pass_carried(const __u8 *h, struct view *v, __u32 have, __u32 total)
{
	switch (v->kind & 0xff) {
	case IPIP:
		v->kind = ETH_P_IP;
		return;
	case IPV6_IN_IP:
		v->kind = ETH_P_IPV6;
		return;
	case GRE:
		return pass_gre(h, v, have);
	}
	if (v->last_version == 6) {
		switch (v->kind & 0xff) {
		case HOP_BY_HOP:
		case ROUTING:
		case DESTINATION_OPTIONS:
		case MOBILITY:
			return pass_extension(h, v, have, 8 + h[1] * 8);
		case FRAGMENT:
			v->is_fragment = (be16(h + 2) & 0xfff8) != 0;
			return pass_extension(h, v, have, 8);
		}
	}
	if ((v->kind & 0xff) == AH)
		return pass_extension(h, v, have, 8 + h[1] * 4);
	pass_transport(h, v, have, total);
}

/* What the smallest header of a kind needs, so that its fields may be read. */
static __always_inline __u32 least_bytes(__u32 kind)
{
	switch (kind) {
	case ETH_P_TEB:
		return 14;
	case ETH_P_IP:
		return 20;
	case ETH_P_IPV6:
		return 40;
	case IP_CARRIES | IPPROTO_TCP:
		return 20;
	case IP_CARRIES | IPIP:
	case IP_CARRIES | IPV6_IN_IP:
		return 0;
	}
	return 4;
}

static __always_inline void pass_kind(const __u8 *h, struct view *v, __u32 have, __u32 total)
{
	switch (v->kind) {
	case ETH_P_TEB:
		v->ethertype = be16(h + 12);
		pass(v, have, 14, v->ethertype);
		v->link_end = v->at;
		return;
	case ETH_P_8021Q:
	case ETH_P_8021AD:
	case ETH_P_QINQ1:
		see_tag(v, be16(h));
		v->ethertype = be16(h + 2);
		pass(v, have, 4, v->ethertype);
		v->link_end = v->at;
		return;
	case ETH_P_IP:
		return pass_ipv4(h, v, have);
	case ETH_P_IPV6:
		return pass_ipv6(h, v, have);
	case ETH_P_ARP:
		return pass_last(v, have, total, 28);
	}
	if (v->kind & IP_CARRIES)
		return pass_carried(h, v, have, total);
	v->kind = NOTHING_MORE;
}

/*
 * Goes past one header of a packet of `total` octets, of which `have` are there. Says whether there is another. Global,
 * as the next one with a loop around it: the verifier goes through it once, not once per layer.
 */
__attribute__((noinline)) int pass_one(const struct beginning *data, struct view *v, __u32 have, __u32 total)
{
	__u32 at;

	if (!data || !v || v->kind == NOTHING_MORE)
		return 0;
	at = v->at;
	if (at > LF_HEADERS_BYTES || at + least_bytes(v->kind) > have) {
		v->is_short = 1;
		return 0;
	}
	pass_kind(data->octets + at, v, have, total);
	return v->kind != NOTHING_MORE;
}

/* Says whether an IPv4 header without options, or an IPv6 header, is followed by TCP's, and how long it is; else 0. */
static __always_inline __u32 before_tcp(const __u8 *ip, __u16 ethertype, __u32 have)
{
	if (ethertype == ETH_P_IP && have >= 40 && ip[0] == 0x45 && ip[9] == IPPROTO_TCP)
		return be16(ip + 6) & 0x1fff ? 0 : 20;
	if (ethertype == ETH_P_IPV6 && have >= 60 && ip[0] >> 4 == 6 && ip[6] == IPPROTO_TCP)
		return 40;
	return 0;
}

/* What nearly every packet is, at one look instead of one per header. What it says is what they say. */
static __always_inline int parse_common(const struct beginning *data, __u32 have, struct view *v)
{
	const __u32 link = settings.is_raw_ip ? 0 : 14;
	__u16 ethertype = settings.is_raw_ip ? v->ethertype : be16(data->octets + 12);
	__u32 size = have < link ? 0 : before_tcp(data->octets + link, ethertype, have - link);

	if (!size)
		return 0;
	v->ethertype = ethertype;
	v->link_end = v->first_ip = v->last_ip = link;
	v->first_version = v->last_version = size == 20 ? 4 : 6;
	v->protocol = IPPROTO_TCP;
	v->network_end = v->at = link + size;
	if (size == 20)
		pass_tcp(data->octets + link + 20, v, have);
	else
		pass_tcp(data->octets + link + 40, v, have);
	return 1;
}

static __always_inline void parse(const struct beginning *data, __u32 have, __u32 total, struct view *v)
{
	__u32 i;

	__builtin_memset(v, 0, sizeof(*v));
	v->kind = ETH_P_TEB;
	if (settings.is_raw_ip)
		v->kind = data->octets[0] >> 4 == 6 ? ETH_P_IPV6 : ETH_P_IP;
	v->ethertype = v->kind;
	if (parse_common(data, have, v))
		return;
	for (i = 0; i < LAYERS_MAX && pass_one(data, v, have, total); i++)
		;
}

static __always_inline __u32 word(const __u8 *at)
{
	return *(const __u32 *)at;
}

static __always_inline int same(const volatile struct lf_test *t, const __u8 *address, __u32 version)
{
	if ((word(address) ^ t->address[0]) & t->mask[0])
		return 0;
	if (version == 4)
		return 1;
	return !(((word(address + 4) ^ t->address[1]) & t->mask[1]) | ((word(address + 8) ^ t->address[2]) & t->mask[2]) |
		 ((word(address + 12) ^ t->address[3]) & t->mask[3]));
}

static __always_inline int address_fits(const volatile struct lf_test *t, const __u8 *data, __u32 ip, __u32 version)
{
	__u32 source = version == 4 ? 12 : 8, length = version == 4 ? 4 : 16;

	if (version != t->low || ip > LF_HEADERS_BYTES)
		return 0;
	if (t->side & LF_SOURCE && same(t, data + ip + source, version))
		return 1;
	return t->side & LF_DESTINATION && same(t, data + ip + source + length, version);
}

static __always_inline int within(const volatile struct lf_test *t, __u16 value)
{
	return value >= t->low && value <= t->high;
}

static __always_inline int has_ports(const struct view *v)
{
	return v->source_port | v->destination_port;
}

/* Whether a packet passes one test. */
static __always_inline int holds(const volatile struct lf_test *t, const struct beginning *data, const struct view *v,
				 __u32 direction)
{
	switch (t->kind) {
	case LF_TEST_DIRECTION:
		return t->low == direction;
	case LF_TEST_FAMILY:
		return v->first_version == t->low || v->last_version == t->low;
	case LF_TEST_ADDRESS:
		return address_fits(t, data->octets, v->last_ip, v->last_version) ||
		       address_fits(t, data->octets, v->first_ip, v->first_version);
	case LF_TEST_PROTOCOL:
		return v->last_version && v->protocol == t->low;
	case LF_TEST_PORT:
		return has_ports(v) && ((t->side & LF_SOURCE && within(t, v->source_port)) ||
					(t->side & LF_DESTINATION && within(t, v->destination_port)));
	case LF_TEST_VLAN:
		return (v->vlan_count > 0 && within(t, v->vlans[0])) || (v->vlan_count > 1 && within(t, v->vlans[1]));
	case LF_TEST_TUNNEL:
		return (v->tunnels & t->low) != 0;
	case LF_TEST_TCP_FLAGS:
		return (v->tcp_flags & t->low) != 0;
	case LF_TEST_ETHERTYPE:
		return v->ethertype == t->low;
	}
	return 0;
}

/*
 * The test after this one, or the verdict. Global: the verifier goes through it once, not along every way of a filter.
 */
__attribute__((noinline)) int next_test(__u32 test, const struct beginning *data, const struct view *v, __u32 direction)
{
	const volatile struct lf_test *t;

	if (!data || !v || test >= LF_TESTS_MAX)
		return LF_REJECT;
	t = &settings.tests[test];
	return holds(t, data, v, direction) ? t->if_true : t->if_false;
}

static __always_inline int accepted(const struct beginning *data, const struct view *v, __u32 direction)
{
	__u32 i, test = 0;

	for (i = 0; i < LF_TESTS_MAX && test < LF_TESTS_MAX; i++)
		test = next_test(test, data, v, direction);
	return test == LF_ACCEPT;
}

/* Most that is copied of a packet. */
static __always_inline __u32 most_bytes(void)
{
	return settings.payload_bytes ? LF_KEPT_MAX_BYTES : LF_HEADERS_BYTES;
}

static __always_inline int load_from(struct __sk_buff *skb, __u32 offset, __u8 *to, __u32 bytes)
{
	__u64 count = bytes, least = 1;

	/*
	 * Else the compiler proves the bounds away, or makes one test of both, and the verifier does not see them. A test
	 * against zero alone tells some verifiers nothing, and others learn nothing of 64 bits by a test of 32.
	 */
	asm volatile("" : "+r"(count), "+r"(least));
	if (count < least || count > most_bytes())
		return -1;
	return bpf_skb_load_bytes(skb, offset, to, count);
}

/* The VLAN tag that the kernel keeps beside a packet. */
static __always_inline __u32 tag_bytes(struct __sk_buff *skb)
{
	return skb->vlan_present ? 4 : 0;
}

static __always_inline __u32 wire_bytes(struct __sk_buff *skb)
{
	return skb->len + tag_bytes(skb);
}

/* The first octets of a packet, with the VLAN tag that the kernel keeps beside it where it stood on the wire. */
static __always_inline int load(struct __sk_buff *skb, __u8 *to, __u32 bytes)
{
	__u16 tag[2];

	if (!skb->vlan_present)
		return load_from(skb, 0, to, bytes);
	if (bytes <= 16)
		return -1;
	tag[0] = skb->vlan_proto;
	tag[1] = __builtin_bswap16(skb->vlan_tci);
	__builtin_memcpy(to + 12, tag, 4);
	if (load_from(skb, 0, to, 12))
		return -1;
	return load_from(skb, 12, to + 16, bytes - 16);
}

static __always_inline __u32 kept_bytes(const struct view *v, __u32 total)
{
	__u32 end = v->at;

	if (settings.snap == LF_SNAP_LINK)
		end = v->link_end;
	else if (settings.snap == LF_SNAP_NETWORK)
		end = v->network_end ? v->network_end : v->at;
	end += settings.payload_bytes;
	return end < total ? end : total;
}

/* What is at hand without gathering a packet's pieces; its headers, nearly always. */
static __always_inline __u32 at_hand(struct __sk_buff *skb, __u32 total)
{
	__u32 linear = (__u32)(skb->data_end - skb->data) + tag_bytes(skb);

	return linear < total ? linear : total;
}

#define COMMON_BYTES 128

/*
 * Copies and parses a packet; gives back how much of it is to be kept, or a negative number when it is not meant.
 * The fast path copies what common headers need, once. `headers_bytes` is how long all headers are.
 */
static __always_inline int take(struct __sk_buff *skb, __u8 *to, __u32 direction, __u32 *headers_bytes)
{
	__u32 total = wire_bytes(skb), have = at_hand(skb, total);
	__u32 most = total < LF_HEADERS_BYTES ? total : LF_HEADERS_BYTES, kept;
	struct view v;

	if (have > COMMON_BYTES)
		have = COMMON_BYTES;
	if (load(skb, to, have))
		have = 0;
	parse((void *)to, have, total, &v);
	if (v.is_short && have < most) {
		have = most;
		if (load(skb, to, have))
			return -1;
		parse((void *)to, have, total, &v);
	}
	if (settings.has_filter && !accepted((void *)to, &v, direction))
		return -1;
	*headers_bytes = v.at;
	/* A header that is cut, or too deep, is kept as far as it was loaded. */
	kept = v.is_short ? have : kept_bytes(&v, total);
	if (kept <= have)
		return kept;
	if (kept > most_bytes())
		kept = most_bytes();
	return load(skb, to, kept) ? (int)have : (int)kept;
}

/* How many packets a bundle is on the wire. Another machine's, of virtio or tap, comes with their size alone. */
static __always_inline __u16 segments(struct __sk_buff *skb, __u32 headers_bytes)
{
	__u32 size = skb->gso_size, total = wire_bytes(skb);

	if (skb->gso_segs || !size || total <= headers_bytes)
		return skb->gso_segs;
	return (total - headers_bytes + size - 1) / size;
}

static __always_inline void commit(struct __sk_buff *skb, struct lf_ring *ring, struct lf_record *record,
				   __u64 position, __u32 kept, __u32 direction, __u32 headers_bytes)
{
	record->time_ns = bpf_ktime_get_ns();
	record->wire_bytes = wire_bytes(skb);
	record->kept = kept | (direction == LF_OUTBOUND_INDEX ? LF_OUTBOUND : 0);
	record->segments = segments(skb, headers_bytes);
	/* A full barrier: the record is there before the reader is told of it. */
	__sync_lock_test_and_set(&ring->head, position + ((sizeof(*record) + kept + 7) & ~7ULL));
}

static __always_inline __u8 *block(__u32 processor, __u64 index)
{
	__u32 key = processor * (settings.ring_blocks + 1) + index;

	return bpf_map_lookup_elem(&blocks, &key);
}

static __always_inline int has_room(struct lf_ring *ring, __u64 end)
{
	__u64 bytes = (__u64)settings.ring_blocks * LF_BLOCK_BYTES;

	if (end - ring->tail_seen <= bytes)
		return 1;
	ring->tail_seen = *(volatile __u64 *)&ring->tail;
	return end - ring->tail_seen <= bytes;
}

/* Where the next record goes: behind the last one, or at the beginning of the next block. */
static __always_inline __u64 next_position(struct lf_ring *ring, __u32 processor, __u32 need)
{
	__u64 head = ring->head, offset = head & (LF_BLOCK_BYTES - 1);
	__u8 *here;

	if (offset + need <= LF_BLOCK_BYTES)
		return head;
	here = block(processor, (head / LF_BLOCK_BYTES) & (settings.ring_blocks - 1));
	/* Less than a record's head says by itself that there is none. */
	if (here && offset <= LF_BLOCK_BYTES - sizeof(struct lf_record))
		((struct lf_record *)(here + offset))->kept = LF_BLOCK_ENDS;
	return head - offset + LF_BLOCK_BYTES;
}

static __always_inline void record(struct __sk_buff *skb, struct lf_ring *ring, __u32 processor, __u32 direction)
{
	const __u32 need = sizeof(struct lf_record) + LF_SLACK_BYTES + most_bytes();
	__u64 position = next_position(ring, processor, need), offset;
	int room = has_room(ring, position + need), kept;
	__u32 headers_bytes = 0;
	__u8 *to;

	to = block(processor, room ? (position / LF_BLOCK_BYTES) & (settings.ring_blocks - 1) : settings.ring_blocks);
	offset = room ? position & (LF_BLOCK_BYTES - 1) : 0;
	if (!to || offset > LF_BLOCK_BYTES - need)
		return;
	kept = take(skb, to + offset + sizeof(struct lf_record), direction, &headers_bytes);
	if (kept < 0)
		return;
	ring->matched[direction]++;
	if (room)
		commit(skb, ring, (void *)(to + offset), position, kept, direction, headers_bytes);
	else
		ring->dropped[direction]++;
}

static __always_inline int look(struct __sk_buff *skb, __u32 direction)
{
	__u32 processor = bpf_get_smp_processor_id();
	struct lf_ring *ring = bpf_map_lookup_elem(&rings, &processor);

	if (!ring)
		return TCX_NEXT;
	ring->seen[direction]++;
	if (ring->busy) {
		ring->matched[direction]++;
		ring->dropped[direction]++;
		return TCX_NEXT;
	}
	ring->busy = 1;
	record(skb, ring, processor, direction);
	ring->busy = 0;
	return TCX_NEXT;
}

SEC("tcx/ingress")
int inbound(struct __sk_buff *skb)
{
	return look(skb, LF_INBOUND_INDEX);
}

SEC("tcx/egress")
int outbound(struct __sk_buff *skb)
{
	return look(skb, LF_OUTBOUND_INDEX);
}

char LICENSE[] SEC("license") = "GPL";
