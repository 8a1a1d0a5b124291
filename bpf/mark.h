/* SPDX-License-Identifier: GPL-2.0 */
/* What user space and mark.bpf.c agree on. */
#ifndef LONGFAT_MARK_H
#define LONGFAT_MARK_H

#include "../cc/queue/longfat_queue.h"

/* An end's view of a connection. IPv4 addresses stand in the first word. All in network byte order but `family`. */
struct lf_tuple {
	lf_u32 remote_address[4];
	lf_u32 local_address[4];
	__UINT16_TYPE__ remote_port;
	__UINT16_TYPE__ local_port;
	lf_u32 is_ipv6;
};

/* One direction of a relayed connection: kept with the inbound leg's socket, which ends it. */
struct lf_mark {
	struct lf_tuple outbound;
	lf_u32 is_dropping;           /* where a packet cannot be marked it is dropped */
	lf_u32 dilate;                /* so many times slower than this host's goes the controller's time; 0 is 1 */
	lf_u64 incapable;             /* packets to be marked whose sender has no ECN */
	struct lf_queue_settings settings;
	struct lf_queue_state state;
};

/* A connection that is marked once per so many bytes. */
struct lf_every {
	lf_u64 every_bytes;
	lf_u64 bytes;
	lf_u64 since_bytes;
	lf_u64 marks;
	lf_u64 incapable;
};

#endif
