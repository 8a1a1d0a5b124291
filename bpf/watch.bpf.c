// SPDX-License-Identifier: GPL-2.0
/*
 * Watches connections that pass this host from end to end: what their handshakes agreed on, how far each end is, how
 * many bytes have passed. User space hears of a connection once, when it has reached what it was told to wait for, and
 * may have its packets led there from then on: they go to an interface of its own. (Not by a mark and a route: once the
 * connection has a socket here, the kernel ties its packets to that before it routes them, and forwards none of them.)
 *
 * At tc ingress. Nothing is copied but the two packets of a handshake. A connection has one place in an array, where it
 * is told by one comparison: a short one comes and goes without hashing. Who is displaced while it lives, and whom user
 * space hears of, goes to `connections`.
 *
 * Packets of connections that are only watched get a mark by which nftables lets them go on without a look for a
 * socket. Without this program nothing has that mark, and nftables looks. What may be the relay's goes to alike.bpf.c,
 * too.
 */
#include "passing.h"

#define QUEUE 22 /* BPF_MAP_TYPE_QUEUE */
#define PROG_ARRAY 3 /* BPF_MAP_TYPE_PROG_ARRAY */
#define PERCPU_ARRAY 6 /* BPF_MAP_TYPE_PERCPU_ARRAY */
#define NS_CURRENT ((__u64)-1) /* BPF_F_CURRENT_NETNS */
#define LISTEN 10 /* BPF_TCP_LISTEN */
#define CONNECTIONS (1 << 16)
#define PLACE_BITS 14
#define ORDERS (1 << 14)
#define NS_PER_US 1000
/* A share of fewer bytes than these says nothing. */
#define LOSSES_FROM_BYTES 100000
#define BOTH 3 /* ends */

/* Where a connection is while it is young, or nobody wants its place. */
struct place {
	struct lf_ends ends __attribute__((aligned(8))); /* compared by words of eight octets */
	struct lf_watched watched;
	struct bpf_spin_lock lock; /* of whoever changes it: the place may be somebody else's meanwhile */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << PLACE_BITS);
	__type(key, __u32);
	__type(value, struct place);
} places SEC(".maps");

/* Too much for the stack. */
struct scratch {
	struct lf_ends ends;
	struct lf_watched watched, fresh;
};

struct {
	__uint(type, PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratches SEC(".maps");

/* Those that have left their places. What was not used for longest is driven out: it stays end to end. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, CONNECTIONS);
	__type(key, struct lf_ends);
	__type(value, struct lf_watched);
} connections SEC(".maps");

/* From user space. Those of connections that have ended without a word are driven out. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, ORDERS);
	__type(key, struct lf_ends);
	__type(value, struct lf_order);
} orders SEC(".maps");

/* Connections seen first in mid-stream: when. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, ORDERS);
	__type(key, struct lf_ends);
	__type(value, __u64);
} strangers SEC(".maps");

/* For user space. */
struct {
	__uint(type, QUEUE);
	__uint(max_entries, ORDERS);
	__type(value, struct lf_ends);
} reached SEC(".maps");

/* `see_watched` of alike.bpf.c, if that is there. */
struct {
	__uint(type, PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} noting SEC(".maps");

struct lf_after after SEC(".data.after");
struct lf_watch_counts counts SEC(".bss.counts");

/* The fields of the kernel's bpf_sock up to the one that is read. Layout is kernel ABI (linux/bpf.h). */
struct bpf_sock {
	__u32 before[18];
	__u32 state;
};

static __always_inline void copy_offer(struct __sk_buff *skb, const struct passing *p, struct lf_offer *offer)
{
	__u32 header = (p->tcp->offset >> 4) * 4, at = (void *)p->tcp - (void *)(long)skb->data;

	/* The verifier wants the bounds of the very register that is passed on; Linux 6.12's wants them one by one. */
	asm volatile("" : "+r"(header));
	if (header < sizeof(struct tcphdr))
		return;
	asm volatile("" : "+r"(header));
	if (header > LF_TCP_HEADER_BYTES)
		return;
	if (bpf_skb_load_bytes(skb, at, offer->header, header))
		return;
	offer->header_bytes = header;
	offer->payload_bytes = p->payload_bytes;
}

static __always_inline struct place *place_of(const struct lf_ends *e)
{
	__u32 index = mix(e->low_address, e->high_address, e->low_port, e->high_port) >> (32 - PLACE_BITS);

	return bpf_map_lookup_elem(&places, &index);
}

static __always_inline int is_of(const struct place *at, const struct passing *p)
{
	_Static_assert(sizeof(p->ends) == ENDS_WORDS * sizeof(__u64), "compared by words");
	return is_same(&at->ends, &p->ends);
}

static __always_inline struct scratch *scratch(void)
{
	__u32 only = 0;

	return bpf_map_lookup_elem(&scratches, &only);
}

static __always_inline int is_over(const struct lf_watched *w)
{
	return (w->finished & 4) || w->finished == 3;
}

static __always_inline int is_same_syn(const struct passing *p, const struct lf_watched *w)
{
	const struct tcphdr *first = (const void *)w->syn.header;

	return w->is_client_high == p->is_from_high && first->seq == p->tcp->seq;
}

/* Gives the place to a connection that begins. Whoever was there, has shaken hands and lives goes to `connections`. */
static __always_inline void settle(struct place *at, const struct passing *p, struct scratch *s)
{
	int lives;

	bpf_spin_lock(&at->lock);
	lives = at->watched.answer.header_bytes && !is_over(&at->watched);
	if (lives) {
		s->ends = at->ends;
		s->watched = at->watched;
	}
	at->ends = p->ends;
	at->watched = s->fresh;
	bpf_spin_unlock(&at->lock);
	if (lives)
		bpf_map_update_elem(&connections, &s->ends, &s->watched, 0);
}

/* A connection leaves its place for `connections`, where user space finds it. */
static __always_inline struct lf_watched *move(struct place *at, const struct passing *p)
{
	struct scratch *s = scratch();
	int is_there;

	if (!s)
		return 0;
	bpf_spin_lock(&at->lock);
	is_there = is_of(at, p);
	if (is_there) {
		s->watched = at->watched;
		at->watched.finished = 4;
		at->ends.low_port = at->ends.high_port = 0;
	}
	bpf_spin_unlock(&at->lock);
	if (is_there)
		bpf_map_update_elem(&connections, &p->ends, &s->watched, 0);
	return bpf_map_lookup_elem(&connections, &p->ends);
}

/* Whether a SYN is for a socket of this host's, be it in TIME_WAIT. */
static __always_inline int has_socket(struct __sk_buff *skb, const struct passing *p)
{
	const struct direction *d = &p->packet.direction;
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *found;
	int is_there;

	if (d->is_ipv6) {
		__builtin_memcpy(tuple.ipv6.saddr, d->from, 16);
		__builtin_memcpy(tuple.ipv6.daddr, d->to, 16);
		tuple.ipv6.sport = d->from_port;
		tuple.ipv6.dport = d->to_port;
		found = bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv6), NS_CURRENT, 0);
	} else {
		tuple.ipv4.saddr = d->from[0];
		tuple.ipv4.daddr = d->to[0];
		tuple.ipv4.sport = d->from_port;
		tuple.ipv4.dport = d->to_port;
		found = bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), NS_CURRENT, 0);
	}
	if (!found)
		return 0;
	is_there = found->state != LISTEN;
	bpf_sk_release(found);
	return is_there;
}

/* A client begins. The same SYN again changes nothing. `known` is of the same ends, and in no place. */
static __always_inline void open(struct __sk_buff *skb, const struct passing *p, struct place *at,
				 const struct lf_watched *known)
{
	struct scratch *s = scratch();

	if (!s)
		return;
	__builtin_memset(&s->fresh, 0, sizeof(s->fresh));
	copy_offer(skb, p, &s->fresh.syn);
	s->fresh.opened_ns = bpf_ktime_get_ns();
	s->fresh.next[0] = __builtin_bswap32(p->tcp->seq) + 1 + p->payload_bytes;
	s->fresh.stretch_ns = s->fresh.opened_ns;
	s->fresh.trips[0].sent_ns = s->fresh.opened_ns;
	s->fresh.trips[0].end = s->fresh.next[0];
	s->fresh.interface = skb->ingress_ifindex ? skb->ingress_ifindex : skb->ifindex;
	s->fresh.is_client_high = p->is_from_high;
	s->fresh.epoch = after.epoch;
	if (known)
		bpf_map_update_elem(&connections, &p->ends, &s->fresh, 0);
	else
		settle(at, p, s);
}

static __always_inline int is_answer(const struct passing *p, const struct lf_watched *w)
{
	return w->is_client_high != p->is_from_high && __builtin_bswap32(p->tcp->ack) == w->next[0];
}

static __always_inline void arrive(struct lf_trip *trip, __u64 now)
{
	__u64 us = (now - trip->sent_ns) / NS_PER_US;
	__u32 found = us >= ~0u ? ~0u : us + 1;

	if (!trip->least_us || found < trip->least_us)
		trip->least_us = found;
	trip->sent_ns = 0;
}

static __always_inline void take_answer(const struct passing *p, struct lf_watched *w, const struct lf_offer *offer,
					__u64 now)
{
	__u32 is_again = w->answer.header_bytes;

	w->answer = *offer;
	w->next[1] = __builtin_bswap32(p->tcp->seq) + 1 + p->payload_bytes;
	if (w->trips[0].sent_ns)
		arrive(&w->trips[0], now);
	w->trips[1].sent_ns = is_again ? 0 : now;
	w->trips[1].end = w->next[1];
}

/* The answer to the SYN that was seen; `at` is its place, if it has one. */
static __always_inline void answer(struct __sk_buff *skb, const struct passing *p, struct place *at,
				   struct lf_watched *w)
{
	struct scratch *s = scratch();
	__u64 now = bpf_ktime_get_ns();

	if (!s || !is_answer(p, w))
		return;
	if (!w->answer.header_bytes)
		__sync_fetch_and_add(&counts.opened, 1);
	__builtin_memset(&s->fresh.answer, 0, sizeof(s->fresh.answer));
	copy_offer(skb, p, &s->fresh.answer);
	if (!at) {
		take_answer(p, w, &s->fresh.answer, now);
		return;
	}
	bpf_spin_lock(&at->lock);
	if (is_of(at, p) && is_answer(p, &at->watched))
		take_answer(p, &at->watched, &s->fresh.answer, now);
	bpf_spin_unlock(&at->lock);
}

/*
 * Round trips are timed one by one, before `follow`. Of what is sent again nobody knows which was acknowledged
 * (RFC 6298 section 3).
 */
static __always_inline void time_trips(const struct passing *p, struct lf_watched *w)
{
	__u32 is_server = w->is_client_high != p->is_from_high;
	struct lf_trip *own = is_server ? &w->trips[1] : &w->trips[0];
	struct lf_trip *back = is_server ? &w->trips[0] : &w->trips[1];
	__u32 first = __builtin_bswap32(p->tcp->seq), next = is_server ? w->next[1] : w->next[0];
	int is_first = p->payload_bytes && (__s32)(first - next) >= 0;
	int is_back = back->sent_ns && (__s32)(__builtin_bswap32(p->tcp->ack) - back->end) >= 0;
	__u64 now;

	if (p->payload_bytes && !is_first)
		own->sent_ns = 0;
	is_first = is_first && !own->sent_ns;
	if (!is_first && !is_back)
		return;
	now = bpf_ktime_get_ns();
	if (is_back)
		arrive(back, now);
	if (is_first) {
		own->sent_ns = now;
		own->end = first + p->payload_bytes;
	}
}

/* How far its sender is. */
static __always_inline void follow(const struct passing *p, struct lf_watched *w)
{
	__u32 is_server = w->is_client_high != p->is_from_high;
	__u32 *next = is_server ? &w->next[1] : &w->next[0];
	__u32 first = __builtin_bswap32(p->tcp->seq), end = first + p->payload_bytes;
	__s32 behind = *next - first;

	if (behind > 0)
		w->repeated_bytes += (__u32)behind < p->payload_bytes ? (__u32)behind : p->payload_bytes;

	if (p->packet.flags & FIN) {
		end++;
		w->finished |= is_server ? 2 : 1;
	}
	/* One of another number is nobody's, or its receiver asks for another (RFC 5961 section 3.2). */
	if (p->packet.flags & RST)
		w->finished |= first == *next ? 4 : 0;
	else if ((__s32)(end - *next) > 0)
		*next = end;
	w->bytes += p->payload_bytes;
}

static __always_inline int is_long(const struct lf_watched *w)
{
	return w->trips[0].least_us >= after.rtt_us || w->trips[1].least_us >= after.rtt_us;
}

static __always_inline int is_lossy(const struct lf_watched *w)
{
	return w->bytes >= LOSSES_FROM_BYTES && w->repeated_bytes * 1000 >= w->bytes / 1000 * after.losses_ppm;
}

/* Looks at the clock once in so many bytes: these have passed since it was looked at last, and in time or not. */
static __always_inline int is_fast(struct lf_watched *w)
{
	__u64 now, since = w->stretch_ns;

	if (w->bytes - w->stretch_bytes < after.fast_bytes)
		return 0;
	now = bpf_ktime_get_ns();
	w->stretch_bytes = w->bytes;
	w->stretch_ns = now;
	return now - since <= after.fast_ns;
}

/*
 * The rate is looked at once all else holds. To be asked once for a packet. Of one that an end has finished user space
 * hears, too, and counts it.
 */
static __always_inline int is_due(struct lf_watched *w)
{
	if (!w->answer.header_bytes || is_over(w) || w->unheard || w->bytes < after.bytes)
		return 0;
	if ((after.rtt_us && !is_long(w)) || (after.losses_ppm && !is_lossy(w)))
		return 0;
	if (after.ns && bpf_ktime_get_ns() - w->opened_ns < after.ns)
		return 0;
	return !after.fast_bytes || is_fast(w);
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

/* Numbers and round trips stay. What was timed meanwhile went by user space. */
static __always_inline void watch_anew(struct lf_watched *w)
{
	w->bytes = w->repeated_bytes = w->stretch_bytes = 0;
	w->opened_ns = w->stretch_ns = bpf_ktime_get_ns();
	w->trips[0].sent_ns = w->trips[1].sent_ns = 0;
	w->unheard = BOTH;
	w->is_told = 0;
}

/* Goes on where another relay was. What passed in between was not seen, and nothing is led any more. */
static __always_inline void inherit(struct lf_watched *w)
{
	w->epoch = after.epoch;
	w->unheard = BOTH;
	if (w->is_told)
		watch_anew(w);
}

/* An end says how far it is. */
static __always_inline void hear(struct __sk_buff *skb, const struct passing *p, struct lf_watched *w)
{
	__u32 is_server = w->is_client_high != p->is_from_high;

	w->unheard &= is_server ? ~2 : ~1;
	if (!is_server && !w->interface)
		w->interface = skb->ingress_ifindex ? skb->ingress_ifindex : skb->ifindex;
}

/* Leads a packet to user space if that has asked for it. */
static __always_inline int lead(const struct passing *p, struct lf_watched *w)
{
	struct lf_order *order = bpf_map_lookup_elem(&orders, &p->ends);

	if (!order)
		return TCX_NEXT;
	if (order->lead == LF_TELL_AGAIN) {
		if (tell(p))
			bpf_map_delete_elem(&orders, &p->ends);
		return TCX_NEXT;
	}
	if (order->lead == LF_WATCH_ANEW) {
		bpf_map_delete_elem(&orders, &p->ends);
		if (w)
			watch_anew(w);
		return TCX_NEXT;
	}
	if (order->lead == LF_LEAD_RESETS && !(p->packet.flags & RST))
		return TCX_NEXT;
	return bpf_redirect(order->interface, 0);
}

/*
 * Whether another router carries a connection, or will in a moment: if its packets passed, or met a socket, the ends
 * would hear of bytes that the other router knows nothing of. A client that begins anew has another connection.
 */
static __always_inline int is_dropped(const struct passing *p)
{
	struct lf_order *order = bpf_map_lookup_elem(&orders, &p->ends);

	if (!order || order->lead != LF_DROP)
		return 0;
	if ((p->packet.flags & (SYN | ACK)) != SYN)
		return 1;
	bpf_map_delete_elem(&orders, &p->ends);
	return 0;
}

/*
 * Whether a connection that nothing is known of waits, for another router may be about to move it here. If it passed,
 * its ends would acknowledge bytes that the relay there has never seen.
 */
static __always_inline int is_held_back(struct __sk_buff *skb, const struct passing *p)
{
	__u64 now, *since;

	if (has_socket(skb, p))
		return 0;
	now = bpf_ktime_get_ns();
	since = bpf_map_lookup_elem(&strangers, &p->ends);
	if (since)
		return now - *since < after.hold_ns;
	bpf_map_update_elem(&strangers, &p->ends, &now, 0);
	return 1;
}

/* Has what the relay may have looked at by alike.bpf.c. With `begins` it has, or will have, the connection. */
static __always_inline int note(struct __sk_buff *skb, int verdict, int begins)
{
	if (!after.has_sockets)
		return verdict;
	skb->cb[0] = verdict;
	skb->cb[1] = begins;
	bpf_tail_call(skb, &noting, 0);
	return verdict;
}

/* A packet of a connection that no socket of the relay's has. */
static __always_inline int pass(struct __sk_buff *skb)
{
	if (!after.pass_mark || !after.has_sockets || skb->mark)
		return note(skb, TCX_NEXT, 0);
	skb->mark = after.pass_mark;
	return TCX_NEXT;
}

/* A SYN, or its answer. `w` is what is known of its connection, in its place or not. */
static __always_inline int on_syn(struct __sk_buff *skb, const struct passing *p, struct place *at, int is_placed,
				  struct lf_watched *w)
{
	if (after.watches && (p->packet.flags & (ACK | RST | FIN)) == 0) {
		if (after.has_sockets && has_socket(skb, p))
			return note(skb, TCX_NEXT, 0);
		if (!w || !is_same_syn(p, w))
			open(skb, p, at, is_placed ? 0 : w);
		else
			w->trips[0].sent_ns = 0;
	} else if (w) {
		answer(skb, p, is_placed ? at : 0, w);
	} else {
		return note(skb, TCX_NEXT, 0);
	}
	return pass(skb);
}

SEC("tcx/ingress")
int watch(struct __sk_buff *skb)
{
	struct passing p = {};
	struct lf_watched *w = 0;
	struct place *at;
	int is_placed, is_worth;

	if (is_of_vlan(skb))
		return TCX_NEXT;
	/* It has been here, at an interface below this one. */
	if (after.pass_mark && skb->mark == after.pass_mark)
		return TCX_NEXT;
	if (!parse_passing(skb, &p))
		return TCX_NEXT;
	if (after.drops && is_dropped(&p))
		return TCX_DROP;
	p.payload_bytes = payload_bytes(skb, &p);
	at = place_of(&p.ends);
	if (!at)
		return TCX_NEXT;
	/* Without watching, what a plan before has left in places and maps says nothing. */
	is_placed = after.watches && is_of(at, &p);
	if (is_placed)
		w = &at->watched;
	else if (after.watches)
		w = bpf_map_lookup_elem(&connections, &p.ends);
	if (w && w->epoch != after.epoch)
		inherit(w);
	if (p.packet.flags & SYN)
		return on_syn(skb, &p, at, is_placed, w);
	if (!w && after.hold_ns && is_held_back(skb, &p))
		return TCX_DROP;
	/*
	 * The order of this and of what leads: user space gives an order, and then looks how far the ends are. Of a place
	 * it looks at nothing, so what carries nothing changes nothing there. Without the lock: in a place that another one
	 * takes in this moment this leaves a number, by which that one stays end to end.
	 */
	if (w && after.rtt_us && !w->is_told)
		time_trips(&p, w);
	if (w && (!is_placed || w->unheard || p.payload_bytes || (p.packet.flags & (FIN | RST))))
		follow(&p, w);
	if (w && w->unheard)
		hear(skb, &p, w);
	if (after.leads_any || !after.watches || (w && w->is_told)) {
		int verdict = lead(&p, w);

		if (verdict != TCX_NEXT || !w || w->is_told)
			return note(skb, verdict, verdict != TCX_NEXT || w);
	}
	if (!w)
		return note(skb, TCX_NEXT, 0);
	is_worth = is_due(w);
	if (is_placed && is_worth)
		w = move(at, &p);
	if (!w)
		return note(skb, TCX_NEXT, 0);
	if (is_worth) {
		tell_first(&p, w);
		return note(skb, TCX_NEXT, 1);
	}
	/* Room for others. What user space knows of it forgets. */
	if (!is_placed && is_over(w))
		bpf_map_delete_elem(&connections, &p.ends);
	return w->answer.header_bytes ? pass(skb) : note(skb, TCX_NEXT, 0);
}

char LICENSE[] SEC("license") = "GPL";
