/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What a connection brings along when its congestion control is set again: the kernel zeroes the private state on
 * every change, then calls init(), which may put it back. Filled and removed by bpf/tcb_set.bpf.c within one hold of
 * the socket's lock; at any other time there is none, so that init() of a new connection finds nothing.
 */
#ifndef LONGFAT_SAVED_H
#define LONGFAT_SAVED_H

#include "kernel.h"

#define LF_PRIVATE_WORDS 13 /* icsk_ca_priv: 104 bytes */

struct lf_saved {
	__u64 state[LF_PRIVATE_WORDS];
	__u32 has_state;	 /* 0: begin with the state of a new connection */
	__u32 cwnd_segments;	 /* 0: leave */
	__u32 ssthresh_segments; /* 0: leave */
	__u32 begin_epoch;	 /* 1: times in the state are of long ago */
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct lf_saved);
} lf_saved SEC(".maps");

/* To be called at the end of init(). Returns what was put back, or nothing. */
static __attribute__((always_inline, unused)) struct lf_saved *lf_restore(struct sock *sk)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct lf_saved *saved = bpf_sk_storage_get(&lf_saved, sk, 0, 0);
	int word;

	if (!saved)
		return 0;
	if (saved->has_state)
		for (word = 0; word < LF_PRIVATE_WORDS; word++)
			tp->inet_conn.icsk_ca_priv[word] = saved->state[word];
	if (saved->cwnd_segments) {
		tp->snd_cwnd = saved->cwnd_segments;
		tp->snd_cwnd_cnt = 0;
	}
	if (saved->ssthresh_segments)
		tp->snd_ssthresh = saved->ssthresh_segments;
	return saved;
}

#endif
