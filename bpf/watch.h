/* SPDX-License-Identifier: GPL-2.0 */
/* What user space and watch.bpf.c agree on: connections between others that pass this host. */
#ifndef LONGFAT_WATCH_H
#define LONGFAT_WATCH_H

#include "../cc/include/longfat_cc.h"

typedef __UINT8_TYPE__ lf_u8;
typedef __UINT16_TYPE__ lf_u16;

#define LF_TCP_HEADER_BYTES 60

/* Both ends, in network byte order: the lower one first, by port and address as numbers of this host. */
struct lf_ends {
	lf_u32 low_address[4];
	lf_u32 high_address[4];
	lf_u16 low_port;
	lf_u16 high_port;
	lf_u32 is_ipv6;
};

/* A SYN, or its answer. */
struct lf_offer {
	lf_u16 header_bytes;  /* 0: none was seen */
	lf_u16 payload_bytes;
	lf_u8 header[LF_TCP_HEADER_BYTES];
};

/* From an end's sequence number that passes to its acknowledgement by the other: the round trip to that other end. */
struct lf_trip {
	lf_u64 sent_ns;   /* 0: none is timed now */
	lf_u32 end;       /* behind what is timed */
	lf_u32 least_us;  /* 0: none was measured */
};

/* What has passed of a connection. */
struct lf_watched {
	lf_u64 bytes;      /* payload of both ends, repetitions included */
	lf_u64 opened_ns;  /* CLOCK_MONOTONIC; of one that is watched anew, since then */
	lf_u32 next[2];    /* behind the last sequence number of the client, of the server */
	lf_u32 interface;  /* at which the SYN arrived; 0 until the client is heard of what another router knew */
	lf_u32 is_told;    /* user space knows of it */
	lf_u8 is_client_high;
	lf_u8 finished;    /* bit 0: the client's FIN has passed; bit 1: the server's; bit 2: a reset */
	lf_u8 unheard;     /* bit 0: the client, bit 1: the server may be further than is known */
	lf_u8 zero;
	lf_u32 epoch;      /* of the relay that follows it; of another one's it is not known who leads what */
	lf_u64 repeated_bytes;  /* of `bytes`: behind others of their end, or sent again */
	lf_u64 stretch_bytes;   /* `bytes` when the rate was looked at last */
	lf_u64 stretch_ns;      /* when that was */
	struct lf_trip trips[2];  /* of what the client, the server has sent */
	struct lf_offer syn;
	struct lf_offer answer;
};

/* What is led to user space of a connection. */
enum {
	LF_LEAD_ALL = 1,
	LF_LEAD_RESETS = 2,
	LF_TELL_AGAIN = 3,   /* nothing; user space is told with the next packet */
	LF_WATCH_ANEW = 4,   /* nothing; what is counted begins anew with the next packet */
	LF_DROP = 5,         /* nothing; all packets are dropped until a client begins anew */
};

struct lf_order {
	lf_u32 lead;
	lf_u32 interface;  /* index of the one by which it comes there */
};

/* When user space is told: all must hold that is not 0. */
struct lf_after {
	lf_u64 bytes;       /* have passed */
	lf_u64 ns;          /* since the SYN */
	lf_u64 fast_bytes;  /* have passed within fast_ns */
	lf_u64 fast_ns;
	lf_u32 rtt_us;      /* of the longer side */
	lf_u32 losses_ppm;  /* of the bytes were repeated */
	lf_u32 watches;     /* 0: nothing is watched */
	lf_u32 leads_any;  /* orders are for connections that nothing was told of, too */
	lf_u32 pass_mark;  /* of packets of connections that are only watched; 0: they get none */
	lf_u32 has_sockets;  /* packets may be for sockets that have others' addresses */
	lf_u32 drops;  /* some orders are LF_DROP */
	lf_u32 epoch;  /* of this relay */
	lf_u64 hold_ns;  /* for so long packets of strangers are dropped: of connections seen first in mid-stream */
};

struct lf_watch_counts {
	lf_u64 opened;    /* handshakes seen whole */
	lf_u64 reached;   /* of these: told to user space */
	lf_u64 untold;    /* found no room to be told: with their next packet again */
};

#endif
