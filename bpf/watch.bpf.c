// SPDX-License-Identifier: GPL-2.0
/*
 * Watches connections that pass this host from end to end: what their handshakes agreed on, how far each end is, how
 * many bytes have passed. User space hears of a connection once, when it has reached what it was told to wait for, and
 * may have its packets led there from then on: they go to an interface of its own. (Not by a mark and a route: once the
 * connection has a socket here, the kernel ties its packets to that before it routes them, and forwards none of them.)
 *
 * At tc ingress. One look-up for a packet; nothing is copied but the two packets of a handshake. Counts of one
 * connection are not atomic: two processors may lose some bytes between them, never a sequence number for good.
 */
#include "direction.h"
#include "watch.h"

#define LRU_HASH 9 /* BPF_MAP_TYPE_LRU_HASH */
#define QUEUE 22 /* BPF_MAP_TYPE_QUEUE */
#define CONNECTIONS (1 << 16)
#define ORDERS (1 << 14)

/* A flood of SYNs drives out whatever was not used for longest: those stay end to end. */
struct {
	__uint(type, LRU_HASH);
	__uint(max_entries, CONNECTIONS);
	__type(key, struct lf_ends);
	__type(value, struct lf_watched);
} connections SEC(".maps");

/* From user space. Those of connections that have ended without a word are driven out. */
struct {
	__uint(type, LRU_HASH);
	__uint(max_entries, ORDERS);
	__type(key, struct lf_ends);
	__type(value, struct lf_order);
} orders SEC(".maps");

/* For user space. */
struct {
	__uint(type, QUEUE);
	__uint(max_entries, ORDERS);
	__type(value, struct lf_ends);
} reached SEC(".maps");

struct lf_after after SEC(".data.after");
struct lf_watch_counts counts SEC(".bss.counts");

/* A packet as its connection has it. */
struct passing {
	struct packet packet;
	struct tcphdr *tcp;
	struct lf_ends ends;
	__u32 is_from_high;
	__u32 payload_bytes;
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
	__u32 before = p->packet.ip - (void *)(long)skb->data, header = (p->tcp->offset >> 4) * 4, stated, rest;

	if (p->packet.direction.is_ipv6) {
		const struct ipv6hdr *ip = p->packet.ip;

		stated = __builtin_bswap16(ip->payload_len);
		header += stated ? 0 : sizeof(*ip);
	} else {
		const struct iphdr *ip = p->packet.ip;

		stated = __builtin_bswap16(ip->tot_len);
		header += sizeof(*ip);
	}
	rest = stated ? stated : skb->len - before;
	return rest > header ? rest - header : 0;
}

static __always_inline void copy_offer(struct __sk_buff *skb, const struct passing *p, struct lf_offer *offer)
{
	__u32 header = (p->tcp->offset >> 4) * 4, at = (void *)p->tcp - (void *)(long)skb->data;

	/* The verifier wants the bounds of the very register that is passed on. */
	asm volatile("" : "+r"(header));
	if (header < sizeof(struct tcphdr) || header > LF_TCP_HEADER_BYTES)
		return;
	if (bpf_skb_load_bytes(skb, at, offer->header, header))
		return;
	offer->header_bytes = header;
	offer->payload_bytes = p->payload_bytes;
}

/* A client begins. The same SYN again changes nothing. */
static __always_inline void open(struct __sk_buff *skb, const struct passing *p, const struct lf_watched *known)
{
	__u32 sequence = __builtin_bswap32(p->tcp->seq);
	struct lf_watched fresh = {};
	struct tcphdr *first;

	if (known && known->is_client_high == p->is_from_high) {
		first = (void *)known->syn.header;
		if (first->seq == p->tcp->seq)
			return;
	}
	copy_offer(skb, p, &fresh.syn);
	fresh.opened_ns = bpf_ktime_get_ns();
	fresh.next[0] = sequence + 1 + p->payload_bytes;
	fresh.interface = skb->ingress_ifindex ? skb->ingress_ifindex : skb->ifindex;
	fresh.is_client_high = p->is_from_high;
	bpf_map_update_elem(&connections, &p->ends, &fresh, 0);
}

/* The answer to the SYN that was seen. */
static __always_inline void answer(struct __sk_buff *skb, const struct passing *p, struct lf_watched *w)
{
	if (w->is_client_high == p->is_from_high || __builtin_bswap32(p->tcp->ack) != w->next[0])
		return;
	if (!w->answer.header_bytes)
		__sync_fetch_and_add(&counts.opened, 1);
	copy_offer(skb, p, &w->answer);
	w->next[1] = __builtin_bswap32(p->tcp->seq) + 1 + p->payload_bytes;
}

/* How far its sender is. */
static __always_inline void follow(const struct passing *p, struct lf_watched *w)
{
	__u32 is_server = w->is_client_high != p->is_from_high;
	__u32 *next = is_server ? &w->next[1] : &w->next[0];
	__u32 end = __builtin_bswap32(p->tcp->seq) + p->payload_bytes;

	if (p->packet.flags & FIN) {
		end++;
		w->finished |= is_server ? 2 : 1;
	}
	if (p->packet.flags & RST)
		w->finished |= 4;
	else if ((__s32)(end - *next) > 0)
		*next = end;
	w->bytes += p->payload_bytes;
}

static __always_inline int is_due(const struct lf_watched *w)
{
	if (!w->answer.header_bytes || w->finished)
		return 0;
	if (after.bytes && w->bytes >= after.bytes)
		return 1;
	return after.ns && bpf_ktime_get_ns() - w->opened_ns >= after.ns;
}

static __always_inline int tell(const struct passing *p)
{
	if (bpf_map_push_elem(&reached, &p->ends, 0)) {
		__sync_fetch_and_add(&counts.untold, 1);
		return 0;
	}
	return 1;
}

static __always_inline void tell_first(const struct passing *p, struct lf_watched *w)
{
	/* Both ends' packets may be here at once, on two processors. */
	if (__sync_lock_test_and_set(&w->is_told, 1))
		return;
	if (tell(p))
		__sync_fetch_and_add(&counts.reached, 1);
	else
		w->is_told = 0;
}

/* Leads a packet to user space if that has asked for it. */
static __always_inline int lead(const struct passing *p)
{
	struct lf_order *order = bpf_map_lookup_elem(&orders, &p->ends);

	if (!order)
		return TCX_NEXT;
	if (order->lead == LF_TELL_AGAIN) {
		if (tell(p))
			bpf_map_delete_elem(&orders, &p->ends);
		return TCX_NEXT;
	}
	if (order->lead == LF_LEAD_RESETS && !(p->packet.flags & RST))
		return TCX_NEXT;
	return bpf_redirect(order->interface, 0);
}

SEC("tcx/ingress")
int watch(struct __sk_buff *skb)
{
	struct passing p = {};
	struct lf_watched *w = 0;
	int watches;

	if (!parse(skb, &p.packet))
		return TCX_NEXT;
	p.tcp = p.packet.ip + (p.packet.direction.is_ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
	if ((void *)(p.tcp + 1) > (void *)(long)skb->data_end)
		return TCX_NEXT;
	order_ends(&p);
	p.payload_bytes = payload_bytes(skb, &p);
	watches = after.bytes || after.ns;
	if (watches)
		w = bpf_map_lookup_elem(&connections, &p.ends);
	if (p.packet.flags & SYN) {
		if ((p.packet.flags & (ACK | RST | FIN)) == 0 && watches)
			open(skb, &p, w);
		else if (w)
			answer(skb, &p, w);
		return TCX_NEXT;
	}
	/* The order of both: user space gives an order, and then looks how far the ends are. */
	if (w)
		follow(&p, w);
	if (after.leads_any || !watches || (w && w->is_told)) {
		int verdict = lead(&p);

		if (verdict != TCX_NEXT || !w || w->is_told)
			return verdict;
	}
	if (!w)
		return TCX_NEXT;
	if (is_due(w))
		tell_first(&p, w);
	/* Room for others. What user space knows of it forgets. */
	else if ((w->finished & 4) || w->finished == 3)
		bpf_map_delete_elem(&connections, &p.ends);
	return TCX_NEXT;
}

char LICENSE[] SEC("license") = "GPL";
