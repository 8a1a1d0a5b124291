// SPDX-License-Identifier: GPL-2.0
/*
 * Acknowledges to an end only what the other end has acknowledged, where a relay carries a connection by two sockets
 * that share the ends' sequence numbers. What the relay alone has received is not acknowledged, so it can be lost with
 * the relay and its host.
 *
 * tell  At tc egress: a packet of a socket towards an end has its acknowledgement number held back at that of the other
 *       end. The right edge of its window stays where the socket put it, so nothing is sent later for it. When the
 *       other end stalls, the sender repeats what is not acknowledged. The answer to that tells a window of zero, for
 *       otherwise it would give the connection up after some minutes (RFC 9293 section 3.8.6.1 and RFC 1122 section
 *       4.2.2.17). Selective acknowledgements go while something is held back: they would make what lies before them
 *       look lost.
 * hear  At tc ingress, before anybody leads or drops packets: an end's acknowledgement is noted. One that carries
 *       nothing goes on to the other end at once, in the name of the socket there: with its sequence number, window and
 *       timestamps, in a frame as that socket sends them. One with data needs no such copy: the data go on. Whose SYN
 *       or SYN-ACK was heard is noted, too: another end cannot be heard here. Its addresses are translated behind this
 *       hook, or it comes by an interface that has none.
 *
 * Each writes before it reads what the other one writes, by atomic instructions, which are barriers. So either `tell`
 * finds what was acknowledged, or `hear` finds what was held back.
 */
#include "acknowledge.h"
#include "passing.h"

#define PERCPU_ARRAY 6 /* BPF_MAP_TYPE_PERCPU_ARRAY */
#define CONNECTIONS (1 << 16)
#define HANDSHAKES (1 << 14)
#define HEADER_MASK 63
#define TRIES 4
#define STALL_NS 200000000ull /* the least time after which a sender repeats something (TCP_RTO_MIN) */
/* Options (RFC 9293 section 3.2, RFC 2018, RFC 7323). */
#define OPTION_END 0
#define OPTION_NOTHING 1
#define OPTION_SACK 5
#define OPTION_TIMESTAMPS 8
#define TIMESTAMPS_BYTES 10
#define STAMPS_BYTES 8 /* of these: both stamps, as in lf_ack_leg */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, CONNECTIONS);
	__type(key, struct lf_ends);
	__type(value, struct lf_acks);
} acknowledged SEC(".maps");

/* Whose SYN or SYN-ACK was heard: bits of lf_heard. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, HANDSHAKES);
	__type(key, struct lf_ends);
	__type(value, __u32);
} handshakes SEC(".maps");

/* A TCP header before and after it was changed. */
struct headers {
	__u8 old[HEADER_MASK + 1], new[HEADER_MASK + 1];
	__u8 link[LF_LINK_BYTES];
};

enum { OF_TELL, OF_HEAR };

/* One for each program: a copy that `hear` sends passes `tell`. */
struct {
	__uint(type, PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct headers);
} scratch SEC(".maps");

static __always_inline int is_later(__u32 one, __u32 other)
{
	return (__s32)(one - other) > 0;
}

/* A sequence number goes forward only, whoever else moves it. */
static __always_inline void advance(__u32 *at, __u32 to)
{
	int i;

	for (i = 0; i < TRIES; i++) {
		__u32 was = *(volatile __u32 *)at;

		if (!is_later(to, was) || __sync_val_compare_and_swap(at, was, to) == was)
			return;
	}
}

static __always_inline struct lf_ack_leg *leg_towards_receiver(struct lf_acks *a, const struct passing *p)
{
	return p->is_from_high ? &a->legs[0] : &a->legs[1];
}

static __always_inline struct lf_ack_leg *leg_towards_sender(struct lf_acks *a, const struct passing *p)
{
	return p->is_from_high ? &a->legs[1] : &a->legs[0];
}

/* What is told to an end, by what the other has acknowledged and the socket has received. */
static __always_inline __u32 told(const struct lf_ack_leg *leg, __u32 acked)
{
	return is_later(acked, leg->want) ? leg->want : acked;
}

/* As it stands in a packet that acknowledges so much. */
static __always_inline __u16 window_from(const struct lf_ack_leg *leg, __u32 acknowledged)
{
	__u32 room = leg->edge - acknowledged;

	if ((__s32)room <= 0)
		return 0;
	room >>= leg->scale & 15;
	return __builtin_bswap16(room > 0xffff ? 0xffff : room);
}

/*
 * Blanks selective acknowledgements among the options of `h->new`, which has so many bytes, and gives it a leg's
 * timestamps if there is one.
 */
static __always_inline void change_options(struct headers *h, __u32 header, const struct lf_ack_leg *leg)
{
	__u32 kind = OPTION_END, left = 0;
	__u32 i;

	/* Octet by octet, so that the verifier knows each place. */
	for (i = sizeof(struct tcphdr); i < LF_TCP_HEADER_BYTES; i++) {
		if (i >= header)
			break;
		if (!left) {
			kind = h->new[i];
			if (kind == OPTION_END)
				break;
			if (kind == OPTION_NOTHING)
				continue;
			left = h->new[i + 1];
			if (left < 2 || i + left > header)
				break;
			if (kind == OPTION_TIMESTAMPS && left != TIMESTAMPS_BYTES)
				kind = OPTION_END;
		}
		if (kind == OPTION_SACK)
			h->new[i] = OPTION_NOTHING;
		else if (leg && kind == OPTION_TIMESTAMPS && left <= STAMPS_BYTES)
			h->new[i] = ((const __u8 *)&leg->stamp)[(STAMPS_BYTES - left) & (STAMPS_BYTES - 1)];
		left--;
	}
}

/* Reads a TCP header of so many bytes, twice. */
static __always_inline int read_header(struct __sk_buff *skb, struct headers *h, __u32 at, __u32 header)
{
	/* The verifier wants the bounds of the very register that is passed on; Linux 6.12's wants them one by one. */
	asm volatile("" : "+r"(header));
	if (header < sizeof(struct tcphdr))
		return 0;
	asm volatile("" : "+r"(header));
	if (header > LF_TCP_HEADER_BYTES)
		return 0;
	if (bpf_skb_load_bytes(skb, at, h->old, header))
		return 0;
	__builtin_memcpy(h->new, h->old, sizeof(h->new));
	return 1;
}

static __always_inline int write_bytes(struct __sk_buff *skb, __u32 at, const __u8 *bytes, __u32 header)
{
	asm volatile("" : "+r"(header));
	if (header < sizeof(struct tcphdr))
		return 0;
	asm volatile("" : "+r"(header));
	if (header > LF_TCP_HEADER_BYTES)
		return 0;
	return bpf_skb_store_bytes(skb, at, bytes, header, 0) == 0;
}

/* Writes `h->new` where `h->old` is. What is behind the header is the same in both. */
static __always_inline int write_header(struct __sk_buff *skb, const struct headers *h, __u32 at, __u32 header)
{
	__s64 difference = bpf_csum_diff((void *)h->old, sizeof(h->old), (void *)h->new, sizeof(h->new), 0);

	if (difference < 0 || !write_bytes(skb, at, h->new, header))
		return 0;
	return bpf_l4_csum_replace(skb, at + __builtin_offsetof(struct tcphdr, check), 0, difference, 0) == 0;
}

/* The other end's acknowledgement goes on to the end of this leg. The packet is as before when this returns. */
static __always_inline void send_on(struct __sk_buff *skb, const struct passing *p, struct lf_ack_leg *leg, __u32 acked)
{
	__u32 of_hear = OF_HEAR, at = tcp_at(p), header = (p->tcp->offset >> 4) * 4;
	struct headers *h = bpf_map_lookup_elem(&scratch, &of_hear);
	struct tcphdr *tcp;
	__u32 acknowledged;

	if (!h || p->before != LINK_HEADER_BYTES || !read_header(skb, h, at, header))
		return;
	if (bpf_skb_load_bytes(skb, 0, h->link, LF_LINK_BYTES))
		return;
	acknowledged = told(leg, acked);
	tcp = (void *)h->new;
	tcp->seq = __builtin_bswap32(leg->next);
	tcp->ack = __builtin_bswap32(acknowledged);
	tcp->window = window_from(leg, acknowledged);
	change_options(h, header, leg);
	if (write_header(skb, h, at, header) && !bpf_skb_store_bytes(skb, 0, leg->link, LF_LINK_BYTES, 0) &&
	    !bpf_clone_redirect(skb, leg->interface, 0))
		__sync_fetch_and_add(&leg->sent_on, 1);
	bpf_skb_store_bytes(skb, 0, h->link, LF_LINK_BYTES, 0);
	write_bytes(skb, at, h->old, header);
}

static __always_inline void hear_handshake(const struct passing *p)
{
	__u32 by = p->is_from_high ? LF_HEARD_HIGH : LF_HEARD_LOW;
	__u32 *heard = bpf_map_lookup_elem(&handshakes, &p->ends);

	/* A SYN begins another connection of these ends, or the same one again. */
	if (heard && p->packet.flags & ACK)
		*heard |= by;
	else if (!heard || *heard != by)
		bpf_map_update_elem(&handshakes, &p->ends, &by, 0);
}

SEC("tcx/ingress")
int hear(struct __sk_buff *skb)
{
	struct passing p = {};
	struct lf_ack_leg *leg, *there;
	struct lf_acks *a;
	__u32 acked, before;

	if (is_of_vlan(skb) || !parse_passing(skb, &p))
		return TCX_NEXT;
	if (p.packet.flags & SYN) {
		hear_handshake(&p);
		return TCX_NEXT;
	}
	if ((p.packet.flags & (RST | ACK)) != ACK)
		return TCX_NEXT;
	a = bpf_map_lookup_elem(&acknowledged, &p.ends);
	if (!a)
		return TCX_NEXT;
	leg = leg_towards_receiver(a, &p);
	there = leg_towards_sender(a, &p);
	acked = __builtin_bswap32(p.tcp->ack);
	before = leg->acked;
	if (!is_later(acked, before))
		return TCX_NEXT;
	/* Nobody has checked a sum yet. What was not sent cannot be acknowledged, if it is known what was. */
	if (there->interface && is_later(acked, there->next))
		return TCX_NEXT;
	leg->acked_ns = bpf_ktime_get_coarse_ns();
	advance(&leg->acked, acked);
	if (!is_later(*(volatile __u32 *)&leg->want, before) || !leg->interface)
		return TCX_NEXT;
	if ((p.packet.flags & (FIN | URG)) || payload_bytes(skb, &p))
		return TCX_NEXT;
	send_on(skb, &p, leg, acked);
	return TCX_NEXT;
}

/* Notes what a later copy needs to look like. Linux puts timestamps first. Whether the window has grown. */
static __always_inline int note(struct __sk_buff *skb, const struct passing *p, struct lf_ack_leg *leg, __u32 ack)
{
	const __u32 stamps = __builtin_bswap32(OPTION_NOTHING << 24 | OPTION_NOTHING << 16 | OPTION_TIMESTAMPS << 8 |
					       TIMESTAMPS_BYTES);
	__u32 window = (__u32)__builtin_bswap16(p->tcp->window) << (leg->scale & 15);
	const __u32 *options = (void *)(p->tcp + 1);

	int has_grown = is_later(ack + window, leg->edge);

	leg->edge = ack + window;
	if (p->tcp->offset >> 4 >= 8 && (void *)(options + 3) <= (void *)(long)skb->data_end && options[0] == stamps) {
		leg->stamp = options[1];
		leg->echo = options[2];
	}
	if (p->before == LINK_HEADER_BYTES && !bpf_skb_load_bytes(skb, 0, leg->link, LF_LINK_BYTES))
		leg->interface = skb->ifindex;
	return has_grown;
}

SEC("tcx/egress")
int tell(struct __sk_buff *skb)
{
	__u32 first, ack, acked, at, header, payload, of_tell = OF_TELL;
	int is_news;
	struct passing p = {};
	struct lf_ack_leg *leg;
	struct lf_acks *a;
	struct headers *h;
	struct tcphdr *tcp;

	if (is_of_vlan(skb) || !parse_passing(skb, &p) || (p.packet.flags & SYN))
		return TCX_NEXT;
	a = bpf_map_lookup_elem(&acknowledged, &p.ends);
	if (!a)
		return TCX_NEXT;
	leg = leg_towards_receiver(a, &p);
	first = __builtin_bswap32(p.tcp->seq);
	at = tcp_at(&p);
	header = (p.tcp->offset >> 4) * 4;
	payload = payload_bytes(skb, &p);
	if (!(p.packet.flags & RST))
		advance(&leg->next, first + payload + (p.packet.flags & FIN ? 1 : 0));
	/* What is only forwarded says what an end says. */
	if (!skb->sk || !(p.packet.flags & ACK))
		return TCX_NEXT;
	ack = __builtin_bswap32(p.tcp->ack);
	is_news = payload || is_later(ack, leg->want);
	advance(&leg->want, ack);
	is_news |= note(skb, &p, leg, ack);
	acked = *(volatile __u32 *)&leg->acked;
	if (!is_later(ack, acked))
		return TCX_NEXT;
	h = bpf_map_lookup_elem(&scratch, &of_tell);
	if (!h || !read_header(skb, h, at, header))
		return TCX_DROP;
	tcp = (void *)h->new;
	tcp->ack = __builtin_bswap32(acked);
	if (is_news || bpf_ktime_get_coarse_ns() - leg->acked_ns < STALL_NS)
		tcp->window = window_from(leg, acked);
	else
		tcp->window = 0;
	change_options(h, header, 0);
	return write_header(skb, h, at, header) ? TCX_NEXT : TCX_DROP;
}

char LICENSE[] SEC("license") = "GPL";
