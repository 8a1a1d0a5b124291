// SPDX-License-Identifier: GPL-2.0
/*
 * Makes the packets of a relay's legs look as if they had been forwarded: what arrives on one leg says what leaves on
 * the other, packet by packet.
 *
 * see    At tc ingress: notes the traffic class (DSCP), the time to live and the flow label by which the packets of a
 *        connection arrive, in each direction. A SYN, or its answer, begins a note; later packets change it.
 *        Where watch.bpf.c is, it calls this for what needs a note (`see_watched`).
 *        What goes to a socket of the relay's gets `carried_mark`, so that no rule need look for the socket.
 * wear   At tc egress: gives them to the relay's own packets, which it knows by their mark. A leg's departing packets
 *        have the addresses and ports of those that arrive on the other leg. ECN is each leg's own.
 *
 * Anybody can send a packet with the addresses and ports of others. So
 * - a time to live is never lowered: packets of a connection that left with too low a one would reach nobody;
 * - a SYN gets no place in `recent` but a free one, else one of a map of SYNs. So no flood of SYNs takes the notes of
 *   what the relay carries.
 *
 * Notes stand in arrays, each at one place of its own: a packet is told by one comparison, without hashing, and a
 * short connection comes and goes without touching another map. Who is displaced while it lives goes to `carried`. A
 * place in `recent` knows whether others of its directions were ever put elsewhere: only then they are looked for.
 */
#include "direction.h"

#define DIRECTIONS (1 << 16)
#define FRESH_BITS 16
#define RECENT_BITS 12

/*
 * The bits of an IP header that are kept from leg to leg: DSCP, and the flow label. The other two of the octet are ECN.
 */
#define DSCP 0xfc
#define CLASS_AND_LABEL __builtin_bswap32(0x0fcfffff)
/* What begins above this began as 255: peers that check it (RFC 5082) do so at both ends. */
#define HIGH_TTL 128

struct worn {
	__u32 class_and_label; /* of the first word of an IPv6 header; of IPv4 the octet */
	__u32 ttl;             /* the highest that arrived; 0: nothing has arrived yet */
};

/* Of noted.state. */
#define IN_CARRIED 1 /* `carried` has it, too */
#define OVER 2       /* the relay has sent its end: whoever needs the place takes it */
#define BEGUN 4      /* a SYN has arrived, whoever sent it, and the relay has sent nothing since */

/* Of noted.elsewhere. */
#define SOME_CARRIED 1
#define SOME_FRESH 2

#define CACHE_LINE 64
#define MMAPABLE (1 << 10) /* BPF_F_MMAPABLE: nobody maps it, but its values begin a page, and so a cache line each */

/* A direction and its note. */
struct noted {
	struct direction direction;
	struct worn worn;
	__u32 state;
	struct bpf_spin_lock lock; /* of writers; a reader may see two halves, once */
	__u32 elsewhere;           /* in `recent`: where else directions may be that have this place. Never taken back */
	/* In `recent`, of the leg that gets what arrives: */
	__u8 has_leg; /* it has sent more than SYNs, and neither a FIN nor a reset; no SYN has come for it since */
	__u8 is_told; /* that of the other direction is set */
};
_Static_assert(sizeof(struct noted) == CACHE_LINE, "a cache line");

/* Of SYNs that have arrived and found no free place in `recent`. Sixteen of its places for each of those. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << FRESH_BITS);
	__uint(map_flags, MMAPABLE);
	__type(key, __u32);
	__type(value, struct noted);
} fresh SEC(".maps");

/* In which the relay has sent more than SYNs and resets, or may soon. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << RECENT_BITS);
	__uint(map_flags, MMAPABLE);
	__type(key, __u32);
	__type(value, struct noted);
} recent SEC(".maps");

/* Such directions that had to make way in `recent`. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, DIRECTIONS);
	__type(key, struct direction);
	__type(value, struct worn);
} carried SEC(".maps");

/* Of the relay's own packets; filled by the loader. */
const volatile __u32 own_mark SEC(".rodata.lf") = 0;

/*
 * What arrives for the relay's sockets gets this mark; 0: nothing does. The loader changes it: not where a socket may
 * vanish without a word, or may be one that no rule leads packets to.
 */
volatile __u32 carried_mark SEC(".data.carried") = 0;

static __always_inline void look(const struct packet *p, struct worn *found)
{
	if (p->direction.is_ipv6) {
		const struct ipv6hdr *ip = p->ip;

		found->class_and_label = ip->flow & CLASS_AND_LABEL;
		found->ttl = ip->hop_limit;
	} else {
		const struct iphdr *ip = p->ip;

		found->class_and_label = ip->tos & DSCP;
		found->ttl = ip->ttl;
	}
}

static __always_inline __u32 mix_direction(const struct direction *d)
{
	return mix(d->from, d->to, d->from_port, d->to_port);
}

static __always_inline struct noted *in_recent(__u32 mixed)
{
	__u32 index = mixed >> (32 - RECENT_BITS);

	return bpf_map_lookup_elem(&recent, &index);
}

static __always_inline struct noted *in_fresh(__u32 mixed)
{
	__u32 index = mixed >> (32 - FRESH_BITS);

	return bpf_map_lookup_elem(&fresh, &index);
}

static __always_inline int is_of(const struct noted *at, const struct direction *d)
{
	_Static_assert(sizeof(*d) == ENDS_WORDS * sizeof(__u64), "compared by words");
	return is_same(&at->direction, d);
}

/* Gives a place to a direction; whoever was there is left in `was`. */
static __always_inline void put(struct noted *at, const struct direction *d, const struct worn *worn, __u32 state,
				struct noted *was)
{
	struct worn now = *worn;

	bpf_spin_lock(&at->lock);
	was->direction = at->direction;
	was->worn = at->worn;
	was->state = at->state;
	at->direction = *d;
	at->worn = now;
	at->state = state;
	at->has_leg = 0;
	at->is_told = 0;
	bpf_spin_unlock(&at->lock);
}

/* Whether nobody has a place who would miss it. */
static __always_inline int is_free(const struct noted *at)
{
	return (at->state & OVER) || !at->direction.to_port;
}

/* From now on directions with this place in `recent` are looked for there, too. */
static __always_inline void look_elsewhere(struct noted *recent, __u32 where)
{
	if (!(recent->elsewhere & where))
		__sync_fetch_and_or(&recent->elsewhere, where);
}

static __always_inline void put_fresh(struct noted *recent, __u32 mixed, const struct direction *d,
				      const struct worn *worn)
{
	struct noted *at = in_fresh(mixed), was;

	if (!at)
		return;
	put(at, d, worn, BEGUN, &was);
	look_elsewhere(recent, SOME_FRESH);
}

/* Gives a place in `recent` to a direction, and another one to whoever was there and may live. */
static __always_inline void settle(struct noted *at, const struct direction *d, const struct worn *worn, __u32 state)
{
	struct noted was = {};

	put(at, d, worn, state, &was);
	if ((was.state & (IN_CARRIED | OVER)) || !was.direction.to_port)
		return;
	if (was.state & BEGUN) {
		put_fresh(at, mix_direction(&was.direction), &was.direction, &was.worn);
		return;
	}
	bpf_map_update_elem(&carried, &was.direction, &was.worn, 0);
	look_elsewhere(at, SOME_CARRIED);
}

/* What `carried` has of a direction that has this place in `recent`. */
static __always_inline struct worn *in_carried(const struct noted *recent, const struct direction *d)
{
	return recent->elsewhere & SOME_CARRIED ? bpf_map_lookup_elem(&carried, d) : (struct worn *)0;
}

/* The note in `fresh` of a direction that has this place in `recent`. */
static __always_inline struct noted *fresh_of(const struct noted *recent, __u32 mixed, const struct direction *d)
{
	struct noted *at;

	if (!(recent->elsewhere & SOME_FRESH))
		return 0;
	at = in_fresh(mixed);
	return at && is_of(at, d) ? at : (struct noted *)0;
}

static __always_inline int is_news(const struct worn *known, const struct worn *now)
{
	return known->class_and_label != now->class_and_label || known->ttl < now->ttl;
}

static __always_inline void note(struct worn *known, const struct worn *now)
{
	known->class_and_label = now->class_and_label;
	if (known->ttl < now->ttl)
		known->ttl = now->ttl;
}

/* The same at a place that somebody else may take meanwhile. */
static __always_inline void note_at(struct noted *at, const struct direction *d, const struct worn *now)
{
	bpf_spin_lock(&at->lock);
	if (is_of(at, d))
		note(&at->worn, now);
	bpf_spin_unlock(&at->lock);
}

/*
 * A SYN, or its answer, has arrived, or what comes before the relay has sent anything in that direction. With `begins`
 * any packet begins a note.
 */
static __always_inline void see_fresh(struct noted *recent, __u32 mixed, const struct packet *p,
				      const struct worn *now, int begins)
{
	struct noted *at = fresh_of(recent, mixed, &p->direction), was;

	if (at)
		note_at(at, &p->direction, now);
	else if (!begins && !(p->flags & SYN))
		return;
	else if (is_free(recent))
		put(recent, &p->direction, now, BEGUN, &was);
	else
		put_fresh(recent, mixed, &p->direction, now);
}

/* A SYN has come in a direction: whether it is taken is not known yet. */
static __always_inline void begin_again(struct noted *recent)
{
	recent->has_leg = 0;
	if (recent->state & OVER)
		recent->state = BEGUN | (recent->state & IN_CARRIED);
}

/* Whether it goes to a socket of the relay's, as far as that is known at one look. */
static __always_inline int see_packet(struct __sk_buff *skb, int begins)
{
	struct packet p = {};
	struct worn now = {}, *known;
	struct noted *recent;
	int has_leg = 0;
	__u32 mixed;

	if (!parse(skb, &p))
		return 0;
	look(&p, &now);
	mixed = mix_direction(&p.direction);
	recent = in_recent(mixed);
	if (!recent)
		return 0;
	if (is_of(recent, &p.direction)) {
		if (p.flags & SYN)
			begin_again(recent);
		has_leg = recent->has_leg;
		if (!is_news(&recent->worn, &now))
			return has_leg;
		note_at(recent, &p.direction, &now);
		if (!(recent->state & IN_CARRIED))
			return has_leg;
	}
	known = in_carried(recent, &p.direction);
	if (!known) {
		see_fresh(recent, mixed, &p, &now, begins);
		return has_leg;
	}
	note(known, &now);
	settle(recent, &p.direction, known, IN_CARRIED);
	return has_leg;
}

SEC("tcx/ingress")
int see(struct __sk_buff *skb)
{
	if (see_packet(skb, 0) && carried_mark && !skb->mark)
		skb->mark = carried_mark;
	return TCX_NEXT;
}

/* Called by watch.bpf.c, which says what becomes of the packet, and whether the relay has its connection, or may. */
SEC("tcx/ingress")
int see_watched(struct __sk_buff *skb)
{
	see_packet(skb, skb->cb[1]);
	return skb->cb[0];
}

/* Changes a 16-bit word of an IPv4 header and keeps its checksum (RFC 1624, equation 3). */
static __always_inline void change(struct iphdr *ip, __u16 *word, __u16 to)
{
	__u32 sum = (__u16)~ip->check + (__u32)(__u16)~*word + to;

	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	ip->check = ~sum;
	*word = to;
}

static __always_inline void wear4(struct iphdr *ip, const struct worn *worn)
{
	__u8 tos = (ip->tos & ~DSCP) | worn->class_and_label;

	/* The octets of a word in network byte order, read by a little-endian machine or not. */
	if (ip->tos != tos)
		change(ip, (__u16 *)ip, __builtin_bswap16(ip->version_ihl << 8 | tos));
	if (ip->ttl != worn->ttl)
		change(ip, (__u16 *)&ip->ttl, __builtin_bswap16(worn->ttl << 8 | ip->protocol));
}

static __always_inline void wear6(struct ipv6hdr *ip, const struct worn *worn)
{
	ip->flow = (ip->flow & ~CLASS_AND_LABEL) | worn->class_and_label;
	ip->hop_limit = worn->ttl;
}

static __always_inline struct direction back(const struct direction *d)
{
	struct direction b = { .from_port = d->to_port, .to_port = d->from_port, .is_ipv6 = d->is_ipv6 };

	__builtin_memcpy(b.from, d->to, 16);
	__builtin_memcpy(b.to, d->from, 16);
	return b;
}

/* As a router would have it; the last hop is not this one. */
static __always_inline struct worn forwarded(const struct worn *known)
{
	struct worn worn = *known;

	worn.ttl = worn.ttl > 1 ? worn.ttl - 1 : 1;
	return worn;
}

/* The time to live by which packets of a direction arrive; 0 if it is not known. */
static __always_inline __u32 ttl_of(const struct direction *d)
{
	__u32 mixed = mix_direction(d);
	struct noted *recent = in_recent(mixed), *at;
	struct worn *known;

	if (!recent)
		return 0;
	if (is_of(recent, d))
		return recent->worn.ttl;
	at = fresh_of(recent, mixed, d);
	if (at)
		return at->worn.ttl;
	known = in_carried(recent, d);
	return known ? known->ttl : 0;
}

/*
 * Before the other end has said anything its time to live is not known; it is taken to be as high as this end's. What a
 * packet is to wear then; 0 if it wears its own.
 */
static __always_inline int guess(const struct packet *p, struct worn *worn)
{
	struct direction other = back(&p->direction);

	if (ttl_of(&other) <= HIGH_TTL)
		return 0;
	look(p, worn);
	worn->ttl = 254;
	return 1;
}

/*
 * The note of a direction that is not in `recent`, which the relay's packet leaves in: from now on there is one of what
 * it carries, which the next packet that arrives fills in if nothing has arrived, or what has was forgotten. SYNs of
 * the relay, their answers and its resets may be for nobody.
 */
static __always_inline struct worn known_of(const struct packet *p, __u32 mixed, struct noted *recent)
{
	struct worn *known = in_carried(recent, &p->direction), worn = {};
	struct noted *begun;

	if (known) {
		worn = *known;
		settle(recent, &p->direction, &worn, IN_CARRIED);
		return worn;
	}
	begun = fresh_of(recent, mixed, &p->direction);
	if (begun)
		worn = begun->worn;
	if (!(p->flags & (SYN | RST)))
		settle(recent, &p->direction, &worn, 0);
	return worn;
}

/* The relay has sent a packet with these flags. A reset may be for nobody, and so may a SYN. */
static __always_inline void live(struct noted *recent, __u8 flags)
{
	__u32 state = recent->state;

	if (flags & SYN)
		state &= ~OVER;
	else if (!(flags & RST))
		state &= ~BEGUN;
	if (flags & (FIN | RST))
		state |= OVER;
	if (state != recent->state)
		recent->state = state;
}

/* Notes of the direction in which answers come whether a leg gets them; whether there is a note of it. */
static __always_inline int note_leg(const struct packet *p, __u8 has_leg)
{
	struct direction other = back(&p->direction);
	struct noted *recent = in_recent(mix_direction(&other));

	if (!recent || !is_of(recent, &other))
		return 0;
	recent->has_leg = has_leg;
	return 1;
}

/* A leg has sent this packet: what is answered goes to it, until it has sent its end. */
static __always_inline void tell_leg(struct noted *recent, const struct packet *p)
{
	if (p->flags & (SYN | FIN | RST)) {
		note_leg(p, 0);
		recent->is_told = 0;
	} else if (!recent->is_told && !(recent->state & OVER)) {
		recent->is_told = note_leg(p, 1);
	}
}

/* What a packet of the relay's is to wear, which is known of nearly every one; 0 if it is not. */
static __always_inline int dress(const struct packet *p, struct worn *worn)
{
	__u32 mixed = mix_direction(&p->direction);
	struct noted *recent = in_recent(mixed);
	struct worn known;

	if (!recent)
		return 0;
	if (is_of(recent, &p->direction)) {
		known = recent->worn;
		live(recent, p->flags);
		tell_leg(recent, p);
	} else {
		known = known_of(p, mixed, recent);
	}
	if (!known.ttl)
		return guess(p, worn);
	*worn = forwarded(&known);
	return 1;
}

SEC("tcx/egress")
int wear(struct __sk_buff *skb)
{
	struct packet p = {};
	struct worn worn = {};

	if (skb->mark != own_mark || !parse(skb, &p) || !dress(&p, &worn))
		return TCX_NEXT;
	if (p.direction.is_ipv6)
		wear6(p.ip, &worn);
	else
		wear4(p.ip, &worn);
	return TCX_NEXT;
}

char LICENSE[] SEC("license") = "GPL";
