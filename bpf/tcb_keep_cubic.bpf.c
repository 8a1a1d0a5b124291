// SPDX-License-Identifier: GPL-2.0
/*
 * The kernel's own cubic under another name, with an init() that takes over a connection's private state (struct
 * bictcp: W_max, the origin point, HyStart's) instead of beginning anew.
 */
#include "../cc/bpf/saved.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct bictcp {
	__u32 epoch_start;
};
#pragma clang attribute pop

extern void cubictcp_init(struct sock *sk) __ksym;
extern __u32 cubictcp_recalc_ssthresh(struct sock *sk) __ksym;
extern void cubictcp_cong_avoid(struct sock *sk, __u32 ack, __u32 acked) __ksym;
extern void cubictcp_state(struct sock *sk, __u8 new_state) __ksym;
/* A kernel has one of these; the loader leaves out what calls the other. */
extern void cubictcp_cwnd_event(struct sock *sk, enum tcp_ca_event event) __ksym __weak;
extern void cubictcp_cwnd_event_tx_start(struct sock *sk) __ksym __weak;
extern void cubictcp_acked(struct sock *sk, const struct ack_sample *sample) __ksym;
extern __u32 tcp_reno_undo_cwnd(struct sock *sk) __ksym;

SEC("struct_ops")
void BPF_PROG(keep_init, struct sock *sk)
{
	struct lf_saved *saved;

	cubictcp_init(sk);
	saved = lf_restore(sk);
	/* An epoch of long ago would let the window leap; a new one begins from the W_max that was saved. */
	if (saved && saved->begin_epoch)
		((struct bictcp *)((struct tcp_sock *)sk)->inet_conn.icsk_ca_priv)->epoch_start = 0;
}

SEC("struct_ops")
__u32 BPF_PROG(keep_ssthresh, struct sock *sk)
{
	return cubictcp_recalc_ssthresh(sk);
}

SEC("struct_ops")
__u32 BPF_PROG(keep_undo_cwnd, struct sock *sk)
{
	return tcp_reno_undo_cwnd(sk);
}

SEC("struct_ops")
void BPF_PROG(keep_cong_avoid, struct sock *sk, __u32 ack, __u32 acked)
{
	cubictcp_cong_avoid(sk, ack, acked);
}

SEC("struct_ops")
void BPF_PROG(keep_set_state, struct sock *sk, __u8 new_state)
{
	cubictcp_state(sk, new_state);
}

SEC("struct_ops")
void BPF_PROG(keep_cwnd_event, struct sock *sk, enum tcp_ca_event event)
{
	cubictcp_cwnd_event(sk, event);
}

SEC("struct_ops")
void BPF_PROG(keep_cwnd_event_tx_start, struct sock *sk)
{
	cubictcp_cwnd_event_tx_start(sk);
}

SEC("struct_ops")
void BPF_PROG(keep_acked, struct sock *sk, const struct ack_sample *sample)
{
	cubictcp_acked(sk, sample);
}

SEC(".struct_ops.link")
struct tcp_congestion_ops lfkeep = {
	.init = (void *)keep_init,
	.ssthresh = (void *)keep_ssthresh,
	.undo_cwnd = (void *)keep_undo_cwnd,
	.cong_avoid = (void *)keep_cong_avoid,
	.set_state = (void *)keep_set_state,
	.cwnd_event = (void *)keep_cwnd_event,
	.cwnd_event_tx_start = (void *)keep_cwnd_event_tx_start,
	.pkts_acked = (void *)keep_acked,
	.name = "lfkeep_cubic",
};

char LICENSE[] SEC("license") = "GPL";
