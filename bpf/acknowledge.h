/* SPDX-License-Identifier: GPL-2.0 */
/* What user space and acknowledge.bpf.c agree on: connections whose ends are acknowledged by each other alone. */
#ifndef LONGFAT_ACKNOWLEDGE_H
#define LONGFAT_ACKNOWLEDGE_H

#include "watch.h"

#define LF_LINK_BYTES 12 /* both addresses of an Ethernet header */

/* Ends of lf_ends whose SYN or SYN-ACK was heard. */
enum lf_heard { LF_HEARD_LOW = 1, LF_HEARD_HIGH = 2 };

/* The relay's socket towards one end: what its packets said, and what may be told to that end. */
struct lf_ack_leg {
	lf_u64 acked_ns;  /* when the next one was told last, by CLOCK_MONOTONIC_COARSE */
	lf_u32 acked;  /* of what that end has sent: acknowledged by the other end */
	lf_u32 want;   /* likewise: acknowledged by the socket, be it told or held back */
	lf_u32 edge;   /* behind the window that the socket told last */
	lf_u32 next;   /* behind what the socket has sent */
	lf_u32 stamp;  /* timestamps of its last packet, in network byte order */
	lf_u32 echo;
	lf_u32 interface;  /* by which its packets leave; 0: there was none */
	lf_u32 sent_on;    /* acknowledgements of the other end that went on in the socket's name */
	lf_u8 scale;       /* of its windows */
	lf_u8 link[LF_LINK_BYTES];
	lf_u8 zero[3];
};

struct lf_acks {
	struct lf_ack_leg legs[2];  /* towards the lower end of lf_ends, towards the higher */
	lf_u32 birth;               /* tells it from others of the same ends */
	lf_u32 zero;
};

#endif
